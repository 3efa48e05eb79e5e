"""All probes, in the order in which they are believed where several explain an error alike."""

from parity.diagnose import norm_probes, order_probes, padding_probes, rotary_probes, value_probes
from parity.diagnose.probe import REGISTERED, Probe

KINDS = (norm_probes, order_probes, padding_probes, rotary_probes, value_probes)
"""Files of probes, those that are believed first at the front."""

PROBES: list[Probe] = [
    probe for kind in KINDS for probe in REGISTERED if probe.__module__ == kind.__name__
]
