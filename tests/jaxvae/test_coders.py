import diffusers.models.autoencoders.autoencoder_kl_cogvideox as source
import jax
import pytest

from jaxvae import CogVideoXVAEConfig
from jaxvae.models.cogvideox import encoder_decoder


@pytest.mark.slow
def test_pad_mode_reaches_everything_but_the_down_blocks(bridge):
    config = CogVideoXVAEConfig(**bridge.small)
    fields = {
        name: getattr(config, name)
        for name in ("block_out_channels", "layers_per_block", "norm_num_groups")
    }
    fields["pad_mode"] = "replicate"
    encoder = source.CogVideoXEncoder3D(
        out_channels=4, down_block_types=config.down_block_types, **fields
    )
    decoder = source.CogVideoXDecoder3D(
        in_channels=4, up_block_types=config.up_block_types, **fields
    )
    run = jax.jit(lambda module, x: module(x))
    for ours, theirs, x, arrays in (
        (encoder_decoder.Encoder3D, encoder, bridge.normal(1, 5, 8, 8, 3), 2 * 3),
        (encoder_decoder.Decoder3D, decoder, bridge.normal(1, 3, 4, 4, 4), 0),
    ):
        a, b = bridge.load(
            lambda ours=ours: ours(config, pad_mode="replicate", **bridge.build()), theirs
        )
        y, cache = run(a, x)
        assert bridge.error(y, bridge.last(b(bridge.first(x))[0])) < 2e-5
        assert len(jax.tree.leaves(cache)) == arrays
