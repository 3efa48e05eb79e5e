"""What may be pasted where something has no counterpart: tried before it is proposed."""

from dataclasses import replace

from parity.core.globs import rooted
from parity.run.compared import aligned
from parity.run.protocols import Context
from parity.run.records import Compared
from parity.weights.coverage import lacking, with_weights
from parity.weights.weight_map import with_declared


def tried(context: Context, compared: Compared) -> tuple[str, ...]:
    """Globs that leave out what has no counterpart, if the recorded calls, matched again without
    that, have one each; none otherwise.
    """
    first, options = compared.alignment, context.options
    globs = lacking(first.coverage, context.weights, first.port_of)
    if not globs:
        return ()
    declared = {**(options.declared or {}), **dict.fromkeys(rooted(globs), "proposed")}
    weights = with_declared(context.weights, declared)
    again = replace(context, options=replace(options, declared=declared), weights=weights)
    found = aligned(again, compared.scope, compared.ref, compared.port)
    return globs if with_weights(found.coverage, weights, found.port_of).complete else ()
