"""A pair of an autoencoder: what does not depend on which one it is.

A check against a golden trace needs no torch, and may have none: the module of the reference, which
does, is imported where it is used.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import jax
from flax import nnx

from jaxvae.io.diffusers_folder import WeightsError, split_source
from jaxvae.io.weights import refuse_nonfinite
from jaxvae.models.autoencoder import Autoencoder
from jaxvae.models.config import ConfigError, VAEConfig
from jaxvae.pairs.inputs import Clip
from jaxvae.pairs.port import read_config
from parity import Case, InputError, Offline, Option, Pair, PairOptions


@dataclass(frozen=True)
class Family:
    """The port's class, its configurations by name (the first is the default), and its reference.

    `reference` names a module with `make_torch(weights, config, seed)`, `cases(torch_module, clip,
    seed)` and `unexercised(torch_module, cases)`. `clip_of` makes the clip that the options choose.
    """

    model: type[Autoencoder]
    configs: Mapping[str, VAEConfig]
    reference: str
    clip_of: Callable[[PairOptions, int], Clip]

    def prepare(self, options: PairOptions, seed: int) -> None:
        """Refuse what cannot be run, before the import of what needs torch, which takes seconds."""
        self._refuse(options, seed)
        self.source()

    def source(self) -> Any:
        """Return the module of the reference."""
        return import_module(self.reference)

    def _refuse(self, options: PairOptions, seed: int) -> None:
        self.clip_of(options, seed)  # one that cannot be used is refused before models take memory
        if options["weights"] is not None and options["config"] is not None:
            raise InputError("--weights brings its own configuration: leave --config out")

    def make_torch(self, options: PairOptions, seed: int) -> Any:
        """Return diffusers' model; see the module of the reference."""
        self._refuse(options, seed)
        if options["weights"] is not None:
            # diffusers loads what does not fit, too: the port's reader says what is wrong
            self.make_nnx(options, None)
        elif options["config"] not in (None, *self.configs):
            self._refuse_large(options["config"])
        return self.source().make_torch(options["weights"], options["config"], seed)

    def _refuse_large(self, config: str) -> None:
        model = self.model.without_values(read_config(self.configs, config))
        needed = sum(4 * leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > found / 2:  # both sides have them
            raise InputError(
                f"{config}: its weights take {needed / 1e9:.3g} GB on each side, and this machine"
                f" has {found / 1e9:.3g} GB; choose a smaller one"
            )

    def cases(self, torch_module: Any, options: PairOptions, seed: int) -> tuple[Case, ...]:
        """Return the clip and noise for every kind of module."""
        made: tuple[Case, ...] = self.source().cases(
            torch_module, self.clip_of(options, seed), seed
        )
        return made

    def unexercised(self, torch_module: Any, cases: Sequence[Case]) -> tuple[str, ...]:
        """Return the parts of the model that no input reaches."""
        found: tuple[str, ...] = self.source().unexercised(torch_module, cases)
        return found

    def facts(self, options: PairOptions, seed: int) -> dict[str, str]:
        """Return a report's lines on weights and configuration."""
        weights, config = options["weights"], options["config"]
        random = f"random, torch.manual_seed({seed}), norm weights 1+0.3N, biases 0.2N"
        return {
            "weights": weights or random,
            "config": config or ("of the weights" if weights else next(iter(self.configs))),
        }

    def make_nnx(self, options: PairOptions, torch_module: Any) -> Autoencoder:
        """Return the port: from the checkpoint `weights`, or with the weights of `torch_module`."""
        weights = options["weights"]
        try:
            if weights is not None:
                model = self.model.from_pretrained(*split_source(weights))
                refuse_nonfinite(model, weights)
                return model
            config = read_config(self.configs, options["config"])
            return self.model.from_torch_state(config, state_of(torch_module))
        except (ConfigError, WeightsError) as error:
            raise InputError(str(error)) from error

    def make_offline(self, settings: Mapping[str, Any], tensors: Mapping[str, Any]) -> Autoencoder:
        """Return the port with the configuration and the tensors of a recorded reference."""
        try:
            config = self.model.config_class.from_dict(settings)
            return self.model.from_torch_state(config, tensors)
        except (ConfigError, WeightsError) as error:
            raise InputError(str(error)) from error

    def pair(
        self,
        name: str,
        options: tuple[Option, ...],
        methods: tuple[Callable[..., Any], ...],
        **fields: Any,
    ) -> Pair:
        """Return the pair; `methods` are what cases call on the port, `fields` all that is its own.

        Its `options` are followed by `weights` and `config`.
        """
        settings = self.model.config_class.from_dict
        return Pair(
            name=name,
            make_torch=self.make_torch,
            make_nnx=self.make_nnx,
            cases=self.cases,
            unexercised=self.unexercised,
            facts=self.facts,
            prepare=self.prepare,
            options=(
                *options,
                Option("weights", "Checkpoint for both sides.", metavar="DIR_OR_REPO"),
                Option("config", "Random weights of this configuration.", metavar="NAME_OR_FILE"),
            ),
            offline=Offline(
                settings=lambda torch_module: settings(torch_module.config).to_dict(),
                make_nnx=self.make_offline,
                methods=methods,
            ),
            **fields,
        )


def state_of(module: Any) -> dict[str, Any]:
    """Return a module's tensors as NumPy arrays that share their memory."""
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}
