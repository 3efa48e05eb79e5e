"""The cause of a wrong gradient, by comparison of both sides' arrays."""

import numpy as np

from parity.core.arrays import Array
from parity.core.metrics import ratio, rms, unit_roundoff
from parity.diagnose.causes import EXPLAINED
from parity.gradients.noise import Subject

ROUNDINGS = 64
"""How many roundings of the largest entry are none of a difference at single entries."""


def cause_of(subject: Subject, *, container: bool) -> tuple[str, str, str]:
    """A word of the closed vocabulary, what was measured, and what to do."""
    kind = "glue" if container else "unknown"
    ref, port = subject.ref, subject.port
    if subject.wide is not None and subject.wide.shape == ref.shape:
        ref = subject.wide
    if port is None or port.shape != ref.shape:
        return "shape", "", "compare the shapes of the gradients"
    wild = ~np.isfinite(port) & np.isfinite(ref)
    if wild.any():
        text = f"{int(wild.sum())} of {wild.size} entries are not finite"
        hint = "the branch that jnp.where does not take has a gradient too: keep its input in range"
        return "nonfinite", text, hint
    fine = np.isfinite(port) & np.isfinite(ref)
    ref, port = np.where(fine, ref, 0), np.where(fine, port, 0)
    if not port.any():
        hint = "look for stop_gradient, and for operations without a gradient, such as rounding"
        text = "the port's gradient is zero everywhere, as if it were stopped"
        return "scale_or_offset", text, hint
    if not ref.any():
        hint = "the reference stops the gradient, or rounds, where the port does not"
        return kind, "the reference's gradient is zero everywhere", hint
    factor = float(np.vdot(ref, port).real / np.vdot(ref, ref).real)
    left = ratio(rms(port - factor * ref), rms(port - ref))
    if left < EXPLAINED:
        text = f"{factor:.4g} times the reference's explains {100 * (1 - left):.0f} % of it"
        return "scale_or_offset", text, "a factor or a sign of the backward code"
    at = _only_at(subject.given, ref, port)
    if at:
        return "clamp", at, "the two take other gradients where an input is at a bound or a tie"
    return kind, "", "look at the backward code: stop_gradient, custom_vjp, where and clip"


def _only_at(given: Array | None, ref: Array, port: Array) -> str:
    """The values of the input where alone the two differ, as a phrase; `""` if elsewhere too."""
    if given is None or given.shape != ref.shape:
        return ""
    near = ROUNDINGS * unit_roundoff(given.dtype) * float(np.abs(ref).max())
    bad = np.abs(port - ref) > near
    values, counts = np.unique(given[bad], return_counts=True)
    if not 1 <= values.size <= 2 or any(n < 2 and v for v, n in zip(values, counts, strict=True)):
        return ""
    names = " or ".join(f"{value:g}" for value in values)
    return f"only {int(bad.sum())} entries differ, all where the input is {names}"
