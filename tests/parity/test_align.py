import numpy as np
import pytest

from parity.align import leaves
from parity.align.calls import align
from parity.align.readings import Values
from parity.core.calls import Call, Leaf, ModuleInfo, Trace
from parity.core.globs import renamed
from parity.core.problems import PORT_LACKS, REF_LACKS, ProblemKind
from parity.core.store import Buffer
from parity.core.tensors import Weight
from parity.core.verdicts import CONTAINER, IDLE


def leaf(name="", shape=(2, 4, 4, 8), dtype="float32", moved=False, sure=True, value=None):
    if shape is None:
        return Leaf(name, value=value)
    digest = f"{shape}{dtype}{name}".encode()
    return Leaf(name, Buffer(digest, shape, np.dtype(dtype)), moved=moved, sure=sure)


X, Y = (leaf("x"),), (leaf(),)


def call(path, order, parent, inputs=X, outputs=Y, number=0, kind="M"):
    return Call(path, kind, "__call__", number, order, parent, tuple(inputs), tuple(outputs))


def trace(*calls, containers=(), extra=(), bare=()):
    paths = dict.fromkeys([*[c.path for c in calls], *containers, *extra])
    tensors = {p: {} if p in bare else {"weight": 8} for p in paths}
    info = {p: ModuleInfo(p, "M", p in containers, tensors[p], {}) for p in paths}
    return Trace(calls, info)


def run(ref, port, rename=None, declared=None):
    """The alignment of two traces whose modules hold the same where they are called the same."""
    rename, names = rename or {}, {p for p, info in port.modules.items() if info.parameters}
    lines = []
    for path in (path for path, info in ref.modules.items() if info.parameters):
        name = renamed(path, rename)
        found = next(
            (one for one in (name, f"{name}.b", name.removesuffix(".b")) if one in names), ""
        )
        leaf = f"{found}.weight" if found else ""
        lines.append(Weight(f"{path}.weight", leaf, "parameter", (8,), (8,)))
    return align(ref, port, rename=rename, declared=declared or {}, weight_map=lines)


def match_inputs(ref, port):
    return leaves.match_inputs(ref, port, Values(None))


def match_outputs(path, ref, port, declared):
    return leaves.match_outputs(path, ref, port, declared, Values(None))


def test_equal_traces_are_covered():
    both = trace(call("a", 0, 1), call("", 1, -1), containers=["list"])
    found = run(both, both)
    assert [match.ref.path for match in found.matches] == ["a", ""]
    assert found.coverage.complete
    assert found.coverage.declared == {"list": CONTAINER}
    assert (found.coverage.matched_calls, found.coverage.calls) == (2, 2)


def test_nothing_compared_is_not_complete():
    assert not run(trace(), trace()).coverage.complete


def test_a_missing_module_fails_unless_declared():
    ref = trace(call("a", 0, 2), call("b", 1, 2), call("", 2, -1))
    port = trace(call("a", 0, 1), call("", 1, -1))
    found = run(ref, port).coverage
    assert found.unmatched == ("b",)
    assert found.unmatched_calls == ("b call 0: the port made no such call",)
    assert not found.complete
    assert run(ref, port, declared={"b": "folded"}).coverage.complete


def test_a_missing_second_call_fails():
    ref = trace(call("a", 0, 2), call("a", 1, 2, number=1), call("", 2, -1))
    port = trace(call("a", 0, 1), call("", 1, -1))
    assert run(ref, port).coverage.unmatched_calls == ("a call 1: the port made no such call",)
    assert run(port, ref).coverage.unmatched_calls == ("a call 1: the reference made no such call",)


def test_a_module_idle_on_both_sides_is_said():
    both = trace(call("", 0, -1), extra=["spare"])
    assert run(both, both).coverage.declared == {"spare": IDLE}


def test_other_input_shapes_inline_a_call_and_its_children_move_up():
    ref = trace(call("a.b", 0, 1), call("a", 1, 2), call("", 2, -1))
    small = leaf("x", (2, 2, 2, 8))
    port = trace(call("a.b", 0, 1), call("a", 1, 2, inputs=[small]), call("", 2, -1))
    found = run(ref, port)
    assert [match.ref.path for match in found.matches] == ["a.b", ""]
    assert found.matches[0].parent == 2
    assert "shape (2, 2, 2, 8) instead of (2, 4, 4, 8)" in found.coverage.inlined["a"]


def test_modules_that_one_side_has_alone_count_with_the_one_around_them():
    ref = trace(call("a.b", 0, 1), call("a", 1, 2), call("", 2, -1), bare=["a"])
    port = trace(call("a", 0, 1), call("", 1, -1))
    found = run(ref, port).coverage
    assert found.complete
    assert found.inlined == {"a": "the port does not call it: counted with the call around it"}
    found = run(port, ref).coverage
    assert found.complete
    assert found.matched == ("a", "")


def test_a_module_renamed_to_the_one_around_it():
    ref = trace(call("a.b", 0, 1), call("a", 1, 2), call("", 2, -1), bare=["a"])
    port = trace(call("a", 0, 1), call("", 1, -1))
    found = run(ref, port, rename={"a.b": "a"})
    assert [(m.ref.path, m.port.path) for m in found.matches] == [("a.b", "a"), ("", "")]
    assert found.coverage.complete
    assert list(found.coverage.inlined) == ["a"]


