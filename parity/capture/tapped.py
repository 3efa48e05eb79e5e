"""Runs of a port in which its taps are recorded."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import jax
from flax import nnx

from parity.capture import taps
from parity.capture.functional import Functional
from parity.core.calls import Trace
from parity.core.globs import captured, renamed


def record_with_taps(
    run: Callable[[], Trace], module: nnx.Module, ref: Trace, rename: Mapping[str, str]
) -> Trace:
    """The port's calls, operation by operation if it has taps that its programs may hide."""
    compiled: Trace | None = None
    if not isinstance(module, Functional):
        compiled = run()
        if not compiled.untapped and not _may_hide_taps(ref, compiled, rename):
            return compiled
    with jax.disable_jit():
        eager = run()
    if compiled is None or any(call.tapped for call in eager.calls):
        return eager
    return replace(compiled, untapped=eager.untapped)


def _may_hide_taps(ref: Trace, port: Trace, rename: Mapping[str, str]) -> bool:
    """True if a program compiled before the run may have a tap where the port makes no call."""
    made = {f".{call.path}" for call in port.calls}
    lacking = {f".{renamed(call.path, rename)}" for call in ref.calls if call.path} - made
    return any(captured(f"*.{name}", path) for name in taps.called() for path in lacking)
