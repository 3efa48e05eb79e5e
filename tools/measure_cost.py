"""Cost of the harness at full size, in units of one PyTorch float32 run of the same inputs.

    python -m tools.measure_cost [small]

It encodes and decodes the ladder's clip with PyTorch alone, then measures both cases. Every program
is compiled in a run before that is not counted.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
import torch

from jaxvae.pairs.cogvideox.pair import PAIR
from parity.core.pair import Case
from parity.host.progress import Progress
from parity.options.options import Options
from parity.run.case import run_case
from parity.run.running_port import RunningPort
from parity.run.running_reference import RunningReference
from tools.tables import publish

HEAD = ("what", "seconds", "times PyTorch alone")
HEADS = (HEAD,)


@click.command()
@click.argument("config", required=False)
def main(config: str | None) -> None:
    """Measure; reports say how much memory a run took."""
    progress = Progress()
    options = PAIR.resolved({"config": config})
    reference = PAIR.make_torch(options, 0)
    port = PAIR.make_nnx(options, reference)
    encode, decode, *_ = PAIR.cases(reference, options, 0)
    decode = replace(decode, args=(_plain(reference, encode)["mean"].numpy(),))
    cases = [replace(case, shipped=None) for case in (encode, decode)]
    alone = _seconds(lambda: [_plain(reference, case) for case in cases])
    options = Options(PAIR.rungs, PAIR.declared, PAIR.rename, PAIR.layout)

    def measure() -> None:
        for case in cases:
            run_case(case, RunningReference(reference), RunningPort(port), options, (), progress)

    measure()
    taken = _seconds(measure)
    rows = [("PyTorch alone", f"{alone:.1f}", "1.0")]
    rows.append(("all three errors", f"{taken:.1f}", f"{taken / alone:.1f}"))
    publish(HEAD, rows)


def _plain(reference: Any, case: Case) -> Any:
    assert not isinstance(case.torch, str)
    with torch.no_grad():
        return case.torch(reference, *map(torch.from_numpy, case.args))


def _seconds(run: Callable[[], object]) -> float:
    start = time.monotonic()
    run()
    return time.monotonic() - start


if __name__ == "__main__":
    main()
