"""Progress in a notebook: shown where nobody else hears of it, and gone at the end."""

import sys
import types

import pytest
import torch

import parity
from parity.host.progress import Progress
from tests.ports import nnx_of


@pytest.fixture
def shown(monkeypatch):
    """What a kernel is told to show, each text in the place of the one before."""
    texts = []
    line = types.SimpleNamespace(update=lambda data, raw: texts.append(data["text/plain"]))
    ipython, kernel = types.ModuleType("IPython"), types.SimpleNamespace(kernel=object())
    ipython.get_ipython = lambda: kernel
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = lambda data, raw, display_id: line
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    return texts


def compared(**options):
    port = nnx_of(lambda self, x: x + 1)
    return parity.compare(torch.nn.Identity(), port, (torch.zeros(2, 3),), **options)


def test_a_notebook_shows_the_stages_and_clears_them(shown):
    compared()
    assert len(shown) > 3
    assert any(text.endswith("port: 0 of 1") for text in shown)
    assert shown[-1] == ""


def test_the_line_is_cleared_after_an_error_too(shown):
    with pytest.raises(parity.InputError):
        compared(seed=-1)
    assert shown == [""]


def test_who_listens_hears_instead(shown):
    heard = []
    compared(progress=Progress(lambda *stage: heard.append(stage)))
    assert (bool(heard), shown) == (True, [])


def test_a_terminal_of_ipython_is_no_notebook(shown):
    del sys.modules["IPython"].get_ipython().kernel
    compared()
    assert shown == []
