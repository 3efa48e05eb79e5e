"""`only=` and `depth=`: the chosen modules are judged as in a whole comparison, and no others."""

import dataclasses

import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity.core.pair import Case
from parity.options.options import Options
from parity.options.scope import Scope, outermost, scope_of, touches
from parity.pipeline import run_pair
from tests.nets import torch_of
from tests.reports import compare

FEATURES = {"torch_method": "features", "nnx_method": "features"}

PATHS = ("", "stem", "down", "down.0", "down.0.conv", "down.0.conv.inner", "up", "up.norm")


def chosen(*only, called="", depth=None, rename=None):
    ours = [*PATHS, "down.0.extra"]
    options = Options(only=only, depth=depth, rename=rename)
    return scope_of(Case("", path=called), PATHS, ours, options)


def test_everything_unless_something_is_asked():
    assert chosen() == Scope()


def test_what_a_glob_matches_and_what_is_inside():
    choice = chosen("down.0", "*.norm")
    inside = {"down.0", "down.0.conv", "down.0.conv.inner", "up.norm"}
    assert choice == Scope(frozenset(inside), frozenset({*inside, "down.0.extra"}), whole=False)
    assert outermost(["down*"], PATHS) == ("down",)


def test_depth_counts_names_from_the_called_or_the_chosen_module():
    choice = chosen(depth=2)
    assert choice.whole
    assert choice.ref == {"stem", "down", "down.0", "up", "up.norm"}
    assert choice.deeper == ("down.0.conv", "down.0.conv.inner")
    choice = chosen("down.0", depth=1)
    assert (choice.ref, choice.whole) == ({"down.0", "down.0.conv"}, False)
    assert choice.deeper == ("down.0.conv.inner",)
    assert choice.port == choice.ref  # at a depth of the reference's, not of its own


def test_a_called_module_inside_the_choice_is_judged_itself():
    choice = chosen("down", called="down.0")
    assert choice.whole
    assert choice.ref == {"down.0.conv", "down.0.conv.inner"}
    assert not chosen("up", called="down.0").ref


def test_the_port_s_names():
    assert chosen("up", rename={"up*": "rise*"}, depth=1).port == {"rise", "rise.norm"}


@pytest.mark.parametrize(
    ("called", "alone", "expected"),
    [("", False, True), ("", True, False), ("down", False, True), ("down.0.conv", True, True),
     ("up", False, False)],
)  # fmt: skip
def test_which_calls_can_show_it(called, alone, expected):
    assert touches(["down.0"], PATHS, called, alone) is expected


@pytest.fixture
def wrong(pair, monkeypatch):
    """A port whose convolutions are off by a factor."""
    own = nnx.Conv.__call__
    monkeypatch.setattr(nnx.Conv, "__call__", lambda self, x: own(self, x) * 1.01)
    return pair


COLUMNS = ["path", "call", "leaf", "kind", "mae", "rel_l2", "incl_mae", "excl_rel_l2", "R", "gain",
           "grade", "verdict"]  # fmt: skip


def test_the_rows_are_those_of_the_whole(wrong, image):
    whole, part = compare(*wrong, (image,)), compare(*wrong, (image,), only=["block"])
    mine = whole.table[whole.table.path.str.startswith("block.") | (whole.table.path == "block")]
    expected, found = mine[COLUMNS].reset_index(drop=True), part.table[COLUMNS]
    assert list(found.path) == list(expected.path)
    for column in COLUMNS:
        if expected[column].dtype == float:
            np.testing.assert_allclose(found[column], expected[column], rtol=1e-3, err_msg=column)
        else:
            assert list(found[column]) == list(expected[column])
    assert [fault.path for fault in whole.faults] == ["stem", "block.conv", "blocks.0.conv"]
    own = whole.faults[1]
    assert [(f.path, f.cause, f.calls) for f in part.faults] == [(own.path, own.cause, own.calls)]


def test_a_part_is_never_a_pass(pair, image):
    report = compare(*pair, (image,), only=["block", "head"])
    assert report.verdict == "WARN"
    assert report.holds
    assert report.notes == (
        "a part only: 5 of 12 modules were chosen ('block', 'head'); of the others this report "
        "says nothing",
    )
    coverage = report.coverage
    assert coverage.complete
    assert coverage.matched == ("block", "block.norm", "block.conv", "block.act", "head")
    assert (coverage.calls, coverage.matched_calls, coverage.modules) == (9, 9, 5)
    assert coverage.parameters == coverage.matched_parameters == 6
    assert report.facts["only"] == ["block", "head"]


