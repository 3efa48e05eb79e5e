"""Runs the hostile corpus and writes docs/reliability.md.

    .venv/bin/python -m tools.reliability

Nothing in that file but its text is written by hand: every figure is of this run.
"""

import os
import platform
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import conftest  # noqa: F401  # settings of the tests, before JAX is imported
from parity.host import environment
from tests.hostile import corpus, stock
from tests.hostile.case import LONGEST, MEMORY, Outcome, run

OUT = Path(__file__).parents[1] / "docs" / "reliability.md"

TITLES = {
    "checkpoint": "checkpoints: safetensors, indices, shards",
    "config": "`config.json`",
    "video": "videos and arrays of frames",
    "latent": "latents, and weights that are not finite",
    "report": "reports for `diff` and `show`",
    "trace": "golden traces for `check`",
    "maker": "what commands are pointed at, and their options",
    "module": "modules, and arguments of `parity.compare`",
}

TEXT = f"""# Hostile and unlucky input

Written by `python -m tools.reliability`, which runs every case of `tests/hostile`; `make test` runs
them too.

A case makes one bad input in a folder of its own and uses it as anybody would, through a command or
a call. Of each is checked:

- it is refused with exit code 2 and exactly one line, of at most {LONGEST} characters, which says
  where the problem lies and has nothing in it that a terminal obeys; or, where the input is strange
  and legal, it ends with the verdict that is right; or, where a module of the user's raises, its
  own error arrives;
- no traceback of this project's; no hook, stamp or wrapped class is left;
- no file appears or changes but in the output folder, and no temporary file is left;
- nothing is unpickled: the interpreter's audit events say so, and pickles that would leave a file
  behind leave none;
- the peak of memory rises by at most {MEMORY >> 20} MiB.

Beside the corpus, `tests/hostile` gives the readers random input (hypothesis), writes reports of
modules with hostile names to every format, interrupts comparisons and kills commands at random
moments, and has two comparisons meet. `make test-slow` runs what takes long: 50 interruptions, 500
comparisons in one process, and the corpus in a process whose addresses are limited.

"""


def outcomes() -> list[Outcome]:
    """How every case ends."""
    os.environ.setdefault("MPLBACKEND", "agg")
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        good = Path(name, "stock")
        good.mkdir()
        stock.fill(good)
        return [run(one, good, Path(name, str(i))) for i, one in enumerate(corpus.CASES)]


def table(found: Sequence[Outcome]) -> list[str]:
    """A line for each kind of input, and one for all."""
    lines = [
        "| input | cases | refused with one line | right verdict, or legal | own error | failed |",
        "|---|---|---|---|---|---|",
    ]
    kinds = list(dict.fromkeys(one.case.kind for one in found))
    for kind in [*kinds, ""]:
        of = [one for one in found if kind in ("", one.case.kind)]
        counts = Counter(_ending(one) for one in of)
        figures = [len(of), *(counts[name] for name in ("refused", "verdict", "raised", "failed"))]
        title = TITLES[kind] if kind else "**all**"
        lines.append(f"| {title} | {' | '.join(map(str, figures))} |")
    return lines


def _ending(one: Outcome) -> str:
    if one.problems:
        return "failed"
    if one.ended == 2:
        return "refused"
    return "raised" if isinstance(one.ended, type) else "verdict"


def names(found: Sequence[Outcome]) -> list[str]:
    """The names of all cases by kind, folded."""
    lines = []
    for kind, title in TITLES.items():
        of = [one.case for one in found if one.case.kind == kind]
        shown = "; ".join(f"{case.name}"[:60].encode("unicode_escape").decode() for case in of)
        for sign, code in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
            shown = shown.replace(sign, code)
        lines += ["", f"<details><summary>{title}: {len(of)}</summary>", "", f"<p>{shown}</p>", ""]
        lines += ["</details>"]
    return lines


def main() -> int:
    """Run, write, and say what failed; exits with 1 if anything did."""
    found = outcomes()
    here = environment.here()["versions"]
    versions = ", ".join(f"{name} {here[name]}" for name in ("jax", "torch", "numpy", "safetensors")
                         if name in here)  # fmt: skip
    text = [
        *table(found), "", f"Python {platform.python_version()}, {versions}.", "", "## The cases",
        *names(found),
    ]  # fmt: skip
    OUT.write_text(TEXT + "\n".join(text) + "\n", encoding="utf-8")
    failed = [one for one in found if one.problems]
    for one in failed:
        sys.stderr.write(f"{one.case.kind}: {one.case.name}: {one.problems[0]}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
