"""The reference of a golden trace, in place of one that runs."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from parity.core.calls import ModuleInfo, Trace
from parity.core.pair import Case
from parity.core.store import Store
from parity.core.tensors import Tensor
from parity.core.tree import rebuild
from parity.diagnose.case_record import CaseRecord
from parity.diagnose.findings import Finding, Kept
from parity.host import environment
from parity.judge.faults import Found
from parity.run.protocols import Arguments, Inside, Layout
from parity.traces.diagnosis import diagnosis
from parity.traces.float64 import RecordedFloat64
from parity.traces.index import StoredCase
from parity.traces.trace import Golden

BY_RUN = "call `parity run` where torch is installed: it finds out why by experiment"


class Recorded:
    """A golden trace as the reference of a comparison.

    `advice` is the hint where neither arrays nor weights show a cause.
    """

    def __init__(self, golden: Golden, advice: str = BY_RUN) -> None:
        self._golden, self._advice = golden, advice
        self._cases = golden.cases

    def environment(self) -> Mapping[str, Any]:
        """This machine's environment, with PyTorch's side as it was where this was recorded."""
        recorded = dict(self._golden.index.environment)
        of_torch = {key: value for key, value in recorded.items() if key.startswith("torch_")}
        here = environment.describe(recorded["seed"], ("jax",))
        return {**here, **of_torch, "recorded": recorded}

    def modules(self) -> Mapping[str, ModuleInfo]:
        """All modules of the model, recorded or not."""
        return self._golden.modules

    def tensors(self) -> Sequence[Tensor]:
        """All parameters and buffers."""
        return self._golden.tensors

    def seeded(self) -> AbstractContextManager[None]:
        """A context in which nothing of the reference is drawn."""
        return nullcontext()

    def arguments(self, case: Case, layout: Layout) -> Arguments:
        """The recorded arguments, in the port's layout."""
        stored = self._of(case)
        args, kwargs = rebuild(stored.arguments, list(map(self._golden.arrays.read, stored.given)))
        return tuple(args), dict(kwargs)

    def record(self, case: Case, store: Store, layout: Layout, inside: Inside) -> Trace:
        """The recorded calls, in the scope that a check has too."""
        store.adopt(self._golden.arrays.find)
        return self._of(case).trace

    def float64(self, case: Case) -> RecordedFloat64:
        """The recorded float64 runs."""
        return RecordedFloat64(self._of(case), self._golden.arrays)

    def diagnose(
        self, found: Found, record: CaseRecord, kept: Kept | None = None
    ) -> Sequence[Finding]:
        """Cause that the arrays and the weights show: nothing of the reference can be changed."""
        return [Finding(diagnosis(found, record, self._advice))]

    def keep(self, order: int, record: CaseRecord) -> None:
        """None: a trace has no code that could run."""

    def optional(self, case: Case) -> Mapping[str, Sequence[str]]:
        """Optional arguments of the recorded classes."""
        return self._of(case).optional

    def notes(self, case: Case) -> tuple[str, ...]:
        """Notes of the recorded run."""
        return self._of(case).notes

    def _of(self, case: Case) -> StoredCase:
        return self._cases[case.name, case.path]
