"""A fault as text: the same parts on a terminal, in Markdown, JUnit, pytest and on the page."""

from collections.abc import Sequence

from parity.core.verdicts import Fault
from parity.report.table import grouped, unnumbered


def fault_place(fault: Fault, code: str = "`", *, brief: bool = False) -> str:
    """The call of a fault; `code` stands around names. A `brief` place has the first call alone."""
    where = fault.where.replace(fault.name, f"{code}{fault.name}{code}", 1)
    leaf = f", output {code}{fault.leaf}{code}" if fault.leaf and not brief else ""
    more = f", {fault.calls} calls in all" if fault.calls > 1 and not brief else ""
    segment = f", {fault.segment}" if fault.segment else ""
    return f"{where}{leaf}{more}{segment}"


def fault_reason(fault: Fault, bold: str = "") -> str:
    """The cause of a fault, the evidence, and how far off it is; `bold` stands around the cause."""
    measured = "; ".join(filter(None, (fault.evidence, fault.magnitude)))
    return f"{bold}{fault.cause}{bold}: {measured}" if fault.cause else measured


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
    """Faults that are one mistake in several modules together, each group where its first is.

    They have the cause, the kind of module and the line of source in common; where no line is
    known, the evidence but for its figures.
    """
    return [tuple(alike) for alike in grouped(faults, _mistake).values()]


def _mistake(fault: Fault) -> tuple[object, ...]:
    lines = fault.lines
    places = lines and tuple(side[0].place for side in (lines.port, lines.reference) if side)
    return fault.cause, fault.kind, places or unnumbered(fault.evidence or fault.magnitude)
