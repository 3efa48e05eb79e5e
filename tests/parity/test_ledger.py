import ml_dtypes
import numpy as np
import pytest

from parity.folding import Folding
from parity.ledger import Ledger, Tensor, same_values

RNG = np.random.default_rng(0)
KERNEL = RNG.standard_normal((5, 4, 3, 2)).astype(np.float32)  # (out, in, height, width)
USUAL = KERNEL.transpose(2, 3, 1, 0)
VECTOR = RNG.standard_normal(7).astype(np.float32)


def entry(ref, port, name="weight", buffer=False, others=()):
    theirs = [Tensor("a", name, ref, buffer), *others]
    ours = [] if port is None else [Tensor("a", "kernel" if ref.ndim > 1 else "bias", port, buffer)]
    return Ledger(theirs, ours).of("a", "a")[0]


@pytest.mark.parametrize(
    ("port", "axes"),
    [(USUAL, (2, 3, 1, 0)), (USUAL * np.float32(1 + 1e-7), (2, 3, 1, 0))],
    ids=["exact", "rounded"],
)
def test_the_usual_order(port, axes):
    found = entry(KERNEL, port)
    assert (found.axes, found.cause) == (axes, "")


@pytest.mark.parametrize(
    ("port", "cause", "says"),
    [
        (USUAL[::-1], "weights_layout", "flipped along axes (2,)"),
        (USUAL[::-1, ::-1], "weights_layout", "flipped along axes (2, 3)"),
        (KERNEL.reshape(USUAL.shape), "weights_layout", "reshaped to fit"),
        (
            USUAL.astype(ml_dtypes.bfloat16).astype(np.float32),
            "weights_precision",
            "rounded to bfloat16",
        ),
        (USUAL.astype(np.float16).astype(np.float32), "weights_precision", "rounded to float16"),
        (np.ones_like(USUAL), "weights_missing", "every entry is 1, as if never loaded"),
        (
            RNG.standard_normal(USUAL.shape).astype(np.float32),
            "weights_missing",
            "unrelated to the reference's",
        ),
        (USUAL * np.float32(1.1), "weights_value", "off by 0.1 of its size (cosine 1.0000)"),
        (None, "weights_missing", "no tensor of the port's module has its size"),
    ],
    ids=["flipped", "flipped twice", "reshaped", "bfloat16", "float16", "initial",
         "unrelated", "scaled", "none"],
)  # fmt: skip
def test_findings(port, cause, says):
    found = entry(KERNEL, port)
    assert found.cause == cause
    assert says in found.finding


def test_tensors_of_modules_that_one_side_has_alone():
    theirs, ours = Tensor("a", "weight", KERNEL), Tensor("a.conv", "kernel", USUAL)
    wrapped = Ledger([theirs], [ours], Folding(port={"a.conv": "a"}))
    assert [entry.cause for entry in wrapped.of("a", "a")] == [""]
    theirs, ours = Tensor("a.conv", "weight", KERNEL), Tensor("a", "kernel", 2 * USUAL)
    (written_out,) = Ledger([theirs], [ours], Folding(ref={"a.conv": "a"})).of("a", "a")
    assert written_out.cause == "weights_value"
    assert written_out.finding.startswith("a.conv.weight: off by 1 ")


def test_axes_in_an_unusual_order():
    square = RNG.standard_normal((5, 4, 3, 3)).astype(np.float32)
    found = entry(square, square.transpose(3, 2, 1, 0))
    assert (found.axes, found.cause) == ((3, 2, 1, 0), "weights_layout")
    assert "axes (3, 2, 1, 0) of the reference, not (2, 3, 1, 0)" in found.finding


def test_the_values_of_another_layer():
    other = Tensor("b", "bias", VECTOR[::-1] * 2)
    found = entry(VECTOR, other.values, name="bias", others=[other])
    assert (found.cause, found.finding) == ("weights_swapped", "a.bias: holds the values of b.bias")


def test_buffers():
    found = entry(VECTOR, VECTOR * np.float32(0.99), name="running_var", buffer=True)
    assert found.cause == "norm_buffers"
    assert "0.99 times the reference's" in found.finding
    ledger = Ledger([Tensor("a", "num_batches_tracked", np.zeros(()), buffer=True)], [])
    assert ledger.of("a", "a") == ()  # ports leave it out


def test_scalars_and_square_kernels():
    assert same_values(np.float32(2).reshape(()), np.float32(2).reshape(())) == ()
    square = RNG.standard_normal((3, 3))
    assert same_values(square, square.T) == (1, 0)
    assert same_values(square, square) == (0, 1)
    assert entry(square, square).cause == "weights_layout"
