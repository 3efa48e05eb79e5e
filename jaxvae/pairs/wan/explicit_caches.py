"""diffusers' modules with caches that go in and come out, as the port's do.

Its modules share one list of caches and one counter, which each of them writes to: what a call does
is not told by its arguments and what it returns. Here a module gets its own part of the list, and
returns what it wrote there. What is computed is diffusers' code.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d

Caches = Mapping[str, Any]
"""A module's caches by the path of the convolution that each is for."""


def make_explicit(model: torch.nn.Module) -> torch.nn.Module:
    """Return `model`, all modules with caches changed in place."""
    module: Any
    for module in model.modules():
        kind = type(module)
        if "feat_idx" in inspect.signature(kind.forward).parameters:
            # in the order in which they run; a shortcut of one frame looks at no other
            module.cached = tuple(
                path
                for path, inner in module.named_modules()
                if isinstance(inner, WanCausalConv3d) and not path.endswith("conv_shortcut")
            )
            module.__class__ = type(kind.__name__, (_Explicit, kind), {})
    return model


class _Explicit(torch.nn.Module):
    cached: tuple[str, ...]
    mode: str

    def __call__(
        self, x: Any, feat_cache: Any = None, feat_idx: list[int] | None = None, **options: Any
    ) -> Any:
        """Call from diffusers' code, with the list and the counter, or with caches alone."""
        if feat_idx is None:
            return super().__call__(x, feat_cache, **options)
        start = feat_idx[0]
        end = start + len(self.cached)
        known = dict(zip(self.cached, feat_cache[start:end], strict=True))
        first = any(one is None for one in known.values())
        output, caches = super().__call__(x, None if first else known, **options)
        feat_cache[start:end] = caches.values()
        feat_idx[0] = end
        return output

    def forward(self, x: Any, feat_cache: Caches | None = None, **options: Any) -> Any:
        """Run diffusers' code on a list and a counter of its own."""
        given = feat_cache or dict.fromkeys(self.cached)
        caches = [self._given(path, given[path]) for path in self.cached]
        output = super().forward(x, feat_cache=caches, feat_idx=[0], **options)
        kept = zip(self.cached, caches, strict=True)
        return output, {path: self._kept(path, cache, x) for path, cache in kept}

    def _given(self, path: str, cache: Any) -> Any:
        """The cache as diffusers' code has it: where it is all zeros time upsampling has "Rep"."""
        doubles = path == "time_conv" and self.mode == "upsample3d"
        if cache is None or not doubles or cache.is_meta or cache.any():
            return cache
        return "Rep"

    def _kept(self, path: str, cache: Any, x: Any) -> Any:
        """The cache as the port has it: of a shape that stays, zeros where nothing has been yet."""
        if "." in path:
            return cache  # of a module inside
        if isinstance(cache, str):
            return x.new_zeros(*x.shape[:2], 2, *x.shape[3:])
        if path == "time_conv" and self.mode == "downsample3d":
            return cache[:, :, -1:]
        return torch.nn.functional.pad(cache, (0, 0, 0, 0, 2 - cache.shape[2], 0))
