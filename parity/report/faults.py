"""A fault as text: the same parts on a terminal, in Markdown, JUnit, pytest and on the page."""

from collections.abc import Sequence

from parity.core.verdicts import Fault
from parity.diagnose.causes import UNEXPLAINED
from parity.report.table import grouped, unnumbered


def fault_place(fault: Fault, *, brief: bool = False) -> str:
    """The call of a fault, with names as `code`. A `brief` place has the first call alone."""
    where = fault.where.replace(fault.name, f"`{fault.name}`", 1)
    leaf = f", output `{fault.leaf}`" if fault.leaf and not brief else ""
    more = f", {fault.calls} calls in all" if fault.calls > 1 and not brief else ""
    segment = f", {fault.segment}" if fault.segment else ""
    return f"{where}{leaf}{more}{segment}"


def fault_parts(fault: Fault, *alike: Fault) -> dict[str, str]:
    """The parts of a fault by what they answer, without those that are not known.

    `alike` are the others of its group.
    """
    parts = {
        "where": fault_place(fault),
        "alike": ", ".join(dict.fromkeys(f"`{one.name}`" for one in alike)),
        "what": fault.magnitude,
        "why": fault.evidence,
        "do this": fault.hint,
    }
    return {name: text for name, text in parts.items() if text}


def grouped_faults(faults: Sequence[Fault]) -> list[tuple[Fault, ...]]:
    """Groups of faults that are one mistake in several modules, in the order of their first ones.

    They have cause, kind of module, lines and evidence in common, but for the figures in it. Where
    neither a cause nor a line is known nothing tells that two are one.
    """
    return [tuple(alike) for alike in grouped(faults, _mistake).values()]


def _mistake(fault: Fault) -> tuple[object, ...]:
    lines = fault.lines
    places = lines and tuple(side[:1] and side[0].place for side in (lines.port, lines.reference))
    known = fault.cause not in UNEXPLAINED or places
    own = "" if known else fault.path
    return fault.cause, fault.kind, places, unnumbered(fault.evidence), fault.parting, own
