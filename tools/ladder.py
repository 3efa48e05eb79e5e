"""Runs the ladder at full size, as `make report` does: the table of docs/ladder.md.

python -m tools.ladder
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tools.tables import publish

HEAD = ("rung", "rows", "limit", "incl MAE", "free MAE", "rel L2", "R", "grade", "verdict")
HEADS = (HEAD,)


@click.command()
def main() -> None:
    """Run it; exits with the ladder's own code."""
    with TemporaryDirectory() as name:
        words = ["run", "cogvideox", "--quiet", "--out", name]
        code = subprocess.run([sys.executable, "-m", "parity", *words], check=False).returncode
        report = json.loads(Path(name, "report.json").read_text(encoding="utf-8"))
    rows = [
        (
            rung["rung"],
            rung["rows"],
            f"{rung['limit']:g}",
            *(f"{rung[error]:.2e}" for error in ("incl_mae", "free_mae", "rel_l2")),
            f"{rung['r']:.3g}",
            rung["grade"],
            rung["verdict"],
        )
        for rung in report["rungs"]
    ]
    facts = report["facts"]
    taken = f"{facts['seconds'] / 60:.1f} min, {facts['peak_memory_gib']:.1f} GiB"
    publish(HEAD, rows, f"{taken}.")
    sys.exit(code)


if __name__ == "__main__":
    main()
