"""The called model goes by `<root>`, the name that reports give it, wherever a path is given."""

import io

import jax
import numpy as np
import pytest
import torch
from rich.console import Console

import parity
from parity.report.tree import show_tree
from tests.nets import ported, torch_of
from tests.ports import nnx_of
from tests.reports import compare

SQUARE = np.random.default_rng(0).standard_normal((2, 6, 6)).astype(np.float32)
LONG = np.random.default_rng(0).standard_normal((2, 6, 9)).astype(np.float32)


def make_reference():
    torch.manual_seed(0)
    return torch_of(lambda self, x: self.conv(x.relu()), conv=torch.nn.Conv1d(6, 6, 3, padding=1))


def make_port(reference):
    return nnx_of(lambda self, x: self.conv(jax.nn.relu(x)), conv=ported(reference.conv))


def compared(x=SQUARE, **options):
    reference = make_reference()
    options = {"layout": {"<root>": "channels_first"}, "check_compiled": False, **options}
    return parity.compare(reference, make_port(reference), (x,), **options)


def test_layout_takes_it():
    assert compared().verdict == "PASS"
    layout = {"<root>#x": "channels_first", "<root>#": "channels_first"}
    assert compared(layout=layout).verdict == "PASS"


def test_ignore_and_only_take_it():
    assert "`<root>`" in compared(ignore=["<root>"]).partial
    assert compared(only=["<root>"]).coverage.modules == 2


def test_rename_takes_it():
    report = compared(rename={"<root>": "net", "conv": "net.conv"})
    assert [row.nnx_path for row in report.rows] == ["net.conv", "net"], report.notes


def test_a_pair_and_show_take_it():
    pair = parity.Pair(
        "p", None, None, None, (), layout={"<root>": "channels_first"}, declared={"<root>#": ""}
    )
    assert (pair.layout, pair.declared) == ({"": "channels_first"}, {"#": ""})
    console = Console(file=io.StringIO())
    show_tree(compared(), console, only="<root>")
    assert "conv" not in console.file.getvalue()


def test_a_port_that_raises_is_said_to_have_got_the_axes_as_they_were():
    with pytest.raises(ValueError, match="conv_general_dilated") as caught:
        compared(LONG, layout={})
    hint = caught.value.__notes__[-1]
    assert "'x' (2, 6, 9) with the axes of the reference" in hint
    assert hint.endswith("layout={'<root>': 'channels_first'}")


def test_no_hint_where_the_layout_is_known():
    def broken(x):
        raise ValueError("mine")

    reference, port = make_reference(), make_port(make_reference())
    port.conv = broken
    with pytest.raises(ValueError, match="mine") as caught:
        compare(reference, port, (LONG,), layout={"<root>": "channels_first"})
    assert not any("layout" in note for note in getattr(caught.value, "__notes__", ()))
