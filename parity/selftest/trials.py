"""Outcome of each known mistake: found or not, where it is, and for what it is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

PLACE, CAUSE = 0.97, 0.9
"""Parts of the mistakes that must be found where they are, and for what they are."""


@dataclass(frozen=True)
class Trial:
    """Verdict and faults that `compare` gave of the port with some mistakes in it, or with none.

    `expected` maps the modules that are wrong to the causes that name it rightly, `found` those
    that were named to the cause given. `lines` is true if a line of each mistake in code is shown,
    `None` if there is none.
    """

    mistakes: tuple[str, ...]
    seed: int
    case: str
    expected: Mapping[str, tuple[str, ...]]
    found: Mapping[str, str]
    verdict: str
    evidence: str = ""
    lines: bool | None = None

    @property
    def killed(self) -> bool:
        """True if the comparison failed."""
        return self.verdict == "FAIL"

    @property
    def place(self) -> bool:
        """True if the modules named are those that are wrong, all of them and no other."""
        return set(self.found) == set(self.expected)

    @property
    def cause(self) -> bool:
        """True if they are named for what is wrong with them."""
        return self.place and all(
            self.found[path] in words for path, words in self.expected.items()
        )


@dataclass(frozen=True)
class SelfTest:
    """All trials: of one mistake each, of three at once, of none.

    `unshown` names the mistakes of which there is no trial: no module has a place for them, or they
    change no output in those that were drawn.
    """

    singles: tuple[Trial, ...]
    triples: tuple[Trial, ...]
    healthy: tuple[Trial, ...]
    unshown: tuple[str, ...] = ()

    @property
    def alarms(self) -> list[Trial]:
        """Comparisons of the port without a mistake that did not hold."""
        return [trial for trial in self.healthy if trial.verdict not in ("PASS", "WARN")]

    @property
    def verdict(self) -> str:
        """The verdict on the harness."""
        return "PASS" if self else "FAIL"

    def __bool__(self) -> bool:
        """Return true if enough mistakes were found, and nothing in the port without one."""
        return (
            bool(self.singles)
            and share(trial.place for trial in self.singles) >= PLACE
            and share(trial.cause for trial in self.singles) >= CAUSE
            and all(trial.place for trial in self.triples)
            and not self.alarms
        )


def share(answers: Iterable[bool | None]) -> float:
    """Return the part that is true of what is true or false; NaN of none."""
    values = [answer for answer in answers if answer is not None]
    return sum(values) / len(values) if values else float("nan")
