"""The Wan pair, found by the harness as `wan`."""

from dataclasses import replace

from jaxvae.models.wan.autoencoder import AutoencoderKLWan
from jaxvae.pairs.family import Family
from jaxvae.pairs.inputs import CLIP, clip_of
from jaxvae.pairs.port import decode_nnx, encode_nnx, forward_nnx, forward_shipped
from jaxvae.pairs.wan.ladder import CONFIGS, RUNGS, call
from jaxvae.pairs.wan.mistakes import MISTAKES

FAMILY = Family(
    model=AutoencoderKLWan,
    configs=CONFIGS,
    reference="jaxvae.pairs.wan.reference",
    clip_of=clip_of,
)

PAIR = FAMILY.pair(
    "wan",
    # three chunks: one without caches, one after "Rep", one after that
    options=tuple(replace(one, default=9) if one.name == "frames" else one for one in CLIP),
    methods=(encode_nnx, decode_nnx, forward_nnx, forward_shipped, call),
    rungs=RUNGS,
    layout={"*": "channels_first"},
    mistakes=MISTAKES,
    selftest={"config": "small2.2", "size": "16x16"},
)
