from parity.localise import find_faults
from parity.records import Inclusive, Row


def row(path, order, parent, call=0, rel=1e-7, leaf=""):
    return Row(
        rung="", case="c", path=path, nnx_path=path, kind="M", call=call, leaf=leaf, shape=(1,),
        dtype="float32", metrics=None, inclusive=Inclusive(rel, rel, 0), grade="", verdict="PASS",
        reason="R 99 > 10", order=order, parent=parent,
    )  # fmt: skip


CALLS = [("a.x", 0, 2), ("a.y", 1, 2), ("a", 2, 5), ("b.x", 3, 4), ("b", 4, 5), ("", 5, -1)]


PARENTS = {order: parent for _, order, parent in CALLS}


def faults(*failing):
    rows = [row(*call, rel=1.0 if call[0] in failing else 1e-7) for call in CALLS]
    found = find_faults(rows, [r.path in failing for r in rows], PARENTS)
    return [fault.path for fault in found]


def test_the_deepest_failing_call_is_named():
    assert faults("a.x", "a", "") == ["a.x"]


def test_a_container_is_named_if_its_children_hold():
    assert faults("a", "") == ["a"]
    assert faults("") == [""]


def test_independent_faults_are_all_named_in_order():
    assert faults("b.x", "b", "a.y", "a", "") == ["a.y", "b.x"]


def test_a_fault_deep_inside_excuses_every_container_around_it():
    assert faults("a.x", "") == ["a.x"]  # `a` happened to hold


def test_calls_of_one_module_are_one_fault():
    rows = [row("a", 0, 2, leaf="1", rel=0.5), row("a", 0, 2, leaf="0", rel=0.9),
            row("a", 1, 2, call=1), row("", 2, -1)]  # fmt: skip
    (fault,) = find_faults(rows, [True, True, True, False], {0: 2, 1: 2, 2: -1})
    assert (fault.path, fault.call, fault.leaf, fault.calls) == ("a", 0, "0", 2)
    assert "relative 9.0e-01" in fault.evidence
