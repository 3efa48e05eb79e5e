"""The cause of one mistake in attention, whose reference is written out or fused."""

import jax.numpy as jnp
import pytest
import torch
from flax import nnx

from tests.lines import attention
from tests.lines.attention import marked, nets
from tests.lines.drawn_attention import MISTAKES, drawn
from tests.reports import compare

CAUSES = {
    "scale": ("attention_scale", "0.3535"),
    "causal": ("attention_mask", "leaving out the mask"),
    "diagonal": ("attention_mask", "moved by 1 along its columns"),
    "exchanged": ("attention_heads", "queries and keys exchanged"),
    "groups": ("attention_heads", ""),
    "off by one": ("rotary", "positions one"),
    "pairs": ("rotary", "paired with their neighbours"),
    "axis": ("norm_axes", "softmax over axis 2"),
    "bfloat16": ("dtype", "scores in bfloat16"),
}


@pytest.mark.parametrize(
    "fused", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["matmul", "fused"]
)
@pytest.mark.parametrize("mistake", CAUSES)
def test_the_cause_of_a_mistake(mistake, fused):
    reference, port, x = nets(fused, mistake)
    (fault,) = compare(reference, port, (x,)).faults
    cause, words = CAUSES[mistake]
    assert fault.cause == cause, fault.evidence
    assert words in fault.evidence
    lines = [line.line for line in fault.lines.port]
    assert any(abs(x - y) <= 1 for x in marked(attention.__file__, mistake) for y in lines)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(11))
def test_the_cause_in_attention_that_is_drawn(seed):
    mistake = list(MISTAKES)[seed]
    reference, port, x = drawn(seed, mistake)
    fault = compare(reference, port, (x,)).first_fault
    assert fault.cause == MISTAKES[mistake], fault.evidence


@pytest.mark.parametrize("seed", range(4))
def test_right_attention_that_is_drawn_passes(seed):
    reference, port, x = drawn(seed)
    assert compare(reference, port, (x,)).verdict == "PASS"


class Pixels(torch.nn.Module):
    """Channels in another order, a convolution, then attention over pixels."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Parameter(torch.randn(8, 8, 1, 1))
        self.second = torch.nn.Parameter(torch.randn(24, 8, 1, 1))

    def forward(self, x):
        x = x.unflatten(1, (2, 4)).transpose(1, 2).flatten(1, 2)
        x = torch.nn.functional.conv2d(x, self.first)
        x = torch.nn.functional.conv2d(x, self.second)
        q, k, v = x.flatten(2).transpose(1, 2).chunk(3, -1)
        return torch.softmax(q @ k.transpose(1, 2) / 8**0.5, -1) @ v


class PixelsLast(nnx.Module):
    def __init__(self, reference):
        for name, p in reference.named_parameters():
            setattr(self, name, nnx.Param(jnp.asarray(p.detach().numpy()[:, :, 0, 0].T)))

    def __call__(self, x):
        x = x @ self.first[...] @ self.second[...]
        q, k, v = jnp.split(x.reshape(x.shape[0], -1, 24), 3, -1)
        return nnx.softmax(q @ k.swapaxes(1, 2) / 8**0.5) @ v


def test_what_is_reordered_before_convolutions_is_no_order_of_heads():
    torch.manual_seed(0)
    reference = Pixels()
    (fault,) = compare(reference, PixelsLast(reference), (torch.randn(1, 8, 3, 5),)).faults
    assert (fault.path, fault.cause) == ("", "reshape_order"), fault.evidence
