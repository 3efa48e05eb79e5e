"""A report whose reference comes from the cache is the report without, to the last digit."""

import json
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity.cache import folder, kept
from parity.cache.pack import ARRAYS, INDEX, Writer
from tests.cache.nets import PAIR, PORTS, X, biased, found, ported, reference

ASKED = {"frames": 1, "size": (8, 8), "seed": 3}


def compare(net, port, cache=True, **options):
    return parity.compare(net, port, (X,), jitted=False, cache=cache, **options)


def said(report):
    return report.facts["reference"]


def test_reports_are_the_same_whatever_the_port_does(runs, entries):
    """One recording serves all ports; what they do otherwise is run in float64, once."""
    net = reference()
    for number, (name, make) in enumerate(PORTS.items()):
        port = make(net)
        plain = compare(net, port, cache=False)
        first, again = compare(net, port), compare(net, port)
        assert found(first) == found(plain), name
        assert found(again) == found(plain), name
        assert said(first).startswith("from the cache" if number else "recorded now")
        assert said(again).startswith("from the cache, recorded 20")
        assert "reference" not in plain.facts
        if number == 0:
            runs.clear()
            assert found(compare(net, port)) == found(plain)
            assert runs == []
    assert plain.verdict == "WARN"  # of the last one an output is not there
    (packs,) = entries().values()
    assert packs[0] == "calls"
    assert len(packs) >= 4


def test_a_part_is_taken_from_the_whole(runs):
    net = reference()
    port = ported(net)
    plain = compare(net, port, cache=False, only=["block"])
    deep = compare(net, port, cache=False, depth=1)
    compare(net, port)
    runs.clear()
    assert found(compare(net, port, only=["block"])) == found(plain)
    assert found(compare(net, port, only=["block.conv", "stem"]))
    assert runs == []
    assert found(compare(net, port, depth=1)) == found(deep)
    assert runs == ["TorchNet"]  # in float64, with what is inside the block not apart
    runs.clear()
    assert found(compare(net, port, depth=1)) == found(deep)
    assert runs == []


def test_a_part_alone_is_enough_to_record(runs):
    net = reference()
    port = biased(net)
    plain = compare(net, port, cache=False, only=["block"])
    assert found(compare(net, port, only=["block"])) == found(plain)
    runs.clear()
    assert found(compare(net, port, only=["block"])) == found(plain)
    assert runs == []
    assert said(compare(net, port)).startswith("from the cache")


def test_another_weight_is_recorded_anew(entries):
    net = reference()
    assert said(compare(net, ported(net))).startswith("recorded now")
    with torch.no_grad():
        net.head.bias[0] += 1e-7
    other = compare(net, ported(net))
    assert said(other).startswith("recorded now")
    assert len(entries()) == 2
    assert found(other) == found(compare(net, ported(net), cache=False))


class Random(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = reference()
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x):
        return self.net(self.drop(x))


class Counting(torch.nn.Module):
    """Does something else the second time, by a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.inner = torch.nn.Linear(7, 7)

    def forward(self, x):
        self.calls += 1
        return self.inner(x) * self.calls


class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one = Counting()

    def forward(self, x):
        return self.one(self.one(x))


@dataclass
class Setting:
    """An argument that no file can hold."""

    value: object


class Given(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Identity()

    def forward(self, x, setting):
        return self.inner(x)


def port_of(text):
    """A port with the structure of `Random`, `Twice` or `Given`."""

    class Like(nnx.Module):
        def __call__(self, x, setting=None):
            return x

    class Around(nnx.Module):
        def __init__(self):
            setattr(self, text, Like())

        def __call__(self, x, setting=None):
            return getattr(self, text)(x)

    return Around()


@pytest.mark.parametrize(
    ("make", "name", "args", "why"),
    [
        (Random, "net", (X,), "not kept: it draws random numbers"),
        (Given, "inner", (X, Setting(threading := object())), "not kept: an argument"),
    ],
    ids=["random", "unknown"],
)
def test_what_is_not_kept_says_why(make, name, args, why, entries):
    net = make()
    both = [parity.compare(net, port_of(name), args, ignore=("net.*", "drop"), jitted=False, **more)
            for more in ({}, {"cache": True})] if make is Random else [
            parity.compare(net, port_of(name), args, jitted=False, **more)
            for more in ({}, {"cache": True})]  # fmt: skip
    assert found(both[0]) == found(both[1])
    assert said(both[1]).startswith(why)
    assert entries() == {}


def test_a_reference_with_a_state_is_kept_without_its_float64(runs):
    net = Twice()
    plain, cold, warm = (
        parity.compare(net, port_of("one"), (X,), ignore=("one.*",), jitted=False, cache=cache)
        for cache in (False, True, True)
    )
    assert found(plain) == found(cold) == found(warm)
    assert said(warm).startswith("from the cache")
    assert float(net.one.calls) == 0.0


def flip(path, at):
    """Changes one byte."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def resign(path):
    """Changes what the index says, and its digest with it."""
    from parity.cache.pack import _sha256

    content = json.loads(path.read_text().partition("\n")[2])
    content["trace"]["calls"][0]["arguments"]["node"] = "os:system"
    text = json.dumps(content)
    path.write_text(f"{_sha256(text)}\n{text}")


SPOILT = {
    "array": ("calls", ARRAYS, lambda path: flip(path, 200)),
    "end": ("calls", ARRAYS, cut),
    "index": ("calls", INDEX, lambda path: flip(path, 300)),
    "no index": ("calls", INDEX, lambda path: path.unlink()),
    "class": ("calls", INDEX, resign),
    "float64": ("float64-*", ARRAYS, lambda path: flip(path, 200)),
    "float64 index": ("float64-*", INDEX, cut),
    "float64 gone": ("float64-*", ARRAYS, lambda path: path.unlink()),
}


