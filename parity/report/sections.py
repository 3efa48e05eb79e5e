"""Sentences on emulated precision and on what is not finite, for whichever kind of report."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from parity.core.globs import path_name
from parity.core.measurements import Emulation, Loss, NonFinite
from parity.core.verdicts import Row

MOST = 3
"""How many of the modules that lose most are named in a sentence."""


LISTED = 20
"""How many doubtful rows are listed."""


def doubt_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Reasons of rows that are WARN or UNKNOWN, the calls of one module together."""
    calls = Counter((row.verdict, row.path, row.leaf, _plain(row.reason)) for row in rows)
    first = {(row.verdict, row.path, row.leaf, _plain(row.reason)): row for row in reversed(rows)}
    for key, count in list(calls.items())[:LISTED]:
        verdict, path, leaf, _ = key
        more = f", {count} calls" if count > 1 else ""
        output = f" output `{leaf}`" if leaf else ""
        row = first[key]
        where = f"`{path_name(path)}`{output} call {row.call} of {row.case}{more}"
        yield f"- {verdict}: {where}: {row.reason}"
    if len(calls) > LISTED:
        yield f"- and {len(calls) - LISTED} more"


def _plain(reason: str) -> str:
    """The reason without its figures."""
    return re.sub(r"[0-9][0-9.e+-]*", "", reason)


def precision_lines(emulations: Sequence[Emulation]) -> Iterator[str]:
    """Errors that emulated hardware adds at each output, of the cases that call the whole."""
    for one in emulations:
        if one.path:
            continue
        name = f"precision {one.mode}"
        if not any(added for added, _ in one.outputs.values()):
            yield f"{name} changes nothing in {one.case}: no product there is one that it rounds"
            continue
        for leaf, (added, own) in one.outputs.items():
            where = f"output `{leaf}`" if leaf else "the output"
            yield (
                f"{name} adds rel_l2 {added:.1e} at {where} of {one.case}; "
                f"the port itself {own:.1e}"
            )
        if one.calls > 1:
            most = {loss.path: loss for loss in reversed(one.losses)}  # the worst of each module
            worst = sorted(most.values(), key=lambda loss: -loss.rel_l2)[:MOST]
            names = ", ".join(f"{place(loss)} {loss.rel_l2:.1e}" for loss in worst)
            yield (
                f"{name} alone, no fault of the port, takes {one.lossy} of {one.calls} calls of "
                f"{one.case} out of the rounding of float32{f'; most {names}' if names else ''}"
            )


def place(loss: Loss) -> str:
    """The call, and which of its values."""
    leaf = f" `{loss.leaf}`" if loss.leaf else ""
    what = f"{leaf} passed to `{loss.to}`" if loss.to else leaf
    return f"`{path_name(loss.path)}` call {loss.call}{what}"


def nonfinite_lines(found: Sequence[NonFinite]) -> Iterator[str]:
    """Places where each side leaves the finite numbers."""
    for one in found:
        counts = [f"{count} {name}" for count, name in ((one.nan, "NaN"), (one.inf, "infinite"))
                  if count]  # fmt: skip
        leaf = f" in output `{one.leaf}`" if one.leaf else ""
        given = f", {one.given} entries of them not finite already" if one.given else ""
        alike = "; the other side has the same" if one.alike else ""
        yield (
            f"not finite: the {one.side} first in `{path_name(one.path)}` ({one.kind}), call "
            f"{one.call} of {one.case}: {' and '.join(counts)} of {one.size} entries{leaf}; "
            f"its inputs reach {one.largest:.1e}{given}{alike}"
        )
