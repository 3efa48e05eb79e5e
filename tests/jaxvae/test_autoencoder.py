import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxvae import AutoencoderKLCogVideoX, CogVideoXVAEConfig
from jaxvae.models.cogvideox import encoder_decoder
from jaxvae.run.chunks import chunk_bounds

LIMIT = 2e-5  # relative to the largest value


def test_call_goes_through_mode_or_sample(bridge, pair):
    x = bridge.normal(1, 5, 16, 16, 3)
    reference = pair.theirs(bridge.first(x)).sample
    assert bridge.error(pair.ours(x), bridge.last(reference)) < LIMIT
    key = jax.random.key(0)
    sampled = pair.ours(x, sample_posterior=True, key=key)
    assert np.array_equal(sampled, pair.ours.decode(pair.ours.encode(x).sample(key)))
    with pytest.raises(ValueError, match="exactly one"):
        pair.ours(x, sample_posterior=True)


@pytest.mark.slow
def test_frame_batch_sizes_can_be_set(bridge, make_pair):
    changed = make_pair()
    x = bridge.normal(1, 9, 16, 16, 3)
    before = changed.ours.encode(x).mean
    for vae in (changed.theirs, changed.ours):
        vae.num_sample_frames_batch_size = 4
        vae.num_latent_frames_batch_size = 3
    reference = changed.theirs.encode(bridge.first(x)).latent_dist.mode()
    after = changed.ours.encode(x).mean
    assert bridge.error(after, bridge.last(reference)) < LIMIT
    assert bridge.error(before, after) > 1e-3  # another function, not only another memory use
    video = changed.theirs.decode(reference).sample
    assert bridge.error(changed.ours.decode(bridge.last(reference)), bridge.last(video)) < LIMIT


def test_names_are_those_of_pytorch(pair):
    """One module for every module of PyTorch that runs, and one parameter for every tensor."""
    theirs = {
        name
        for name, module in pair.theirs.named_modules()
        if type(module).__name__ != "ModuleList"
    }
    ours = {
        ".".join(map(str, path))
        for path, module in nnx.iter_modules(pair.ours)
        if not isinstance(module, nnx.List)
    }
    assert ours == theirs
    count = len(jax.tree.leaves(nnx.state(pair.ours, nnx.Param)))
    assert count == len(list(pair.theirs.parameters()))


def test_every_module_runs_as_often_and_in_the_order_of_pytorch(bridge, make_pair, monkeypatch):
    pair = make_pair()
    their_calls, our_calls = [], []
    for name, module in pair.theirs.named_modules():
        module.register_forward_hook(lambda *_, name=name: their_calls.append(name))
    x = bridge.normal(1, 17, 8, 8, 3)
    latent = pair.theirs.encode(bridge.first(x)).latent_dist.mode()
    pair.theirs.decode(latent)

    # Of two chunks one is traced before the scan and one inside it, so here one trace is one call.
    # Modules may be copies while they are traced: the mark tells which they are.
    for path, module in nnx.iter_modules(pair.ours):
        module.mark = ".".join(map(str, path))
    for cls in {type(m) for _, m in nnx.iter_modules(pair.ours)} - {nnx.List}:
        assert any("__call__" in vars(base) for base in cls.__mro__), cls

        def call(self, *args, original=cls.__call__, **kwargs):
            output = original(self, *args, **kwargs)
            our_calls.append(self.mark)
            return output

        monkeypatch.setattr(cls, "__call__", call)
    jax.eval_shape(lambda x: pair.ours.decode(pair.ours.encode(x).mode()), x)
    assert our_calls == their_calls  # encode and decode are no call of the root on either side


def test_every_product_asks_for_the_highest_precision(bridge, pair):
    assert jax.config.jax_default_matmul_precision is None
    inputs = {"encode": (1, 9, 8, 8, 3), "decode": (1, 3, 2, 2, 4)}
    for method, shape in inputs.items():
        run = lambda x, method=method: jax.tree.leaves(getattr(pair.ours, method)(x))  # noqa: E731
        products = list(_products(jax.make_jaxpr(run)(bridge.normal(*shape)).jaxpr))
        assert len(products) > 14
        for equation in products:
            precision = equation.params["precision"]
            assert set(np.atleast_1d(precision)) == {jax.lax.Precision.HIGHEST}


def test_precision_is_the_callers_to_lower(bridge, pair):
    vae = AutoencoderKLCogVideoX.from_torch_state(
        pair.ours.config, bridge.state(pair.theirs), precision="default"
    )
    run = lambda x: vae.encode(x).parameters  # noqa: E731
    for equation in _products(jax.make_jaxpr(run)(bridge.normal(1, 1, 8, 8, 3)).jaxpr):
        assert set(np.atleast_1d(equation.params["precision"])) == {jax.lax.Precision.DEFAULT}


