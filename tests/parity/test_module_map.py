from parity.core.calls import ModuleInfo
from parity.weights.module_map import Folding, around, fold


def modules(**sizes):
    """Modules by path (`__` for a dot), with one parameter of each size."""
    paths = {"": (), **{path.replace("__", "."): own for path, own in sizes.items()}}
    return {
        path: ModuleInfo(path, "M", False, {str(i): n for i, n in enumerate(own)}, {})
        for path, own in paths.items()
    }


def run(ref, port, **rename):
    return fold(ref, port, {path: rename.get(path, path) for path in ref})


def test_a_wrapper_level_more_on_either_side():
    flat = modules(a=(9, 3))
    deep = modules(a=(), a__conv=(9, 3))
    assert run(flat, deep) == Folding({"": "", "a": "a"}, {}, {"a.conv": "a"})
    assert run(deep, flat) == Folding({"": "", "a": "a"}, {"a.conv": "a"}, {})


def test_a_module_written_out_in_the_one_around_its_parent():
    ref = modules(a=(2,), a__down=(), a__down__conv=(9, 3))
    port = modules(a=(2, 9, 3))
    assert run(ref, port).ref == {"a.down.conv": "a"}


def test_tensors_must_be_the_same_in_number_and_size():
    assert run(modules(a=(9, 3)), modules(a=(), a__conv=(9,))).port == {}
    assert run(modules(a=(9, 3)), modules(a=(), a__conv=(9, 3, 3))).port == {}


def test_another_name_is_not_another_structure():
    found = run(modules(a=(), a__norm=(4,)), modules(a=(), a__layer_norm=(4,)))
    assert (found.ref, found.port) == ({}, {})
    moved = run(modules(a=(), a__norm=(4,)), modules(a=(), norm=(4,)))
    assert (moved.ref, moved.port) == ({}, {})


def test_a_name_that_rename_gives_away_is_taken():
    ref = modules(a=(), a__conv=(9,))
    port = modules(a=(9,))
    found = run(ref, port, **{"a.conv": "a"})
    assert found.port_of == {"": "", "a.conv": "a"}
    assert found.ref == found.port == {}


def test_a_tied_tensor_counts_once():
    ref = modules(emb=(9,), head=(9,))
    tied = {"emb.0": "emb.0", "head.0": "emb.0"}
    same = {path: path for path in ref}
    assert fold(ref, modules(emb=(9,)), same, tied).ref == {"head": ""}
    # neither module is in the port, which holds the tensor once around them
    port = {"": ModuleInfo("", "M", False, {"table": 9}, {})}
    assert fold(ref, port, same, tied).ref == {"emb": "", "head": ""}
    assert fold(ref, modules(emb=(9,), lm=(9,)), same, tied).ref == {}


def test_the_nearest_module_around():
    assert around("a.b.c", ["", "a", "a.b.c.d"]) == "a"
    assert around("x.y", ["a"]) == ""
