"""All hostile cases, kind by kind."""

from tests.hostile import checkpoints, configs
from tests.hostile.case import Case

CASES: tuple[Case, ...] = (*checkpoints.CASES, *configs.CASES)
