"""Calls of the reference whose own code, seen from the port, is that of a norm.

A correct norm of an input with a large mean is further from float64 than other code. Where the port
writes one out, the code around it is judged by the limits of norms.
"""

from collections.abc import Sequence
from dataclasses import replace

from parity.core.calls import Call, Match, above
from parity.core.limits import r_limit


def with_norms(matches: Sequence[Match], calls: Sequence[Call]) -> Sequence[Match]:
    """The matches, those marked in whose own code a norm of the reference stands.

    `calls` are all of the reference's.
    """
    matched = {match.ref.order for match in matches}
    parents = {call.order: call.parent for call in calls}
    norms = [x for x in calls if x.order not in matched and r_limit(x.kind).family == "norm"]
    around = (above(call.parent, parents) for call in norms)
    nearest = {next((one for one in orders if one in matched), -1) for orders in around}
    return [replace(match, norm=match.ref.order in nearest) for match in matches]
