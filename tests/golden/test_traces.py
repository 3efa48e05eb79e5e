"""Two traces compared: what differs is named, with what it was given, and nothing else."""

import shutil
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import tiny
import torch
from broken import refused

import parity
from parity.core.exceptions import InputError
from parity.traces.compare import compare_traces
from parity.traces.judge import half
from parity.traces.record import record_pair
from tests.nets import torch_of
from tests.reports import places


def first_case(*asked):
    return tiny.cases(*asked)[:1]


ONE = replace(tiny.PAIR, cases=first_case)


@pytest.fixture(scope="module")
def edited(tmp_path_factory):
    """A trace of the tiny pair whose reference `edit` has changed, or is made from another seed."""

    def record(edit=lambda reference: None, seed=tiny.ASKED["seed"]):
        def make_torch(options, _):
            reference = tiny.make_torch(options, seed)
            edit(reference)
            return reference

        folder = tmp_path_factory.mktemp("edited")
        record_pair(replace(ONE, make_torch=make_torch), folder, **tiny.ASKED)
        return folder

    return record


@pytest.fixture(scope="module")
def plain(edited):
    return edited()


def test_of_the_same_model_nothing_differs(plain, edited):
    report = compare_traces(plain, edited())
    assert report.verdict == "PASS"
    table = report.table
    assert set(table["verdict"]) == {"PASS"}
    for column in ("mae", "max_abs", "incl_mae", "excl_mae"):
        assert (table[column] == 0).all()
    assert table["R"].max() <= 1
    assert report.coverage.matched_calls == report.coverage.calls > 8
    assert all(line.transform and not line.cause for line in report.weights)


def batch_norm(reference):
    reference.block.norm = torch.nn.BatchNorm2d(8).eval()


def test_a_count_of_batches_is_no_tensor_too_many(edited):
    folder = edited(batch_norm)
    report = compare_traces(folder, folder)
    assert report.verdict == "PASS", report.notes


def gelu(reference):
    reference.block.act = torch.nn.GELU()


def epsilon(reference):
    reference.block.norm.eps = 0.1


def flipped_kernel(reference):
    weight = reference.block.conv.weight
    weight.data = weight.data.transpose(0, 1).contiguous()


@pytest.mark.parametrize(
    ("edit", "path", "cause"),
    [(gelu, "block.act", "unknown"), (epsilon, "block.norm", "unknown"),
     (flipped_kernel, "block.conv", "weights_layout")],
)  # fmt: skip
def test_an_edited_module_is_the_only_fault(plain, edited, edit, path, cause):
    report = compare_traces(plain, edited(edit))
    assert report.verdict == "FAIL"
    assert places(report) == [(path, "", cause)]
    rows = report.table.set_index("path")
    assert (rows.loc["stem"]["verdict"], rows.loc["stem"]["mae"]) == ("PASS", 0)
    behind = next(row for row in report.rows if row.path == "head")
    assert behind.verdict == "UNKNOWN"
    assert behind.reason.startswith("not measured: what it was given is not the same in both")


def recoded(module, forward):
    """Give a module another `forward`; it keeps its kind and what it holds."""
    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {"forward": forward})


def doubling(reference):
    right = type(reference.block).forward
    recoded(reference.block, lambda self, x, *more, **named: right(self, 2 * x, *more, **named))


def test_code_of_a_container_is_told_by_what_it_hands_on(plain, edited):
    report = compare_traces(plain, edited(doubling))
    assert places(report) == [
        ("block", "between its own input and the input of `norm`", "scale_or_offset")
    ]


def test_code_that_cancels_but_for_rounding_is_no_fault(plain, edited):
    """As in a live comparison: what the block returns holds."""

    def thrice(reference):
        block = type(reference.block)

        class Thrice(block):
            def forward(self, x, scale=1.0, cache=None):
                h = self.conv(self.act(self.norm(x) * 3) / 3) * scale + x
                return h, {"mean": h.mean((2, 3)), "none": cache}

        Thrice.__name__ = block.__name__
        reference.block.__class__ = Thrice

    report = compare_traces(plain, edited(thrice))
    assert not report.faults
    row = next(row for row in report.rows if row.path == "block")
    assert row.verdict == "WARN"
    assert row.reason.endswith("but what the call returns holds")
    assert row.metrics.mae > 0  # to the bit it would not need float64


def test_rounding_upstream_is_no_fault(plain, edited):
    """The stem multiplies and divides: what comes behind is given the same up to rounding."""

    def rounded(reference):
        stem = reference.stem.forward
        reference.stem.forward = lambda x: stem(x) * 3 / 3

    report = compare_traces(plain, edited(rounded))
    assert report.verdict == "PASS"
    table = report.table.set_index("path")
    assert 0 < table.loc["stem"]["excl_mae"] < 1e-6
    behind = table.loc["head"]
    assert behind["mae"] > 0
    assert 0 < behind["R"] < 1


def test_a_small_mistake_is_charged_to_nobody_behind_it(plain, edited):
    """What comes behind is given 1e-5 less: so much more of its own is no mistake."""

    def less(reference):
        stem = reference.stem.forward
        reference.stem.forward = lambda x: stem(x) * (1 - 1e-5)

    report = compare_traces(plain, edited(less))
    assert [path for path, *_ in places(report)] == ["stem"]
    behind = [row for row in report.rows if row.path not in ("stem", "")]
    assert {row.verdict for row in behind} == {"PASS"}


