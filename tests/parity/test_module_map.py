from parity.core.calls import ModuleInfo
from parity.core.tensors import TensorPart, Weight
from parity.weights.module_map import around, fold


def modules(**tensors):
    """Modules by path (`__` for a dot), with a tensor of each of these names."""
    paths = {"": "", **{path.replace("__", "."): own for path, own in tensors.items()}}
    return {
        path: ModuleInfo(path, "M", False, dict.fromkeys(own, 9), {}) for path, own in paths.items()
    }


def run(ref, port, rename=None, returned=None, **leaves):
    """The folding of modules whose tensors (`__` for a dot) are in these leaves of the port."""
    lines = [
        Weight(name.replace("__", "."), leaf, "parameter", (9,), (9,))
        for name, leaf in leaves.items()
    ]
    return fold(ref, port, lines, rename or {}, returned)


def test_names_say_nothing_where_tensors_do():
    found = run(
        modules(a="w", b="w", c="", c__d="w"),
        modules(a="k", x="k", y="", y__z="k"),
        a__w="x.k", b__w="a.k", c__d__w="y.z.k",
    )  # fmt: skip
    assert found.port_of == {"": "", "a": "x", "b": "a", "c": "y", "c.d": "y.z"}


def test_a_wrapper_level_more_on_either_side():
    flat, deep = modules(a="wb"), modules(a="", a__conv="wb")
    leaves = {"a__w": "a.conv.w", "a__b": "a.conv.b"}
    assert run(flat, deep, **leaves).port_of == {"": "", "a": "a.conv"}
    back = {"a__conv__w": "a.w", "a__conv__b": "a.b"}
    assert run(deep, flat, **back).port_of == {"": "", "a.conv": "a"}


def test_a_module_whose_tensors_are_elsewhere_is_held_and_has_no_counterpart():
    ref, port = modules(a="w", a__norm="w", b="w"), modules(a="wx")
    found = run(ref, port, a__w="a.w", a__norm__w="a.x", b__w="")
    assert found.port_of == {"": "", "a": "a"}
    assert found.held == {"", "a", "a.norm"}


def test_layers_that_are_stacked_come_in_turn():
    lines = [
        Weight(
            f"layers.{i}.fc.w", "all.fc.k", "parameter", (9,), (3, 9), at=TensorPart(((i, None),))
        )
        for i in range(3)
    ]
    ref = modules(**{f"layers__{i}": "" for i in range(3)})
    ref |= modules(**{f"layers__{i}__fc": "w" for i in range(3)})
    found = fold(ref, modules(all="", all__fc="k"), lines, {})
    assert found.port_of["layers.1"] == "all"
    assert found.port_of["layers.2.fc"] == "all.fc"
    assert found.turn_of["layers.2.fc"] == (2, 3)


class Run:
    """A run in which `pairs` return the same, and all but `idle` are called; of one side those
    return the very same that `values` gives the same.
    """

    def __init__(self, *pairs, idle=(), values=()):
        self.pairs, self.idle, self.values = pairs, idle, dict(values)

    def steps(self, paths, port):
        found = {}
        for path in paths:
            found.setdefault(self.values.get(path, path), []).append(path)
        return [*found.values()]

    def called(self, path):
        return path not in self.idle

    def same(self, path, name):
        return (path, name) in self.pairs


def test_of_modules_around_the_same_tensors_those_that_return_the_same_belong_together():
    ref, port = modules(a="", a__seq="", a__seq__fc="w"), modules(x="", x__fc="k")
    leaves = {"a__seq__fc__w": "x.fc.k"}
    assert run(ref, port, returned=Run(("a.seq", "x")), **leaves).port_of["a.seq"] == "x"
    assert run(ref, port, returned=Run(("a", "x")), **leaves).port_of["a"] == "x"
    assert "a.seq" not in run(ref, port, **leaves).port_of
    idle = Run(idle=("a",))
    assert run(ref, port, returned=idle, **leaves).port_of["a.seq"] == "x"


def test_a_wrapper_is_the_same_step_as_what_is_inside_it():
    ref = modules(a="", a__res="", a__res__seq="", a__res__seq__fc="w")
    port = modules(x="", x__in="", x__in__y="", x__in__y__z="", x__in__y__z__fc="k")
    leaves = {"a__res__seq__fc__w": "x.in.y.z.fc.k"}
    wrapped = Run(values={"x": 1, "x.in": 1})
    found = run(ref, port, returned=wrapped, **leaves).port_of
    assert {path: found[path] for path in ("a", "a.res", "a.res.seq")} == {
        "a": "x",
        "a.res": "x.in.y",
        "a.res.seq": "x.in.y.z",
    }


def test_what_rename_says_counts_whatever_is_held():
    ref, port = modules(a="", a__conv="w"), modules(a="k", b="k")
    found = run(ref, port, {"a.conv": "a"}, a__conv__w="b.k")
    assert found.port_of == {"": "", "a.conv": "a", "a": "b"}


def test_a_tensor_that_two_modules_share_is_one():
    found = run(modules(emb="w", head="w"), modules(table="k"), emb__w="table.k", head__w="table.k")
    assert found.port_of == {"": "", "emb": "table"}
    assert {"emb", "head"} <= found.held
    assert {"emb", "head"} <= found.bare


def test_what_has_no_tensors_goes_by_its_place():
    ref, port = modules(a="", a__fc="w", a__act=""), modules(x="", x__fc="k", x__act="")
    assert run(ref, port, a__fc__w="x.fc.k").port_of["a.act"] == "x.act"


def test_the_nearest_module_around():
    assert around("a.b.c", ["", "a", "a.b.c.d"]) == "a"
    assert around("x.y", ["a"]) == ""
