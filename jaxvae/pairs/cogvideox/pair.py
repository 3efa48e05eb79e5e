"""The CogVideoX pair, found by the harness as `cogvideox`.

A check against a golden trace needs no torch, and may have none: what does is in `reference`, which
is imported where it is used.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxvae.io.diffusers_folder import WeightsError, split_source
from jaxvae.io.weights import refuse_nonfinite
from jaxvae.models.cogvideox.autoencoder import AutoencoderKLCogVideoX
from jaxvae.models.cogvideox.config import CogVideoXVAEConfig, ConfigError
from jaxvae.pairs.cogvideox.ladder import (
    DECLARED,
    RUNGS,
    call,
    decode_nnx,
    encode_nnx,
    forward_nnx,
    forward_shipped,
    read_config,
)
from jaxvae.pairs.cogvideox.mistakes import WRONG
from parity.core.exceptions import InputError
from parity.core.pair import Case, Clip, Offline, Pair
from parity.selftest.mistakes import behaviour


def prepare() -> None:
    """Import what needs torch."""
    from jaxvae.pairs.cogvideox import reference  # noqa: F401


def make_torch(weights: str | None, config: str | None, seed: int) -> Any:
    """diffusers' model; see `reference`."""
    from jaxvae.pairs.cogvideox import reference

    return reference.make_torch(weights, config, seed)


def cases(torch_module: Any, clip: Clip, seed: int) -> tuple[Case, ...]:
    """The clip and noise through every kind of module; see `reference`."""
    from jaxvae.pairs.cogvideox import reference

    return reference.cases(torch_module, clip, seed)


def unexercised(torch_module: Any, cases: Sequence[Case]) -> tuple[str, ...]:
    """What the inputs leave out of a model that works in chunks and tiles; see `reference`."""
    from jaxvae.pairs.cogvideox import reference

    return reference.unexercised(torch_module, cases)


def facts(clip: Clip, weights: str | None, config: str | None, seed: int) -> dict[str, str]:
    """What a report says of input, weights and configuration."""
    random = f"random, torch.manual_seed({seed}), norm weights 1+0.3N, biases 0.2N"
    return {
        "input": clip.source,
        "weights": weights or random,
        "config": config or ("of the weights" if weights else "default"),
    }


def make_nnx(weights: str | None, config: str | None, torch_module: Any) -> AutoencoderKLCogVideoX:
    """The port: from the checkpoint `weights`, or with the weights of `torch_module`."""
    try:
        if weights is not None:
            model = AutoencoderKLCogVideoX.from_pretrained(*split_source(weights))
            refuse_nonfinite(model, weights)
            return model
        return AutoencoderKLCogVideoX.from_torch_state(read_config(config), StateDict(torch_module))
    except (ConfigError, WeightsError) as error:
        raise InputError(str(error)) from error


def make_offline(settings: Mapping[str, Any], tensors: Mapping[str, Any]) -> AutoencoderKLCogVideoX:
    """The port with the configuration and the tensors of a recorded reference."""
    try:
        return AutoencoderKLCogVideoX.from_torch_state(
            CogVideoXVAEConfig.from_dict(settings), tensors
        )
    except (ConfigError, WeightsError) as error:
        raise InputError(str(error)) from error


class StateDict(Mapping[str, Any]):
    """A module's tensors as NumPy arrays that share their memory."""

    def __init__(self, module: Any) -> None:
        self._tensors = module.state_dict()

    def __getitem__(self, name: str) -> Any:
        return self._tensors[name].numpy()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


PAIR = Pair(
    name="cogvideox",
    make_torch=make_torch,
    make_nnx=make_nnx,
    cases=cases,
    rungs=RUNGS,
    declared=DECLARED,
    layout={"*": "move"},
    unexercised=unexercised,
    facts=facts,
    prepare=prepare,
    offline=Offline(
        settings=lambda torch_module: CogVideoXVAEConfig.from_dict(torch_module.config).to_dict(),
        make_nnx=make_offline,
        methods=(encode_nnx, decode_nnx, forward_nnx, forward_shipped, call),
    ),
    mistakes=tuple(
        behaviour(
            one.name, one.causes, one.call, one.kinds, one.where, one.method,
            cases="*" if one.method == "__call__" else f"{one.method}/*",
        )
        for one in WRONG
    ),
)  # fmt: skip
