"""Faults as sentences, for whichever kind of report."""

from parity.core.verdicts import Fault


def fault_place(fault: Fault, code: str = "`", *, brief: bool = False) -> str:
    """The call of a fault; `code` stands around names. A `brief` place has the first call alone."""
    where = fault.where.replace(fault.name, f"{code}{fault.name}{code}", 1)
    leaf = f", output {code}{fault.leaf}{code}" if fault.leaf and not brief else ""
    more = f", {fault.calls} calls in all" if fault.calls > 1 and not brief else ""
    segment = f", {fault.segment}" if fault.segment else ""
    return f"{where}{leaf}{more}{segment}"


def fault_reason(fault: Fault, bold: str = "") -> str:
    """The cause of a fault, if it is known, and the evidence; `bold` stands around the cause."""
    return f"{bold}{fault.cause}{bold}: {fault.evidence}" if fault.cause else fault.evidence


def fault_line(fault: Fault) -> str:
    """A fault in one line, as on a terminal."""
    return f"fault: {fault_place(fault, '', brief=True)}: {fault_reason(fault)}"
