"""Protocols of a comparison's two sides.

A reference runs (`running_reference`) or was recorded (`traces.recorded_reference`). A port runs
(`running_port`), or a second recording stands in its place (`traces.recorded_port`). All of them go
through one runner, `case.run_case`.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from parity.core.calls import ModuleInfo, Trace
from parity.core.globs import renamed
from parity.core.pair import Case
from parity.core.store import Store
from parity.core.tensors import Tensor, Weight
from parity.diagnose.case_record import CaseRecord
from parity.diagnose.findings import Finding, Kept
from parity.force.common import Float64
from parity.host.progress import Progress
from parity.judge.faults import Found
from parity.options.options import Options
from parity.options.scope import Scope
from parity.run.records import Compared, Pairing

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""

Layout = Mapping[str, str]
"""Globs of `path` or `path#leaf` to where the channel is."""

Inside = Collection[str] | None
"""Paths of the submodules to record; `None` stands for all."""


class Reference(Protocol):
    """The side that is right."""

    def modules(self) -> Mapping[str, ModuleInfo]:
        """All modules of the root by path."""
        ...

    def tensors(self) -> Sequence[Tensor]:
        """All parameters and buffers."""
        ...

    def seeded(self) -> AbstractContextManager[object]:
        """A context in which random layers draw the same numbers in every case."""
        ...

    def arguments(self, case: Case, layout: Layout) -> Arguments:
        """The case's arguments in the port's layout."""
        ...

    def record(self, case: Case, store: Store, layout: Layout, inside: Inside) -> Trace:
        """The calls of the case, with their arrays in `store`."""
        ...

    def float64(self, case: Case) -> Float64:
        """The case in float64."""
        ...

    def diagnose(
        self, found: Found, record: CaseRecord, kept: Kept | None = None
    ) -> Sequence[Finding]:
        """The cause of each mistake in one call, as far as the reference can tell."""
        ...

    def keep(self, order: int, record: CaseRecord) -> Kept | None:
        """One run of the call with this `order` on each side, with the lines at which they part,
        if the reference can run.
        """
        ...

    def optional(self, case: Case) -> Mapping[str, Sequence[str]]:
        """Arguments that need not be given, by class of the modules inside."""
        ...

    def notes(self, case: Case) -> tuple[str, ...]:
        """Sentences that a reader should know before trusting a PASS."""
        ...


@dataclass(frozen=True)
class Context:
    """A case with both sides, and what its stages need beside what they return."""

    case: Case
    reference: Reference
    port: "Port"
    options: Options
    weights: Sequence[Weight]
    store: Store
    progress: Progress

    @property
    def port_path(self) -> str:
        """Path of the called module in the port."""
        return renamed(self.case.path, self.options.rename or {})


class Port(Protocol):
    """The side that is judged."""

    inlines: bool
    """True if a module that one side alone calls may be a function in the other."""

    def paths(self) -> Collection[str]:
        """All modules of the root."""
        ...

    def pair(self, reference: Reference, options: Options) -> Pairing:
        """The modules and tensors that correspond to the reference's."""
        ...

    def prepare(self, context: Context, given: Arguments) -> None:
        """Make ready for a case, before the reference runs.

        Raises:
            InputError: the port cannot make it.
        """
        ...

    def record(self, context: Context, scope: Scope, ref: Trace, given: Arguments) -> Trace:
        """The calls of the case on the arguments `given`; `ref` is the reference's run."""
        ...

    def judge(self, context: Context, compared: Compared) -> Sequence[CaseRecord]:
        """Judged rows of all matched calls."""
        ...

    def notes(self, trace: Trace) -> tuple[str, ...]:
        """Sentences that a reader should know of the port's run."""
        ...
