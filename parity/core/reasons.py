"""Reasons why something has no counterpart."""

CONTAINER = "holds modules and never runs"


IDLE = "called on neither side (through its forward or __call__) with these inputs"


PORT_LACKS = "the port does not return it"


REF_LACKS = "only the port returns it"
