"""The self-test itself: mistakes are made where they fit, undone, and scored honestly."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from flax import nnx

import parity
from parity.capture.nnx import submodules
from parity.cli import cli
from parity.core.exceptions import InputError
from parity.core.pair import Case, Pair
from parity.selftest.mistakes import GENERAL, behaviour
from parity.selftest.rounds import _charged, selftest
from parity.selftest.show import write
from parity.selftest.trials import SelfTest, Trial
from tests.nets import ported, torch_of


class Port(nnx.Module):
    def __init__(self, reference):
        for name, layer in reference.named_children():
            setattr(self, name, ported(layer))

    def __call__(self, x):
        return self.second(self.norm(self.first(x))) + x


def make_torch(options, seed):
    torch.manual_seed(seed)
    reference = torch_of(
        lambda self, x: self.second(self.norm(self.first(x))) + x,
        first=torch.nn.Conv2d(4, 4, 3, padding=1),
        norm=torch.nn.GroupNorm(2, 4),
        second=torch.nn.Conv2d(4, 4, 3, padding=1),
    ).eval()
    with torch.no_grad():
        for parameter in reference.norm.parameters():
            parameter.normal_()
    return reference


def cases(reference, options, seed):
    x = np.random.default_rng(seed).standard_normal((2, 4, 6, 6)).astype(np.float32)
    return (Case("call/noise", (x,)),)


def no_difference(module, right, *args):
    return right(*args)


def pair(port=Port, mistakes=()):
    return Pair(
        "toy", make_torch, lambda options, reference: port(reference), cases, (),
        mistakes=mistakes,
    )  # fmt: skip


PAIR = pair()

IDLE = pair(mistakes=(behaviour("kernel, idle", ["glue"], no_difference),))


def test_the_command_prints_trials_as_json_or_the_verdict_alone(tmp_path):
    words = ["selftest", f"{__name__}:PAIR", "--only", "kernel, all zeros", "--out", str(tmp_path)]
    done = CliRunner().invoke(cli, [*words, "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["verdict"] == "PASS"
    assert [trial["killed"] for trial in document["singles"]] == [True]
    assert document["healthy"][0]["verdict"] == "PASS"
    assert (tmp_path / "selftest.csv").exists()
    done = CliRunner().invoke(cli, [*words, "--quiet"])
    assert (done.exit_code, done.output) == (0, "selftest: PASS\n")


def test_mistakes_of_any_port_are_found_and_undone(tmp_path):
    ports = []

    def kept(reference):
        ports.append(Port(reference))
        return ports[-1]

    result = selftest(pair(kept), only="kernel*")
    assert {trial.mistakes[0] for trial in result.singles} == {
        one.name for one in GENERAL if one.name.startswith("kernel")
    }
    assert all(trial.place and trial.cause for trial in (*result.singles, *result.triples))
    assert result
    lines = write(result, tmp_path).read_text().splitlines()[1:]
    assert len(lines) == len(result.singles) + len(result.triples) + 1
    reference = make_torch({}, 0)
    assert parity.compare(reference, ports[0], cases(None, None, 0)[0].args).verdict == "PASS"
    assert {type(module) for module in submodules(ports[0]).values()} == {
        Port, nnx.Conv, nnx.GroupNorm
    }  # fmt: skip


def test_a_mistake_without_effect_is_not_counted_and_an_unknown_name_is_an_error():
    result = selftest(IDLE, only="*idle")
    assert result.singles == ()
    assert result.unshown == ("kernel, idle",)
    assert not result
    with pytest.raises(InputError, match="no mistake is named 'nothing'; there are"):
        selftest(pair(), only="nothing")


def test_a_port_that_is_wrong_by_itself_fails_the_test():
    class Wrong(Port):
        def __call__(self, x):
            return super().__call__(x) * 1.5

    result = selftest(pair(Wrong), only="kernel, all zeros")
    assert [trial.verdict for trial in result.healthy] == ["FAIL"]
    assert not result.singles[0].place  # the root is named beside the layer
    assert not result


def test_what_counts_as_found():
    def trial(found, verdict="FAIL"):
        return Trial(("m",), 0, "c", {"a": ("padding", "glue")}, found, verdict)

    right, other = trial({"a": "glue"}), trial({"a": "unknown"})
    assert (right.killed, right.place, right.cause) == (True, True, True)
    assert other.place
    assert not other.cause
    assert not trial({"a": "glue", "b": "glue"}).place
    assert not trial({}, "WARN").killed
    assert SelfTest((right,), (right,), ())
    assert not SelfTest((right,), (trial({}),), ())
    assert not SelfTest((other,), (), ())
    assert not SelfTest((right,), (), (Trial((), 0, "c", {}, {}, "FAIL"),))


@pytest.mark.parametrize(
    ("name", "shape", "of"),
    [
        ("gamma", (1, 1, 1, 4), "scale, never loaded"),
        ("scale", (4,), "scale, never loaded"),
        ("bias", (1, 4), "bias, never loaded"),
        ("kernel", (1, 1, 4, 4), "kernel, never loaded"),
        ("kernel", (4, 1), "kernel, never loaded"),
        ("kernel", (1, 1, 1, 4), "kernel, never loaded"),
        ("table", (3, 4), "kernel, never loaded"),
    ],
)
def test_a_number_by_channel_is_no_kernel_whatever_its_axes(name, shape, of):
    module = nnx.Module()
    setattr(module, name, nnx.Param(jnp.zeros(shape)))
    lost = [one for one in GENERAL if one.name.endswith("never loaded")]
    assert [one.name for one in lost if one.sites({"it": module})] == [of]


def test_a_mistake_that_nothing_shows_is_named_and_in_no_triple(tmp_path):
    # of three that match: a triple would have it
    words = ["selftest", f"{__name__}:IDLE", "--only", "kernel, [ai]*", "--out", str(tmp_path)]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert "kernel, idle: not shown: no module" in done.output
    done = CliRunner().invoke(cli, [*words, "--json"])
    assert json.loads(done.stdout)["unshown"] == ["kernel, idle"]


def test_an_inlined_module_is_answered_for_by_the_one_around_it():
    expected = {"a.conv1": ("padding",), "a.conv1.conv": ("reshape_order",), "b": ("epsilon",)}
    charged = _charged(expected, {"a.conv1.conv": "receives another shape"})
    assert charged == {
        "a.conv1": ("padding", "reshape_order", "glue", "unknown"),
        "b": ("epsilon",),
    }
    assert _charged(expected, {}) == expected