def test_what_counts_as_the_same_goes_by_the_type():
    """Four roundings of bfloat16 are more than half of the digits of float32."""
    single, coarse, exact = (np.dtype(name) for name in ("float32", ml_dtypes.bfloat16, "int64"))
    assert half(single, np.dtype("float64")) == half(exact) == 2**-12
    assert half(single, coarse) == 2**-4 > 4 * 2**-8


def test_other_weights_are_named(plain, edited):
    report = compare_traces(plain, edited(seed=4))
    assert report.first_fault.path == "stem"
    assert report.first_fault.cause.startswith("weights_")
    assert sum(bool(line.cause) for line in report.weights) == len(report.weights) > 5


def shorter(reference):
    def forward(self, x):
        h, stats = self.block(self.stem(x))
        return {"logits": self.head(stats["mean"]), "h": h}

    recoded(reference, forward)


def test_a_call_that_only_one_makes_is_incomplete_coverage(plain, edited):
    report = compare_traces(plain, edited(shorter))
    assert report.verdict == "FAIL"
    texts = report.coverage.unmatched_calls
    assert "block call 1: the port made no such call" in texts
    assert len(texts) == 4


def inlined(reference):
    def forward(self, x, scale=1.0, cache=None):
        h = self.conv(torch.relu(self.norm(x))) * scale + x
        return h, {"mean": h.mean((2, 3)), "none": cache}

    recoded(reference.block, forward)


def test_a_module_that_only_one_calls_is_missing_from_the_other(plain, edited):
    other = edited(inlined)
    for pair, side in (((plain, other), "port"), ((other, plain), "reference")):
        report = compare_traces(*pair)
        assert report.verdict == "FAIL"
        texts = [f"block.act call {number}: the {side} made no such call" for number in (0, 1)]
        assert list(report.coverage.unmatched_calls) == texts
        assert not report.coverage.inlined


def scaling(scale):
    def forward(self, x):
        h, _ = self.block(self.stem(x))
        h, stats = self.block(h, scale=scale)
        return {"logits": self.head(stats["mean"]), "h": h}

    return lambda reference: recoded(reference, forward)


def test_a_plain_value_is_charged_to_who_hands_it_on(plain, edited):
    report = compare_traces(plain, edited(scaling(0.6)))
    assert places(report) == [("", "between `block` and the input of `block`", "glue")]
    magnitude = report.first_fault.magnitude
    assert "a child input has value 0.6 instead of 0.5 in `scale` of `block`" in magnitude
    assert compare_traces(plain, edited(scaling(0.5))).verdict == "PASS"


def test_a_report_on_two_traces_says_which_stands_for_the_port(plain, edited):
    other = edited(gelu)
    report = compare_traces(plain, other)
    assert report.name == f"{plain.name} against {other.name}"
    assert (report.facts["reference"], report.facts["port"]) == (str(plain), f"the trace {other}")


def test_a_case_that_only_one_has_too(plain, recorded):
    report = compare_traces(plain, recorded)
    assert report.verdict == "FAIL"
    assert [text.rpartition(" ")[2] for text in report.coverage.unmatched_calls] == [
        "forward/image", "call/noise", "call/h",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"pair": "other"}, "of pair 'tiny' and 'other'"),
        ({"only": ["block"]}, "of --only [] and ['block']"),
        ({"depth": 1}, "of --depth None and 1"),
        ({"layout": {"*": "as_is"}}, "of layout {} and {'*': 'as_is'}"),
    ],
)
def test_traces_of_other_things_are_refused(recorded, trace, resign, change, part):
    resign(trace, lambda content: content.update(change))
    with refused(part):
        compare_traces(recorded, trace)


def test_other_inputs_are_refused(plain, tmp_path):
    record_pair(ONE, tmp_path, seed=4)
    with refused("of other inputs in 1 cases", "__call__/image first", "seed 3 and 4"):
        compare_traces(plain, tmp_path)


def test_inputs_that_cases_before_made_may_differ(recorded, tmp_path):
    """The last case takes what the edited reference returned."""

    def make_torch(*asked):
        reference = tiny.make_torch(*asked)
        gelu(reference)
        return reference

    record_pair(replace(tiny.PAIR, make_torch=make_torch), tmp_path, **tiny.ASKED)
    report = compare_traces(recorded, tmp_path)
    assert report.first_fault.path == "block.act"
    assert {row.case for row in report.rows} >= {"forward/image", "call/h"}


def test_a_spoilt_trace_is_refused(recorded, trace):
    one, other = sorted((trace / "arrays").iterdir())[:2]
    shutil.copy(one, other)
    with pytest.raises(InputError, match=other.name):
        compare_traces(recorded, trace)


def test_calls_of_the_second_trace_alone_are_missing_though_the_first_calls_nothing_chosen(
    tmp_path,
):
    def forward(self, x):
        return self.b(x) if self.often or x.sum() > 0 else x.relu()

    xs = {name: np.full((2, 3), value, np.float32) for name, value in (("up", 1), ("down", -1))}
    for name, often in (("rarely", False), ("often", True)):
        pair = parity.Pair(
            "mine",
            lambda options, seed, often=often: torch_of(forward, b=torch.nn.ReLU(), often=often),
            lambda *_: None,
            lambda *_: tuple(parity.Case(f"call/{name}", (x,)) for name, x in xs.items()),
            offline=parity.Offline(lambda reference: {}, lambda *_: None),
        )
        record_pair(pair, tmp_path / name, only=("b",))
    for pair in (("rarely", "often"), ("often", "rarely")):
        report = compare_traces(*(tmp_path / name for name in pair))
        assert report.verdict == "FAIL"
        assert len(report.coverage.unmatched_calls) == 1
