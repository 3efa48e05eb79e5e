"""All hostile cases, kind by kind."""

from tests.hostile import checkpoints, configs, latents, makers, modules, reports, traces, videos
from tests.hostile.case import Case

CASES: tuple[Case, ...] = (
    *checkpoints.CASES,
    *configs.CASES,
    *videos.CASES,
    *latents.CASES,
    *reports.CASES,
    *traces.CASES,
    *makers.CASES,
    *modules.CASES,
)
