from functools import partial

from parity.core.measurements import ChildInput, Error
from parity.core.problems import Problem, ProblemKind
from parity.core.verdicts import Row
from parity.judge.faults import Found, find_faults
from parity.judge.verdict import Judgement

CALLS = [("a.x", 0, 2), ("a.y", 1, 2), ("a", 2, 5), ("b.x", 3, 4), ("b", 4, 5), ("", 5, -1)]
PARENTS = {order: parent for _, order, parent in CALLS}
over = partial(Problem, ProblemKind.ERROR)
FINE = Judgement("PASS")
OWN = Judgement("FAIL", over("R 99 > 10"), "exclusive")
INSIDE = Judgement("FAIL", over("R 99 > 10 with all that is inside it"), "inclusive")


def row(path, order, parent, call=0, rel=1e-7, leaf=""):
    return Row(
        rung="", case="c", path=path, nnx_path=path, kind="M", call=call, leaf=leaf, shape=(1,),
        dtype="float32", metrics=None, inclusive=Error(rel, rel, 0),
        exclusive=Error(rel, rel, 0), gain=1.0, grade="", verdict="PASS", reason="",
        order=order, parent=parent,
    )  # fmt: skip


def faults(child_inputs=None, **judged):
    """The faults if these verdicts are given; in the names `_` stands for a dot, `root` for ""."""
    by_path = {"" if key == "root" else key.replace("_", "."): v for key, v in judged.items()}
    child_inputs = child_inputs or {}
    found = [
        Found(row(*call), by_path.get(call[0], FINE), child_inputs.get(call[0], ()))
        for call in CALLS
    ]
    return find_faults(found, PARENTS)


def paths(**judged):
    return [fault.path for fault in faults(**judged)]


def test_every_call_whose_own_code_fails_is_named():
    assert paths(a_x=OWN) == ["a.x"]
    assert paths(b_x=OWN, a_y=OWN) == ["a.y", "b.x"]
    assert paths(a_x=OWN, a=OWN, root=OWN) == ["a.x", "a", ""]  # one inside the other: both


SHAPE, TYPE = (
    Judgement("FAIL", Problem(kind, "other"), "exclusive")
    for kind in (ProblemKind.SHAPE, ProblemKind.DTYPE)
)


def test_another_form_is_the_fault_of_the_call_inside_that_has_it():
    assert paths(a_x=SHAPE, a=SHAPE, root=SHAPE) == ["a.x"]
    assert paths(b=TYPE, root=TYPE) == ["b"]
    assert paths(a=SHAPE, root=SHAPE) == ["a"]
    assert paths(a_x=TYPE, a=SHAPE) == ["a.x", "a"]
    assert paths(a_x=SHAPE, a=OWN) == ["a.x", "a"]
    assert paths(a_x=OWN, a=SHAPE) == ["a.x", "a"]


def test_an_inclusive_failure_counts_where_nothing_inside_explains_it():
    assert paths(a=INSIDE, root=INSIDE) == ["a"]
    assert paths(a_x=OWN, a=INSIDE, root=INSIDE) == ["a.x"]
    assert paths(a_x=OWN, root=INSIDE) == ["a.x"]  # `a` happened to hold


def test_a_fault_counts_from_the_call_that_first_receives_it():
    error = Error(1.0, 1.0, 0, r=99)
    child_inputs = {"": (ChildInput(5, 4, "b", "x", "a", error),)}
    (first, second) = faults(child_inputs, root=OWN, b=OWN)
    assert (first.path, first.segment) == ("", "between `a` and the input of `b`")
    assert (second.path, second.segment) == ("b", "after `x`")
    assert "a child input is off by 1.0e+00" in first.magnitude
    child_inputs = {"a": (ChildInput(2, 0, "a.x", "x", "", error),)}
    (only,) = faults(child_inputs, a=OWN)
    assert only.segment == "between its own input and the input of `x`"


def test_calls_of_one_module_are_one_fault():
    found = [
        Found(row("a", 0, 2, leaf="1", rel=0.5), OWN),
        Found(row("a", 0, 2, leaf="0", rel=0.9), OWN),
        Found(row("a", 1, 2, call=1), OWN),
        Found(row("", 2, -1), FINE),
    ]
    (fault,) = find_faults(found, {0: 2, 1: 2, 2: -1})
    assert (fault.path, fault.call, fault.leaf, fault.calls) == ("a", 0, "0", 2)
    assert (fault.segment, "relative 9.0e-01" in fault.magnitude) == ("", True)
