"""Why a call goes wrong."""

from parity.diagnose.diagnose import HINTS, Scene, diagnose

__all__ = ["HINTS", "Scene", "diagnose"]
