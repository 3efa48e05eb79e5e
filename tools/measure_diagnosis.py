"""Prints what the search for causes costs, in runs of the faulty call.

python -m tools.measure_diagnosis            the nets of tests/faultzoo/
python -m tools.measure_diagnosis llama t5   three mistakes planted in each of these ports
"""

import statistics
import time
from collections.abc import Callable, Iterator

import click

import conftest  # settings of the tests, before JAX is imported
import parity
from parity.diagnose import diagnose
from parity.diagnose.search import Attempts
from tests.faultzoo.zoo import CASES, nets
from tests.ports.planted import drawn


def _zoo() -> Iterator[tuple[str, Callable[[], parity.Report]]]:
    for one in CASES:
        reference, port, x = nets(one, True, 0)
        layout = {"*": "channels_first"} if x.ndim == 3 else None

        def made(reference=reference, port=port, x=x, layout=layout):  # type: ignore[no-untyped-def]
            return parity.compare(reference, port, (x,), layout=layout, check_compiled=False)

        yield one.name, made


def _ports(names: tuple[str, ...], seed: int) -> Iterator[tuple[str, Callable[[], parity.Report]]]:
    for name in names:
        for mistake in drawn(name, seed):

            def made(mistake=mistake):  # type: ignore[no-untyped-def]
                return parity.compare(*mistake.make(), check_compiled=False)

            yield f"{name}: {mistake.what}", made


@click.command()
@click.argument("names", nargs=-1)
@click.option("--seed", default=0, help="Which mistakes.")
def main(names: tuple[str, ...], seed: int) -> None:
    """Print a row for each mistake, then the median and the most."""
    spent: list[Attempts] = []

    class Counted(Attempts):
        """Attempts that are kept."""

        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]
            spent.append(self)

    setattr(diagnose, "Attempts", Counted)  # noqa: B010
    conftest.jax.config.update("jax_numpy_rank_promotion", "allow")  # as people write ports
    costs = []
    for name, compared in _ports(names, seed) if names else _zoo():
        spent.clear()
        start = time.process_time()
        report = compared()
        cost = [one.tape.cost + one.runs for one in spent] or [0.0]
        costs += cost
        causes = ", ".join(fault.cause for fault in report.faults) or "no fault"
        tried, seconds = sum(one.tried for one in spent), time.process_time() - start
        click.echo(f"{name}: {causes}; {tried} changes, {max(cost):.1f} runs, {seconds:.1f} s")
    click.echo(f"runs of a call: median {statistics.median(costs):.1f}, most {max(costs):.1f}")


if __name__ == "__main__":
    main()
