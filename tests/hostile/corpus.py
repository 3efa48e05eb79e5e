"""All hostile cases, kind by kind."""

from tests.hostile import checkpoints, configs, latents, modules, reports, videos
from tests.hostile.case import Case

CASES: tuple[Case, ...] = (
    *checkpoints.CASES,
    *configs.CASES,
    *videos.CASES,
    *latents.CASES,
    *reports.CASES,
    *modules.CASES,
)
