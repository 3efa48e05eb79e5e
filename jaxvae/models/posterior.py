"""The distribution that `encode` returns.

Source: diffusers 0.42.1, `DiagonalGaussianDistribution`.
"""

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jaxvae.layers.rounding import clamp, rounded

Latent = Float[Array, "b *positions c"]

# Of images all but the batch; of videos the width is left, since PyTorch sums dimensions 1, 2 and 3
# of (b, c, t, h, w) too. Here the same axes are named in our layout.
_SUMMED = (1, 2, -1)


@partial(
    jax.tree_util.register_dataclass, data_fields=["parameters"], meta_fields=["deterministic"]
)
@dataclass(frozen=True)
class DiagonalGaussian:
    """Independent normals; `parameters` holds the means and then the log variances, by channel.

    The log variance is clamped to [-30, 20]. `deterministic` makes std and var zero.
    """

    parameters: Float[Array, "b *positions two_c"]
    deterministic: bool = False

    @property
    def mean(self) -> Latent:
        """The mean, also the mode."""
        return self.parameters[..., : self.parameters.shape[-1] // 2]

    @property
    def logvar(self) -> Latent:
        """The log variance, clamped to [-30, 20]."""
        given: Latent = clamp(self.parameters[..., self.parameters.shape[-1] // 2 :], -30.0, 20.0)
        return given

    @property
    def std(self) -> Latent:
        """The standard deviation."""
        if self.deterministic:
            return jnp.zeros_like(self.mean)
        return rounded(lambda logvar: jnp.exp(0.5 * logvar), self.logvar)

    @property
    def var(self) -> Latent:
        """The variance."""
        return jnp.zeros_like(self.mean) if self.deterministic else rounded(jnp.exp, self.logvar)

    def mode(self) -> Latent:
        """Return the most likely latent."""
        return self.mean

    def sample(self, key: Key[Array, "*b"] | None = None, noise: Latent | None = None) -> Latent:
        """Draw with a random key, or from given standard normal noise: exactly one of them.

        A batch of keys, shape (b,), draws each sample with a key of its own, so that it is the same
        in any batch; the source takes a list of generators for that. JAX does not draw PyTorch's
        numbers: to repeat a sample of PyTorch's, hand its noise over, channels last.

        Raises ValueError for neither or both, another number of keys, another shape of noise.
        """
        if (key is None) == (noise is None):
            found = "neither" if key is None else "both"
            raise ValueError(
                f"sample: expected exactly one of `key` and `noise`, found {found}; give"
                " key=jax.random.key(seed), or standard normal noise of the latent's shape"
            )
        mean = self.mean
        if key is not None:
            noise = _draw(key, mean)
        assert noise is not None
        if noise.shape != mean.shape:
            raise ValueError(f"sample: expected noise of shape {mean.shape}, found {noise.shape}")
        product = rounded(jnp.multiply, self.std, jnp.asarray(noise, mean.dtype))
        return rounded(jnp.add, mean, product)

    def kl(self, other: "DiagonalGaussian | None" = None) -> Float[Array, "..."]:
        """Return the divergence from `other` or N(0, 1), summed over an image: (b,).

        Of a video the width is left over, as in PyTorch: (b, t, h, w, c) gives (b, w). A
        deterministic distribution gives [0.].
        """
        if self.deterministic:
            return jnp.zeros((1,))
        mean, var = self.mean, self.var
        if other is not None:
            distance = rounded(jnp.square, rounded(jnp.subtract, mean, other.mean))
            terms = rounded(jnp.divide, distance, other.var)
            terms = rounded(jnp.add, terms, rounded(jnp.divide, var, other.var))
        else:
            terms = rounded(jnp.add, rounded(jnp.square, mean), var)
        terms = rounded(lambda x: x - 1.0, terms)
        terms = rounded(jnp.subtract, terms, self.logvar)
        if other is not None:
            terms = rounded(jnp.add, terms, other.logvar)
        return _half_sum(terms)

    def nll(self, x: Latent) -> Float[Array, "..."]:
        """Return the negative log likelihood of `x`, summed over the same axes as `kl`."""
        if self.deterministic:
            return jnp.zeros((1,))
        distance = rounded(jnp.square, rounded(jnp.subtract, x, self.mean))
        constant = rounded(lambda logvar: math.log(2.0 * math.pi) + logvar, self.logvar)
        return _half_sum(rounded(jnp.add, constant, rounded(jnp.divide, distance, self.var)))


def _half_sum(terms: Latent) -> Float[Array, "*b"]:
    # Half of a rounded number is exact.
    return rounded(lambda x: 0.5 * jnp.sum(x, axis=_SUMMED), terms)


def _draw(key: Key[Array, "*b"], like: Latent) -> Latent:
    """Standard normal values of one latent's shape, from one key or from one for each sample."""
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)  # what jax.random.PRNGKey makes
    batch, *shape = like.shape
    if key.shape == ():
        return jax.random.normal(key, like.shape, like.dtype)
    if key.shape != (batch,):
        raise ValueError(
            f"sample: expected one key, or one for each of the {batch} samples, found keys of shape"
            f" {key.shape}"
        )
    return jax.vmap(lambda one: jax.random.normal(one, shape, like.dtype))(key)
