"""What docs/claims.md says of each claim holds: figures are those of `tools.claims`."""

import pytest

from tools import tables
from tools.claims import CLAIMS

ROUNDING = 1e-5

HOLDS = {
    "pooling": lambda wrong, alike, right: right < ROUNDING < 0.1 < wrong and alike < 0.9,
    "coarse_products": lambda *found: (
        max(found[1::2]) < ROUNDING < 5e-4 < min(found[::2]) and max(found[::2]) < 5e-3
    ),
    "group_norm": lambda *found: max(found) < ROUNDING,
    "grades": lambda *found: found == ("good", "attention", "attention", "severe", "severe"),
    "frames": lambda *found: found[:4] == (13, 49, 13, 49) and found[4] > 0.05,
    "tiles": lambda whole, ours, without, _: ours < 1e-4 < 0.05 < min(whole, without),
    "reference_facts": lambda *found: found == ("nearest", "Conv2d", True, False),
    "counterparts": lambda gelu, ratio, other, whole: (
        gelu > 1e-4 and ratio == pytest.approx(1.25) and (other, whole) == (2, 0)
    ),
    "merging": lambda *found: found == (1, 2),
    "compiled": lambda eager, compiled, _: compiled < eager,
}
SLOW = ("pooling", "frames", "tiles", "compiled")  # models of both sides, and compilation


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in SLOW else x for x in CLAIMS]
)
def test_it_holds(name):
    assert HOLDS[name](*CLAIMS[name]().values())


def test_every_claim_is_shown():
    shown = {command for path in tables.DOCUMENTS for command, _ in tables.marked(path)}
    assert {f"python -m tools.claims {name}" for name in CLAIMS} <= shown