class Tapped(torch.nn.Module):
    """What comes after a tap is what it hands on, without the error of rounding before it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(7, 7)

    def forward(self, x):
        high = parity.tap("high", self.first(x) + 1000.0)
        return parity.tap("low", high - 1000.0) * 2


class TappedPort(nnx.Module):
    def __init__(self, net, both):
        self.first = nnx.Linear(7, 7, rngs=nnx.Rngs(0))
        self.first.kernel[...] = jnp.asarray(net.first.weight.detach().numpy().T)
        self.first.bias[...] = jnp.asarray(net.first.bias.detach().numpy())
        self.both = both

    def __call__(self, x):
        high = self.first(x) + 1000.0
        high = parity.tap("high", high) if self.both else high
        return parity.tap("low", (high - 1000.0) * (1 + 3e-5)) * 2


@pytest.mark.parametrize("order", [(False, True), (True, False)])
def test_what_a_tap_has_in_float64_depends_on_those_before(order, runs):
    net = Tapped()

    def compared(both, cache=True):
        return parity.compare(
            net, TappedPort(net, both), (X[0].reshape(-1, 7),), jitted=False, cache=cache
        )

    for both in order:
        plain = compared(both, cache=False)
        assert found(compared(both)) == found(plain)
        runs.clear()
        assert found(compared(both)) == found(plain)
        assert runs == []


@pytest.mark.parametrize("error", [IndexError("a"), AssertionError(), RecursionError("a")])
def test_whatever_a_content_makes_fail_is_recorded_anew(error, cache, monkeypatch):
    net = Twice()

    def compared():
        return parity.compare(net, port_of("one"), (X,), ignore=("one.*",), jitted=False,
                              cache=True)  # fmt: skip

    compared()
    whole = kept.from_plain
    failing = [error]

    def read(*args):
        if failing:
            raise failing.pop()
        return whole(*args)

    monkeypatch.setattr(kept, "from_plain", read)
    assert said(compared()).startswith("recorded now")
    assert said(compared()).startswith("from the cache")


@pytest.mark.parametrize("home", [(Writer, "put"), (Writer, "end"), (folder.Folder, "keep")])
def test_an_interrupt_leaves_nothing_behind(home, cache, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    def closed(writer):
        close(writer)
        raise KeyboardInterrupt

    close = Writer.give_up
    net = Twice()
    monkeypatch.setattr(*home, interrupted)
    monkeypatch.setattr(Writer, "give_up", closed)  # once more, while it is cleaned up
    with pytest.raises(KeyboardInterrupt):
        parity.compare(net, port_of("one"), (X,), ignore=("one.*",), jitted=False, cache=True)
    assert list(cache.iterdir()) == []


@pytest.fixture(scope="module")
def uncached():
    net = reference()
    return found(compare(net, ported(net), cache=False))


@pytest.mark.parametrize("name", SPOILT)
def test_what_is_damaged_is_recorded_anew(name, cache, uncached):
    pack, file, spoil = SPOILT[name]
    net = reference()
    port = ported(net)
    compare(net, port)
    (path,) = cache.glob(f"*/{pack}/{file}")
    spoil(path)
    report = compare(net, port)
    assert found(report) == uncached
    assert said(report).startswith("recorded now, key ")
    assert ("os:system" if spoil is resign else pack[:5]) in said(report).partition(": ")[2]
    again = compare(net, port)
    assert found(again) == uncached
    assert said(again).startswith("from the cache")


def test_what_a_killed_process_left_is_not_used(cache, uncached, monkeypatch):
    """Killed while it wrote: what it has written lies beside the entries."""
    net = reference()
    with monkeypatch.context() as patch:
        patch.setattr(folder.Folder, "keep", lambda *_: pytest.fail("killed"))
        patch.setattr(folder.Folder, "drop", lambda *_: None)
        with pytest.raises(pytest.fail.Exception):
            compare(net, ported(net))
    (left,) = cache.iterdir()
    assert (left / INDEX).exists()
    report = compare(net, ported(net))
    assert said(report).startswith("recorded now")
    assert found(report) == uncached


def test_more_than_there_is_room_for_is_not_kept(uncached, entries, monkeypatch):
    net = reference()
    port = ported(net)
    monkeypatch.setenv(folder.LIMIT, "1e-6")
    report = compare(net, port)
    assert said(report).startswith("not kept: larger than 9.99")
    assert found(report) == uncached
    assert entries() == {}
    monkeypatch.setenv(folder.LIMIT, str(2**-30 * 30000))
    report = compare(net, port)
    assert said(report).startswith("recorded now")
    assert "in float64 is not kept: larger than" in said(report)
    assert found(report) == uncached
    assert [list(packs) for packs in entries().values()] == [["calls"]]
    assert found(compare(net, port)) == uncached


def test_a_ladder_is_kept_case_by_case(runs):
    def run(pair, **options):
        return parity.run_pair(pair, **ASKED, **options)

    plain, cold = run(PAIR), run(PAIR, cache=True)
    assert found(cold) == found(plain)
    assert said(cold) == "0 of 3 cases from the cache"
    runs.clear()
    warm = run(PAIR, cache=True)
    assert found(warm) == found(plain)
    assert said(warm) == "3 of 3 cases from the cache"
    assert runs == []


def test_without_it_nothing_is_written(cache):
    net = reference()
    compare(net, ported(net), cache=False)
    assert not cache.exists()
    assert np.isfinite(X).all()
