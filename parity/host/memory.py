"""The memory that this process holds, and the stage of a run that needed most."""

import ctypes
import sys
from pathlib import Path

if sys.platform != "win32":
    import resource

KEPT = 1 << 28
"""Bytes that a stage may leave with the allocator: giving back takes time, as getting anew does."""

_STATUS = Path("/proc/self/status")


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes; 0 on Windows."""
    if _STATUS.exists():
        # the other way counts what the process held that started this one
        return _linux("VmHWM")
    if sys.platform == "win32":
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_memory() -> int:
    """Resident size of this process now, in bytes; its peak where the system does not tell."""
    return _linux("VmRSS") if _STATUS.exists() else peak_memory()


def _linux(name: str) -> int:
    line = next(x for x in _STATUS.read_text().splitlines() if x.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def give_back() -> None:
    """Give freed memory back to the system, where the allocator (glibc's) keeps it until asked."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def gib(size: int) -> float:
    """Bytes in GiB, as reports give them."""
    return round(size / 2**30, 2)


class LargestStage:
    """The stage in which the peak was reached, and how far it rose above what was held before."""

    def __init__(self) -> None:
        self.name, self.rise = "", 0
        self._held, self._peak = resident_memory(), peak_memory()

    def begin(self) -> None:
        """A stage begins; what the ones before it freed is no memory of its own."""
        if resident_memory() > self._held + KEPT:
            give_back()
        self._held, self._peak = resident_memory(), peak_memory()

    def end(self, name: str) -> None:
        """It ends, and is the largest so far if the peak is new."""
        peak = peak_memory()
        if peak > self._peak:
            self.name, self.rise = name, peak - self._held
