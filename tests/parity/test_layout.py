import numpy as np
import pytest

from parity.capture.layout import channel_last, channel_second, check, reading
from parity.core.exceptions import InputError


def test_rank_and_kind_decide():
    assert reading("a", "", ["Conv2d"], 4, True, {}).move
    assert reading("a", "", ["MyBlock", "Module"], 5, True, {}).move
    assert not reading("a", "", ["Linear"], 4, True, {}).move
    assert not reading("a", "", ["MyBlock"], 3, True, {}).move  # (B, L, D) as likely as (B, C, L)
    assert reading("a", "", ["Causal", "Conv1d"], 3, True, {}).move  # a subclass counts
    assert not reading("a", "", ["Conv2d"], 4, False, {}).move  # integers are indices
    assert not reading("a", "", ["GroupNorm"], 2, True, {}).move


def test_only_kind_and_declaration_are_sure():
    assert reading("a", "", ["GroupNorm"], 5, True, {}).sure
    assert not reading("a", "", ["MyBlock"], 5, True, {}).sure
    assert reading("a", "", ["MyBlock"], 5, True, {"a": "channels_first"}).sure


def test_the_last_matching_declaration_counts():
    layout = {"*": "channels_first", "attn.*": "as_is", "attn.x#scores": "channels_first"}
    assert reading("conv", "", ["M"], 3, True, layout).move
    assert not reading("attn.x", "", ["M"], 4, True, layout).move
    assert reading("attn.x", "scores", ["M"], 4, True, layout).move


def test_unknown_words_are_refused():
    with pytest.raises(InputError, match="'nchw'; expected one of channels_first, as_is"):
        check({"a": "nchw"})


def test_the_moves_are_inverse():
    array = np.zeros((2, 3, 4, 5))
    moved = array.transpose(channel_last(4))
    assert moved.shape == (2, 4, 5, 3)
    assert moved.transpose(channel_second(4)).shape == array.shape
