"""Why a call goes wrong, and where in its arrays."""

from parity.diagnose.diagnose import HINTS, Scene, diagnose
from parity.diagnose.portrait import portray

__all__ = ["HINTS", "Scene", "diagnose", "portray"]
