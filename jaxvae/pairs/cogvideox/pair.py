"""The CogVideoX pair, found by the harness as `cogvideox`."""

from jaxvae.models.cogvideox.autoencoder import AutoencoderKLCogVideoX
from jaxvae.pairs.cogvideox.ladder import CONFIGS, DECLARED, RUNGS, call
from jaxvae.pairs.cogvideox.mistakes import MISTAKES
from jaxvae.pairs.family import Family
from jaxvae.pairs.inputs import CLIP, clip_of
from jaxvae.pairs.port import decode_nnx, encode_nnx, forward_nnx, forward_shipped

FAMILY = Family(
    model=AutoencoderKLCogVideoX,
    configs=CONFIGS,
    reference="jaxvae.pairs.cogvideox.reference",
    clip_of=clip_of,
)

PAIR = FAMILY.pair(
    "cogvideox",
    options=CLIP,
    methods=(encode_nnx, decode_nnx, forward_nnx, forward_shipped, call),
    rungs=RUNGS,
    declared=DECLARED,
    layout={"*": "channels_first"},
    mistakes=MISTAKES,
    selftest={"config": "small", "size": "16x16"},
)
