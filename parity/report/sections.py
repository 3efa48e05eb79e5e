"""Sentences on emulated precision and on what is not finite, for whichever kind of report."""

from collections.abc import Iterator, Sequence

from parity.records import Emulation, Loss, NonFinite

MOST = 3
"""How many of the modules that lose most are named in a sentence."""


def precision_lines(emulations: Sequence[Emulation]) -> Iterator[str]:
    """What emulated hardware adds at each output, and where, of the cases that call the whole."""
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
    what = f"{leaf} handed to `{loss.to}`" if loss.to else leaf
    return f"`{loss.path or '<root>'}` call {loss.call}{what}"


def nonfinite_lines(found: Sequence[NonFinite]) -> Iterator[str]:
    """Where each side leaves the finite numbers."""
    for one in found:
        counts = [f"{count} {name}" for count, name in ((one.nan, "NaN"), (one.inf, "infinite"))
                  if count]  # fmt: skip
        leaf = f" in output `{one.leaf}`" if one.leaf else ""
        given = f", {one.given} entries of them not finite already" if one.given else ""
        alike = "; the other side has the same" if one.alike else ""
        yield (
            f"not finite: the {one.side} first in `{one.path or '<root>'}` ({one.kind}), call "
            f"{one.call} of {one.case}: {' and '.join(counts)} of {one.size} entries{leaf}; "
            f"its inputs reach {one.largest:.1e}{given}{alike}"
        )