@pytest.mark.parametrize(
    ("rename", "path", "expected"),
    [
        ({"a.b": "x"}, "a.b", "x"),
        ({"enc.*.conv": "e.*.c"}, "enc.3.conv", "e.3.c"),
        ({"*.gamma": "*.norm"}, "a.b.gamma", "a.b.norm"),
        ({"a": "x"}, "a.b", "a.b"),
        ({"a.*": "x.*", "a.*.fc": "x.*.linear"}, "a.0.fc", "x.0.linear"),
        ({"a.*.fc": "x.*.linear", "a.*": "x.*"}, "a.0.fc", "x.0.linear"),
        ({"a.0": "first", "*": "y.*", "a.*": "x.*"}, "a.0", "first"),
        ({"a.*": "x.*", "*.a": "y.*"}, "a.a", "y.a"),  # the last of those that say as much
    ],
)
def test_rename(rename, path, expected):
    assert renamed(path, rename) == expected


def test_inputs_pair_by_name_then_by_order():
    ref = [
        leaf("sample"),
        leaf("zq", (2, 8)),
        leaf("cache.conv1", (2, 2)),
        leaf("cache.spare", (1,)),
    ]
    port = [leaf("x"), leaf("cache.conv1", (2, 2)), leaf("zq", (2, 8)), leaf("own", (3,))]
    names = [(m.ref.name, m.port.name) for m in match_inputs(ref, port)]
    assert sorted(names) == [("cache.conv1", "cache.conv1"), ("sample", "x"), ("zq", "zq")]


def test_variadic_arguments_pair_by_order():
    ref = [leaf("f"), leaf("zq", (2, 8))]
    port = [leaf("args.0"), leaf("args.1", (2, 8))]
    names = [(m.ref.name, m.port.name, m.problem) for m in match_inputs(ref, port)]
    assert names == [("f", "args.0", None), ("zq", "args.1", None)]
    assert [m.problem for m in match_inputs(ref[:1], port[:1])] == [None]


def test_outputs_pair_by_name_or_a_bare_array_with_the_first():
    nested = [leaf("0"), leaf("1.conv", (2, 2))]
    both = match_outputs("m", nested, nested, {})
    assert [(m.ref.name, m.problem) for m in both] == [("0", None), ("1.conv", None)]
    bare = match_outputs("m", nested, [leaf()], {})
    assert bare[0].problem is None
    assert bare[1].problem == PORT_LACKS
    assert not bare[1].declared
    assert match_outputs("m", nested, [leaf()], {"m#1.*": "why"})[1].declared == "why"
    flags = [leaf("0", None), leaf("1")]  # (None, array) against a bare array
    (only,) = match_outputs("m", flags, [leaf()], {})
    assert (only.ref.name, only.problem) == ("1", None)
    spare = match_outputs("m", [leaf()], [leaf("0"), leaf("1", (2, 2))], {})
    assert [m.problem for m in spare] == [None, REF_LACKS]


def test_what_can_be_told_without_values():
    def problem(ref, port):
        (match,) = match_outputs("m", [ref], [port], {})
        return str(match.problem or "")

    assert problem(leaf(), leaf(shape=(2, 4, 4, 9))) == "shape (2, 4, 4, 9) instead of (2, 4, 4, 8)"
    assert problem(leaf(), leaf(dtype="int32")) == "dtype int32 instead of float32"
    assert problem(leaf(dtype="int64"), leaf(dtype="int32")) == ""
    assert problem(leaf(dtype="float32"), leaf(dtype="bfloat16")) == ""
    assert problem(leaf(dtype="bool"), leaf(dtype="int32")) != ""
    one, two = leaf(shape=None, value=3), leaf(shape=None, value=4)
    assert problem(one, two) == "value 4 instead of 3"


def test_shapes_decide_on_the_layout_then_values_then_kind():
    (match,) = match_outputs(
        "m", [leaf(shape=(2, 5, 5, 8), moved=True)], [leaf(shape=(2, 8, 5, 5))], {}
    )
    assert (match.reading.axes, match.problem) == ((0, 3, 1, 2), None)
    (match,) = match_outputs("m", [leaf(shape=(2, 8, 5))], [leaf(shape=(2, 5, 8))], {})
    assert match.reading.axes == (0, 2, 1)
    (match,) = match_outputs("m", [leaf(shape=(2, 5, 8))], [leaf(shape=(2, 5, 2, 4))], {})
    assert match.reading.shape == (2, 5, 2, 4)
    cube = leaf(shape=(2, 4, 4, 4), moved=True, sure=False)
    (match,) = match_outputs("m", [cube], [leaf(shape=(2, 4, 4, 4))], {})
    assert (match.reading, match.problem) == (None, None)
    (match,) = match_outputs("m", [leaf(shape=(2, 3, 5))], [leaf(shape=(3, 2, 5))], {})
    assert match.problem.kind is ProblemKind.SHAPE