def _products(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("conv_general_dilated", "dot_general"):
            yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _products(inner)


def test_repeated_calls_are_bit_equal(bridge, pair):
    """A, B, A: nothing of one call stays behind for the next."""
    a, b = bridge.normal(1, 17, 16, 16, 3), bridge.normal(1, 17, 16, 16, 3, seed=1)
    first, between, again = (pair.ours.encode(x).parameters for x in (a, b, a))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, between)
    z, other = bridge.normal(1, 5, 4, 4, 4), bridge.normal(1, 5, 4, 4, 4, seed=1)
    first, between, again = (pair.ours.decode(x) for x in (z, other, z))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, between)


@pytest.fixture
def traces(monkeypatch):
    """Counts the runs of the encoder's and decoder's Python code: under jit, the traces."""
    counts = {"encoder": 0, "decoder": 0}
    for name, cls in (
        ("encoder", encoder_decoder.Encoder3D),
        ("decoder", encoder_decoder.Decoder3D),
    ):

        def call(self, *args, name=name, original=cls.__call__, **kwargs):
            counts[name] += 1
            return original(self, *args, **kwargs)

        monkeypatch.setattr(cls, "__call__", call)
    return counts


def mark(vae, value):
    """Set a static attribute on every module, as a tool does that needs a fresh trace."""
    for _, module in nnx.iter_modules(vae):
        module.mark = value


@pytest.mark.slow
def test_one_program_for_the_first_chunk_and_one_for_the_rest(bridge, make_pair, traces):
    vae = make_pair().ours
    mark(vae, "programs")
    for frames in (17, 25, 33, 17):
        vae.encode(bridge.normal(1, frames, 8, 8, 3))
        assert traces["encoder"] == 2
    for frames in (5, 3, 9, 13):
        vae.decode(bridge.normal(1, frames, 2, 2, 4))
        assert traces["decoder"] == 2

    # Slices and tiles are sizes of windows: switches alone need no new program.
    vae.enable_tiling(8, 8)
    vae.enable_slicing()
    vae.encode(bridge.normal(1, 17, 8, 8, 3))
    vae.decode(bridge.normal(1, 5, 2, 2, 4))
    assert traces == {"encoder": 2, "decoder": 2}

    # Weights are arguments, not constants: new ones need no new program.
    z = bridge.normal(1, 3, 2, 2, 4)
    before = vae.decode(z)
    vae.decoder.conv_out.conv.bias[...] = vae.decoder.conv_out.conv.bias[...] + 1
    np.testing.assert_allclose(vae.decode(z), before + 1, rtol=1e-5, atol=1e-5)
    assert traces["decoder"] == 2


def test_a_static_mark_forces_a_retrace_and_its_removal_finds_the_old_program(
    bridge, make_pair, traces
):
    vae = make_pair().ours
    mark(vae, "one")
    x = bridge.normal(1, 1, 8, 8, 3)
    before = vae.encode(x).parameters
    mark(vae, "two")
    vae.encode(x)
    assert traces["encoder"] == 2
    mark(vae, "one")
    assert np.array_equal(vae.encode(x).parameters, before)
    assert traces["encoder"] == 2


@pytest.mark.slow
def test_inside_a_callers_jit_the_result_is_the_same(bridge, pair):
    x, z = bridge.normal(1, 25, 16, 16, 3), bridge.normal(1, 9, 4, 4, 4)
    encode = jax.jit(lambda vae, x: vae.encode(x))
    decode = jax.jit(lambda vae, z: vae.decode(z))
    assert bridge.error(encode(pair.ours, x).parameters, pair.ours.encode(x).parameters) < 5e-6
    assert bridge.error(decode(pair.ours, z), pair.ours.decode(z)) < 5e-6


def test_inside_a_callers_jit_equal_chunks_are_traced_once(bridge, make_pair, traces):
    vae = make_pair().ours
    for frames in (17, 65):
        traces["encoder"] = 0
        run = lambda x: vae.encode(x).parameters  # noqa: E731
        shape = jax.eval_shape(run, jax.ShapeDtypeStruct((1, frames, 8, 8, 3), jnp.float32))
        assert shape.shape[1] == (frames - 1) // 4 + 1
        assert len(chunk_bounds(frames, 8)) in (2, 8)
        assert traces["encoder"] == 2


