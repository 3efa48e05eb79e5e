"""The CogVideoX pair, found by the harness as `cogvideox`.

A check against a golden trace needs no torch, and may have none: `reference`, which does, is
imported where it is used.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxvae.io.diffusers_folder import WeightsError, split_source
from jaxvae.io.weights import refuse_nonfinite
from jaxvae.models.cogvideox.autoencoder import AutoencoderKLCogVideoX
from jaxvae.models.cogvideox.config import CogVideoXVAEConfig
from jaxvae.models.config import ConfigError
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
from jaxvae.pairs.cogvideox.mistakes import MISTAKES
from jaxvae.pairs.inputs import CLIP, clip_of
from parity import Case, InputError, Offline, Option, Pair, PairOptions


def prepare() -> None:
    """Import what needs torch."""
    from jaxvae.pairs.cogvideox import reference  # noqa: F401


def make_torch(options: PairOptions, seed: int) -> Any:
    """Return diffusers' model; see `reference`."""
    from jaxvae.pairs.cogvideox import reference

    clip_of(options, seed)  # one that cannot be used is refused before models take memory
    if options["weights"] is not None:
        if options["config"] is not None:
            raise InputError("--weights brings its own configuration: leave --config out")
        # diffusers loads what does not fit, too: the port's reader says what is wrong
        make_nnx(options, None)
    return reference.make_torch(options["weights"], options["config"], seed)


def cases(torch_module: Any, options: PairOptions, seed: int) -> tuple[Case, ...]:
    """Return the clip and noise for every kind of module; see `reference`."""
    from jaxvae.pairs.cogvideox import reference

    return reference.cases(torch_module, clip_of(options, seed), seed)


def unexercised(torch_module: Any, cases: Sequence[Case]) -> tuple[str, ...]:
    """Return the parts of a model of chunks and tiles that no input reaches; see `reference`."""
    from jaxvae.pairs.cogvideox import reference

    return reference.unexercised(torch_module, cases)


def facts(options: PairOptions, seed: int) -> dict[str, str]:
    """Return a report's lines on weights and configuration."""
    weights, config = options["weights"], options["config"]
    random = f"random, torch.manual_seed({seed}), norm weights 1+0.3N, biases 0.2N"
    return {
        "weights": weights or random,
        "config": config or ("of the weights" if weights else "default"),
    }


def make_nnx(options: PairOptions, torch_module: Any) -> AutoencoderKLCogVideoX:
    """Return the port: from the checkpoint `weights`, or with the weights of `torch_module`."""
    weights = options["weights"]
    try:
        if weights is not None:
            model = AutoencoderKLCogVideoX.from_pretrained(*split_source(weights))
            refuse_nonfinite(model, weights)
            return model
        config = read_config(options["config"])
        return AutoencoderKLCogVideoX.from_torch_state(config, state_of(torch_module))
    except (ConfigError, WeightsError) as error:
        raise InputError(str(error)) from error


def make_offline(settings: Mapping[str, Any], tensors: Mapping[str, Any]) -> AutoencoderKLCogVideoX:
    """Return the port with the configuration and the tensors of a recorded reference."""
    try:
        return AutoencoderKLCogVideoX.from_torch_state(
            CogVideoXVAEConfig.from_dict(settings), tensors
        )
    except (ConfigError, WeightsError) as error:
        raise InputError(str(error)) from error


def state_of(module: Any) -> dict[str, Any]:
    """Return a module's tensors as NumPy arrays that share their memory."""
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


PAIR = Pair(
    name="cogvideox",
    make_torch=make_torch,
    make_nnx=make_nnx,
    cases=cases,
    rungs=RUNGS,
    options=(
        *CLIP,
        Option("weights", "Checkpoint for both sides.", metavar="DIR_OR_REPO"),
        Option("config", "Random weights of this configuration.", metavar="NAME_OR_FILE"),
    ),
    declared=DECLARED,
    layout={"*": "channels_first"},
    unexercised=unexercised,
    facts=facts,
    prepare=prepare,
    offline=Offline(
        settings=lambda torch_module: CogVideoXVAEConfig.from_dict(torch_module.config).to_dict(),
        make_nnx=make_offline,
        methods=(encode_nnx, decode_nnx, forward_nnx, forward_shipped, call),
    ),
    mistakes=MISTAKES,
    selftest={"config": "small", "size": "16x16"},
)
