"""Options that a pair has of its own: data in the pair, words of the commands, one mapping."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from click import ClickException
from click.testing import CliRunner
from flax import nnx

import parity
from parity.cli import cli
from parity.traces.record import record_pair


def rows(text):
    if not text.isdecimal():
        raise ValueError(f"{text!r} is no number of rows")
    return int(text)


ROWS = parity.Option("batch_rows", "How many vectors.", "2", rows, "N")
SCALE = parity.Option("scale", "What they are multiplied by.", 1.5, float)
ASKED = []


def make_torch(options, seed):
    ASKED.append(options)
    return torch.nn.ReLU()


class Relu(nnx.Module):
    def __call__(self, x):
        return nnx.relu(x)


def cases(reference, options, seed):
    x = np.full((options["batch_rows"], 3), options["scale"], np.float32)
    return (parity.Case("call/rows", (x,), source=f"{len(x)} rows"),)


PAIR = parity.Pair(
    "mine", make_torch, lambda options, reference: Relu(), cases, options=(ROWS, SCALE),
    selftest={"batch_rows": "5"}, offline=parity.Offline(lambda reference: {}, lambda *_: Relu()),
)  # fmt: skip
CLASH = replace(PAIR, options=(replace(ROWS, name="seed"),))
NAME = f"{__name__}:PAIR"


def run(*words):
    return CliRunner().invoke(cli, list(map(str, words)), standalone_mode=False)


def test_what_is_given_is_parsed_and_the_rest_has_its_default():
    assert PAIR.resolved() == {"batch_rows": 2, "scale": 1.5}
    assert PAIR.resolved({"batch_rows": "7", "scale": 2.0}) == {"batch_rows": 7, "scale": 2.0}


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"row": 1}, "pair mine: no option 'row'; it has batch_rows, scale"),
        ({"batch_rows": "many"}, "batch_rows: 'many' is no number of rows"),
    ],
)
def test_what_is_no_option_or_no_value_is_refused(given, part):
    with pytest.raises(parity.InputError, match=part):
        parity.run_pair(PAIR, given)


def test_all_functions_of_the_pair_get_them_and_the_report_says_the_source():
    ASKED.clear()
    report = parity.run_pair(PAIR, {"batch_rows": 4})
    assert ASKED == [{"batch_rows": 4, "scale": 1.5}]
    assert report.facts["input"] == "4 rows"
    unsaid = replace(PAIR, cases=lambda *given: (replace(cases(*given)[0], source=""),))
    facts = parity.run_pair(unsaid).facts
    assert facts["input"] == "made by the pair (batch_rows 2, scale 1.5)"


@pytest.mark.parametrize("command", ["run", "record", "selftest"])
def test_the_help_of_a_command_with_the_pair_shows_them(command):
    plain, named = run(command, "--help").output, run(command, NAME, "--help").output
    assert "--batch-rows" not in plain
    assert "--batch-rows N" in named
    assert f"[default: {5 if command == 'selftest' else 2}]" in named


def test_the_commands_take_them_after_the_name_and_others_before_it(tmp_path, monkeypatch):
    ASKED.clear()
    words = ("run", "--quiet", "--out", tmp_path / "report", NAME, "--batch-rows", "3")
    monkeypatch.setattr(sys, "exit", lambda code: None)
    done = run(*words)
    assert done.exception is None, done.output
    assert ASKED == [{"batch_rows": 3, "scale": 1.5}]
    assert json.loads((tmp_path / "report/report.json").read_text())["facts"]["input"] == "3 rows"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("run", NAME, "--batch-rows", "x"), "'--batch-rows': 'x' is no number of rows"),
        (("run", NAME, "--scale", "x"), "'--scale': could not convert"),
        (("run", NAME, "--rows", "3"), "No such option '--rows'"),
        (("run", "--batch-rows", "3", NAME), "--batch-rows: options of a pair come after its name"),
        (("run",), "name a pair: registered are cogvideox"),
        (("run", f"{__name__}:CLASH"), "option 'seed' is one of `parity run` itself"),
    ],
)
def test_wrong_words(words, part):
    refused = run(*words).exception
    said = refused.format_message() if isinstance(refused, ClickException) else str(refused)
    assert part in said


SIZE = parity.Option("size", "Which.", "small", lambda text: {"small": "org/small"}[text])
SIZED = replace(PAIR, options=(ROWS, SCALE, SIZE))


def test_text_of_an_option_is_parsed_once(tmp_path):
    run("run", f"{__name__}:SIZED", "--size", "small", "--quiet", "--out", tmp_path)
    assert ASKED[-1]["size"] == "org/small"


def test_a_recording_takes_the_root_by_its_name_and_refuses_numbers(tmp_path):
    assert record_pair(PAIR, tmp_path / "a", only=("<root>",)).cases == 1
    with pytest.raises(parity.InputError, match="depth -3"):
        record_pair(PAIR, tmp_path / "b", depth=-3)


def test_what_the_port_lacks_is_refused_before_the_reference_runs():
    class Counted(torch.nn.Sequential):
        def forward(self, x):
            raise AssertionError("it ran")

    x = {"x": np.ones((2, 3), np.float32)}
    case = parity.Case("call/inner", (x["x"],), path="0")
    pair = replace(PAIR, make_torch=lambda *_: Counted(torch.nn.ReLU()), cases=lambda *_: (case,))
    with pytest.raises(parity.InputError, match="no module '0', counterpart of '0'"):
        parity.run_pair(pair)
    function = replace(pair, make_nnx=lambda *_: parity.Functional(lambda params, x: x, x))
    function = replace(function, cases=lambda *_: (replace(case, path=""),))
    with pytest.raises(parity.InputError, match="only: a port that is a function"):
        parity.run_pair(function, only=("0",))
