"""`parity run`: the ladder of a registered pair."""

from typing import Any

from parity.cli.options import DEPTH, DIAGNOSIS, EAGER, EMULATE, ONLY, SEED, of_a_part, place_of
from parity.cli.output import OPEN, PROFILE, QUIET, REPRO, Output
from parity.cli.pair_command import pair_command

OUT = "Where the report goes  [default: reports/PAIR]"


@pair_command(OUT, SEED, ONLY, DEPTH, EMULATE, EAGER, DIAGNOSIS, REPRO, PROFILE, QUIET, OPEN)
def run(pair: str, chosen: Any, options: dict[str, Any], output: Output, **how: Any) -> None:
    """Compare a pair, rung by rung of its ladder.

    PAIR is a registered name, or module:attribute of one of yours. Options that the pair has of its
    own come after its name: see `parity run PAIR --help`. --json prints what report.json holds.
    Files are written in any case.

    \b
    Examples:
      parity run cogvideox --config small --open
      parity run my_pair:PAIR --only 'encoder.*'
    """
    with output.progress() as progress:
        folder = output.folder(f"reports/{chosen.name}", of_a_part(how))
        from parity.pipeline import run_pair

        how |= {"keep_repro": output.repro is not None, "own_process": True}
        with output.measured("jax", "torch"):
            report = run_pair(chosen, options, progress=progress, **how)
    output.end(report, folder, place_of(pair))
