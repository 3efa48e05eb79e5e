"""The figures of docs/claims.md are those that `tools.claims` measures."""

import pytest
from click.testing import CliRunner

from tests.docs.documents import blocks, difference, printed
from tests.docs.sources import numbers
from tools.claims import CLAIMS, main

SLOW = ("pooling", "frames", "tiles")  # models of both sides, and compilation
UNSHOWN = ("compiled",)  # seconds

SHOWN = {
    one.command[-1]: one
    for block in blocks("docs/claims.md")
    if block.language == "console"
    for one in printed(block)
}


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in SLOW else x for x in SHOWN]
)
def test_figures(name):
    result = CliRunner().invoke(main, [name], catch_exceptions=False)
    assert result.exit_code == 0
    assert not difference(SHOWN[name].output, result.output), result.output


def test_every_claim_is_shown():
    assert {*SHOWN, *UNSHOWN} == {*CLAIMS}


@pytest.mark.slow
def test_compiled_code_is_faster():
    """How many times depends on the machine and on what runs beside it: four times more or less."""
    (shown,) = numbers("docs/claims.md", "compiled: # times as fast in one run")
    ratio = CLAIMS["compiled"]()["ratio"]
    assert shown / 4 < ratio < 4 * shown
