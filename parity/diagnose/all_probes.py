"""All probes, in the order in which they are believed where several explain an error alike."""

from parity.diagnose import norm_probes, order_probes, padding_probes, pair_probes, value_probes
from parity.diagnose.probe import PROBES, Probe

__all__ = ["PROBES", "Probe"]

KINDS = (norm_probes, order_probes, padding_probes, pair_probes, value_probes)
"""Importing them registers their probes."""