@pytest.mark.slow
def test_gradients_cross_the_scan(bridge, pair):
    x = bridge.normal(1, 17, 8, 8, 3)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(jnp.square(pair.ours.encode(x).mean))))(x)
    reference = bridge.first(x).requires_grad_()
    with torch.enable_grad():
        pair.theirs.encode(reference).latent_dist.mean.square().sum().backward()
    assert bridge.error(gradient, bridge.last(reference.grad)) < 1e-4


def test_layer_by_layer(bridge, pair):
    x = bridge.normal(1, 9, 8, 8, 3)
    looked_at = pair.ours.encode(x, compiled=False).parameters
    assert bridge.error(looked_at, pair.ours.encode(x).parameters) < LIMIT
    z = bridge.normal(1, 3, 2, 2, 4)
    assert bridge.error(pair.ours.decode(z, compiled=False), pair.ours.decode(z)) < LIMIT
    whole = pair.ours(x, compiled=False)
    assert bridge.error(whole, pair.ours(x)) < LIMIT


@pytest.mark.slow
def test_without_jit(bridge, pair):
    x = bridge.normal(1, 9, 8, 8, 3)
    with jax.disable_jit():
        eager = pair.ours.encode(x).parameters
    assert bridge.error(eager, pair.ours.encode(x).parameters) < LIMIT


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 3, 9, 16, 16), np.float32),
        ((9, 16, 16, 3), np.float32),
        ((1, 0, 16, 16, 3), np.float32),
        ((1, 9, 16, 16, 3), np.uint8),
    ],
)
def test_wrong_inputs_are_explained(pair, shape, dtype):
    found = str(shape).replace("(", r"\(").replace(")", r"\)")
    message = "floating point" if dtype == np.uint8 else f"found shape {found}; channels are last"
    with pytest.raises(ValueError, match=message):
        pair.ours.encode(np.zeros(shape, dtype))
    if dtype == np.float32:
        with pytest.raises(ValueError, match=r"decode: .*height, width, 4\), " + message):
            pair.ours.decode(np.zeros(shape, dtype))


def test_quant_convs_where_they_work(bridge, make_pair):
    both = make_pair(out_channels=4, use_quant_conv=True, use_post_quant_conv=True)
    x = bridge.normal(1, 9, 16, 16, 3)
    reference = both.theirs.encode(bridge.first(x)).latent_dist.parameters
    assert bridge.error(both.ours.encode(x).parameters, bridge.last(reference)) < LIMIT
    z = bridge.normal(1, 3, 4, 4, 4)
    video = both.theirs.decode(bridge.first(z)).sample
    assert bridge.error(both.ours.decode(z), bridge.last(video)) < LIMIT


def test_quant_convs_where_they_fail_in_pytorch_too(bridge, make_pair):
    broken = make_pair(use_quant_conv=True, use_post_quant_conv=True)
    x, z = bridge.normal(1, 1, 16, 16, 3), bridge.normal(1, 1, 4, 4, 4)
    for method, field, value in (("encode", "use_quant_conv", x), ("decode", "use_post_", z)):
        with pytest.raises(RuntimeError, match="channels"):
            getattr(broken.theirs, method)(bridge.first(value))
        with pytest.raises(ValueError, match=rf"{field}.*out_channels \(3\) equal to latent_ch"):
            getattr(broken.ours, method)(value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"act_fn": "gelu", "norm_eps": 1e-2},
        {"temporal_compression_ratio": 6, "layers_per_block": 2},
        pytest.param({"temporal_compression_ratio": 8}, marks=pytest.mark.slow),
        pytest.param({"temporal_compression_ratio": 1}, marks=pytest.mark.slow),
    ],
)
def test_other_configurations(bridge, make_pair, changes):
    both = make_pair(**changes)
    x = bridge.normal(1, 9, 16, 16, 3)
    reference = both.theirs.encode(bridge.first(x)).latent_dist
    assert bridge.error(both.ours.encode(x).parameters, bridge.last(reference.parameters)) < LIMIT
    video = both.theirs.decode(reference.mode()).sample
    assert bridge.error(both.ours.decode(bridge.last(reference.mode())), bridge.last(video)) < LIMIT


def test_the_full_model_has_the_tensors_of_pytorch():
    vae = nnx.eval_shape(lambda: AutoencoderKLCogVideoX(CogVideoXVAEConfig(), rngs=nnx.Rngs(0)))
    leaves = jax.tree.leaves(nnx.state(vae, nnx.Param))
    assert len(leaves) == 436
    assert sum(leaf.size for leaf in leaves) == 215_583_907
