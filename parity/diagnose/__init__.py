"""Why a call goes wrong."""

from parity.diagnose.diagnose import Scene, diagnose

__all__ = ["Scene", "diagnose"]
