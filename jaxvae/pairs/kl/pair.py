"""The pair of the autoencoder of images, found by the harness as `kl`."""

from jaxvae.models.kl.autoencoder import AutoencoderKL
from jaxvae.pairs.family import Family
from jaxvae.pairs.inputs import PICTURES, picture_of
from jaxvae.pairs.kl.ladder import CONFIGS, LAYOUT, RUNGS
from jaxvae.pairs.kl.mistakes import MISTAKES
from jaxvae.pairs.port import call, decode_nnx, encode_nnx, forward_nnx, forward_shipped

FAMILY = Family(
    model=AutoencoderKL,
    configs=CONFIGS,
    reference="jaxvae.pairs.kl.reference",
    clip_of=picture_of,
)

PAIR = FAMILY.pair(
    "kl",
    options=PICTURES,
    methods=(encode_nnx, decode_nnx, forward_nnx, forward_shipped, call),
    rungs=RUNGS,
    layout=LAYOUT,
    mistakes=MISTAKES,
    selftest={"config": "small", "size": "16x16"},
)