def test_of_another_method_the_parts_are_called_as_they_were(pair, image):
    report = compare(
        *pair, (image,), torch_method="features", nnx_method="features", only=["block"]
    )
    assert set(report.table.path) == {"block", "block.norm", "block.conv", "block.act"}
    assert set(report.table.verdict) == {"PASS"}
    assert report.table.R.notna().any()


def test_the_glob_of_everything_is_the_whole(pair, image):
    report = compare(*pair, (image,), only=["*"])
    assert report.verdict == "PASS"
    assert "" in report.coverage.matched


def test_modules_too_deep_count_with_the_one_around_them(wrong, image):
    report = compare(*wrong, (image,), depth=1)
    assert [fault.path for fault in report.faults] == ["stem", "block", ""]
    assert set(report.table.path) == {"stem", "block", "head", ""}
    assert report.coverage.inlined.keys() >= {"block.conv", "blocks.0.norm"}
    assert report.coverage.complete
    assert report.coverage.modules == len(list(wrong[0].named_modules()))
    assert "modules more than 1 levels down" in report.notes[0]


def test_depth_of_a_correct_port(pair, image):
    report = compare(*pair, (image,), depth=0, only=["blocks.0"])
    assert report.verdict == "WARN"
    assert set(report.table.path) == {"blocks.0"}
    assert report.facts["depth"] == 0
    assert compare(*pair, (image,), depth=1).verdict == "WARN"


def test_in_a_program_of_the_port(wrong, image):
    jitted = nnx.jit(lambda model, x: model(x))
    report = compare(*wrong, (image,), nnx_method=jitted, only=["blocks.0"])
    assert [fault.path for fault in report.faults] == ["blocks.0.conv"]


def test_a_module_that_the_port_does_not_call_fails(pair, image, monkeypatch):
    monkeypatch.setattr(type(pair[1].block), "__call__", lambda self, x, scale=1.0: (
        self.conv(x) * scale + x, {"mean": x.mean((1, 2)), "none": None}
    ))  # fmt: skip
    report = compare(*pair, (image,), only=["block.norm"])
    assert report.verdict == "FAIL"


def test_a_choice_is_checked(pair, image):
    with pytest.raises(parity.InputError, match=r"only: 'stme' matches no module .*'stem'"):
        compare(*pair, (image,), only=["stme"])
    with pytest.raises(parity.InputError, match="only: expected a sequence"):
        compare(*pair, (image,), only="stem")
    with pytest.raises(parity.InputError, match="depth -1: expected how many levels"):
        compare(*pair, (image,), depth=-1)
    with pytest.raises(parity.InputError, match=r"emulate: .* only="):
        compare(*pair, (image,), only=["stem"], emulate="bf16")
    with pytest.raises(parity.InputError, match="only: these inputs call no module that 'head'"):
        compare(*pair, (image,), only=["head"], **FEATURES)


@pytest.mark.slow
def test_a_ladder_runs_the_cases_that_can_show_the_choice(pair, image):
    ran = []

    def counted(module, x):
        ran.append(type(module).__name__)
        return module(x)

    small = np.random.default_rng(0).standard_normal((2, 8, 5, 6)).astype(np.float32)
    ladder = parity.Pair(
        name="small",
        make_torch=lambda options, seed: pair[0],
        make_nnx=lambda options, reference: pair[1],
        cases=lambda reference, options, seed: (
            parity.Case("forward/image", (image,), torch=counted),
            parity.Case("features/again", args_from=lambda outputs: (image,), torch=counted,
                        nnx="__call__"),
            parity.Case("call/head", (image.mean((2, 3)) @ np.ones((3, 8), np.float32),),
                        path="head", depth=0, torch=counted),
            parity.Case("call/norm", (small,), path="block.norm", depth=0, torch=counted),
        ),
        rungs=(),
    )  # fmt: skip
    report = run_pair(ladder, only=["block.norm"])
    assert report.verdict == "WARN"
    assert "TorchNet" in ran
    assert "Linear" not in ran
    assert list(report.table["case"].unique()) == ["forward/image", "features/again", "call/norm"]
    assert set(report.table.path) == {"block.norm"}
    whole = run_pair(dataclasses.replace(ladder, name="whole"), depth=1)
    assert "Linear" in ran
    assert whole.facts["depth"] == 1


def test_a_reference_whose_choice_never_runs_does_not_run_the_port(pair, image):
    class Counting(type(pair[1])):
        def __call__(self, x):
            raise AssertionError("not needed")

    reference = torch_of(lambda self, x: self.used(x), used=torch.nn.ReLU(), idle=torch.nn.ReLU())

    with pytest.raises(parity.InputError, match="call no module that 'idle'"):
        compare(reference, Counting(nnx.Rngs(0)), (image,), only=["idle"])
