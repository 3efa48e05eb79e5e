"""A comparison without the port as one program, and what its report says."""

import json
from functools import partial
from pathlib import Path

import parity

SCHEMA = json.loads((Path(parity.__file__).parent / "report/schema.json").read_text())

compare = partial(parity.compare, check_compiled=False)
"""Compiling the port takes longer than all the rest."""


def places(report):
    """Return of every fault the path, the segment and the cause."""
    return [(fault.path, fault.segment, fault.cause) for fault in report.faults]
