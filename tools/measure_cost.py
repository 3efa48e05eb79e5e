"""What the harness costs at full size, in units of one PyTorch float32 run of the same inputs.

Run it from the root of the repository, with nothing else on the machine:

    .venv/bin/python tools/measure_cost.py [small]

It encodes and decodes the ladder's clip with PyTorch alone, then measures both cases. Every program
is compiled in a run before that is not counted.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
import torch

from jaxvae.pairs.cogvideox.pair import PAIR
from parity.core.pair import Case
from parity.host.progress import Progress
from parity.inputs import load_clip
from parity.options.options import Options
from parity.run.case import run_case
from parity.run.live import Live


def main(config: str | None) -> None:
    """Print the seconds and the ratios; reports say how much memory a run took."""
    progress = Progress()
    reference = PAIR.make_torch(None, config, 0)
    port = PAIR.make_nnx(None, config, reference)
    encode, decode, *_ = PAIR.cases(reference, load_clip(None, 17, (64, 64), 0), 0)
    decode = replace(decode, args=(_plain(reference, encode)["mean"].numpy(),))
    cases = [replace(case, shipped=None) for case in (encode, decode)]
    alone = _seconds(lambda: [_plain(reference, case) for case in cases])
    click.echo(f"PyTorch alone: {alone:.1f} s")
    options = Options(PAIR.rungs, PAIR.declared, PAIR.rename, PAIR.layout)

    def measure() -> None:
        for case in cases:
            run_case(case, Live(reference), port, options, progress)

    measure()
    taken = _seconds(measure)
    click.echo(f"all three errors: {taken:.1f} s, {taken / alone:.1f} times")


def _plain(reference: Any, case: Case) -> Any:
    assert not isinstance(case.torch, str)
    with torch.no_grad():
        return case.torch(reference, *map(torch.from_numpy, case.args))


def _seconds(run: Callable[[], object]) -> float:
    start = time.monotonic()
    run()
    return time.monotonic() - start


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
