"""A second recording of a reference in place of a port."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from parity.core.calls import Trace
from parity.core.tensors import Tensor, Transform, Weight
from parity.diagnose.case_record import CaseRecord
from parity.force.common import Recording, Sides
from parity.options.options import Options
from parity.options.scope import Scope
from parity.run.protocols import Arguments, Context, Reference
from parity.run.records import Compared, Pairing
from parity.traces.judge import judge_apart
from parity.traces.trace import Golden
from parity.weights.module_map import fold
from parity.weights.weight_map import make_weight_map


class SecondTrace:
    """A golden trace as the port of a comparison: its arrays are read, and nothing runs."""

    inlines = False

    def __init__(self, golden: Golden) -> None:
        self._golden = golden
        self._cases = golden.cases

    def paths(self) -> Collection[str]:
        """All modules of the model, recorded or not."""
        return self._golden.modules.keys()

    def pair(self, reference: Reference, options: Options) -> Pairing:
        """Modules of the same path, and tensors of the same values."""
        modules, tensors, other = reference.modules(), reference.tensors(), self._golden
        found = make_weight_map(tensors, other.tensors)
        folding = fold(modules, other.modules, found, {})
        sides = ({one.full_name: one for one in side} for side in (tensors, other.tensors))
        refs, ports = sides
        return Pairing(len(modules), folding, tuple(_in_order(one, refs, ports) for one in found))

    def prepare(self, context: Context, given: Arguments) -> None:
        """Nothing: nothing runs."""

    def record(self, context: Context, scope: Scope, ref: Trace, given: Arguments) -> Trace:
        """The recorded calls, of whatever arguments they were made."""
        context.store.adopt(self._golden.arrays.find)
        return self._cases[context.case.name, context.case.path].trace

    def judge(self, context: Context, compared: Compared) -> Sequence[CaseRecord]:
        """Judged rows by what each call was given and returned in both recordings."""
        matches, calls = compared.alignment.matches, compared.calls
        float64 = context.reference.float64(context.case)
        store, sides = context.store, Sides(float64, {}, "__call__")
        recording = Recording(matches, calls[0], store)
        found, exclusives = judge_apart(context.case, recording, float64, compared.free)
        weights = context.weights
        return [CaseRecord(matches, calls[0], sides, exclusives, weights, store, found)]

    def notes(self, trace: Trace) -> tuple[str, ...]:
        """None: the recording has its own."""
        return ()


def _in_order(line: Weight, refs: Mapping[str, Tensor], ports: Mapping[str, Tensor]) -> Weight:
    """The line: of two models of one framework the axes have one order."""
    usual = Transform(tuple(range(len(line.shape))))
    if not line.transform or line.transform == usual:
        return line
    before, after = refs[line.name], ports[line.nnx_name]
    if before.shape == after.shape and (before.read() == after.read()).all():
        return replace(line, transform=usual)
    text = f"its axes are in the order {line.transform}"
    return replace(line, transform="", cause="weights_layout", finding=text)
