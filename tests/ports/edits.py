"""Lines of the ports' sources as someone gets them wrong: kind, text, wrong text, and the modules
of the reference that compute this, in order of execution.
"""

Edit = tuple[str, str, str, tuple[str, ...]]

SCALED = "jax.nn.dot_product_attention(2 * q, k, v"
RIGHT = "jax.nn.dot_product_attention(q, k, v"
EXCHANGED = "jax.nn.dot_product_attention(k, q, v"


def _each(pattern: str, count: int) -> tuple[str, ...]:
    return tuple(pattern.format(at) for at in range(count))


def _bert() -> list[Edit]:
    own = "decode=False, rngs=rngs)"
    given = "decode=False, rngs=rngs, attention_fn=lambda q, k, *a, **o: "
    used, layer = _each("encoder.layer.{}.attention.self", 2), "encoder.layer.{}"
    fn = "nnx.dot_product_attention"
    return [
        ("scale", own, f"{given}{fn}(2 * q, k, *a, **o))", used),
        ("q and k exchanged", own, f"{given}{fn}(k, q, *a, **o))", used),
        ("mask", ", mask=seen", "", used),
        (
            "mask",
            "seen = padding[:, None, None, :] > 0",
            "seen = padding[:, None, None, :] >= 0",
            used,
        ),
        ("activation", "approximate=False", "approximate=True", _each(f"{layer}.intermediate", 2)),
        ("skipped residual", "x + self.mha(", "self.mha(", _each(f"{layer}.attention.output", 2)),
        ("skipped residual", "x + self.down(", "self.down(", _each(f"{layer}.output", 2)),
        ("position offset", "(tokens.shape[1])", "(1, tokens.shape[1] + 1)", ("embeddings",)),
    ]


def _llama() -> list[Edit]:
    layers = _each("model.model.layers.{}", 2)
    used, mlp = (tuple(f"{layer}.{part}" for layer in layers) for part in ("self_attn", "mlp"))
    return [
        ("scale", RIGHT, SCALED, used),
        ("mask", "<= at[:, None]", "< at[:, None] + 2", used),
        ("rotary offset", "q, k = rotate(q, at), ", "q, k = rotate(q, at + 1), ", used),
        ("rotary offset", "one * cos - two * sin", "one * cos + two * sin", used),
        ("q and k exchanged", "q, k, v = jnp.split", "q, v, k = jnp.split", used),
        ("activation", "nnx.silu(gate) * up", "nnx.gelu(gate) * up", mlp),
        ("activation", "nnx.silu(gate) * up", "nnx.silu(up) * gate", mlp),
        ("skipped residual", "x = x + h", "x = h", layers),
        ("skipped residual", "return x + self.w2(", "return self.w2(", layers),
        ("stale cache", ", (k, v)\n", ", (k[:, :-1], v[:, :-1])\n", used),
        ("stale cache", "zip(memory, (k, v)", "zip(memory, (k, memory[1][:, -1:])", used),
        (
            "norm axes",
            "jnp.split(heads, [HEADS, HEADS + GROUPS], axis=2)",
            "jnp.split(heads[:, :, ::-1], [GROUPS, 2 * GROUPS], axis=2)[::-1]",
            used,
        ),
    ]


def _vit() -> list[Edit]:
    layers = _each("layers.{}", 3)
    used = tuple(f"{layer}.attention" for layer in layers)
    before, after = (_each(f"layers.{{}}.layernorm_{x}", 3) for x in ("before", "after"))
    first = "self.n1 = nnx.LayerNorm(WIDTH, epsilon=1e-12"
    second = "self.n2 = nnx.LayerNorm(WIDTH, epsilon=1e-12"
    return [
        ("scale", RIGHT, SCALED, used),
        ("q and k exchanged", RIGHT, EXCHANGED, used),
        ("activation", "approximate=False", "approximate=True", tuple(f"{x}.mlp" for x in layers)),
        ("skipped residual", "x + self.proj(", "self.proj(", layers),
        (
            "skipped residual",
            "return x + self.mlp",
            "return self.mlp",
            tuple(f"{x}.mlp" for x in layers),
        ),
        ("epsilon", first, first.replace("-12", "-5"), before),
        ("epsilon", second, second.replace("-12", "-3"), after),
        ("norm axes", first, first.replace("epsilon", "reduction_axes=-2, epsilon"), before),
        (
            "transposed kernel",
            "[of(merge.weight).T",
            "[of(merge.weight)",
            tuple(f"{x}.o_proj" for x in used),
        ),
        ("position offset", "+ self.pos[...]", "+ jnp.roll(self.pos[...], 1, 1)", ("embeddings",)),
    ]


def _convnext() -> list[Edit]:
    layers = ("encoder.stages.0.layers.0", "encoder.stages.0.layers.1", "encoder.stages.1.layers.0")
    return [
        ("activation", "approximate=False", "approximate=True", layers),
        ("skipped residual", "return x + self.gamma", "return self.gamma", layers),
        ("scale", "self.gamma[...] * ", "", layers),
    ]


def _resnet() -> list[Edit]:
    at = ("encoder.stages.0.layers.0", "encoder.stages.0.layers.1", "encoder.stages.1.layers.0")
    return [
        (
            "activation",
            "nnx.relu(self.bn2(",
            "nnx.silu(self.bn2(",
            tuple(f"{x}.layer.1" for x in at),
        ),
        ("activation", "x = nnx.relu(self.bn1(", "x = nnx.gelu(self.bn1(", ("embedder.embedder",)),
        ("activation", "return nnx.relu(", "return nnx.leaky_relu(", at),
        ("skipped residual", " + (x if self.skip is None else self.skip(x))", "", at),
        ("scale", "x.mean((1, 2), keepdims=True)", "x.sum((1, 2), keepdims=True)", ("pooler",)),
    ]


def _efficientnet() -> list[Edit]:
    each = _each("encoder.blocks.{}", 3)
    gates = tuple(f"{x}.squeeze_excite" for x in each)
    return [
        ("activation", "nnx.silu(self.inner(mean))", "nnx.relu(self.inner(mean))", gates),
        ("scale", "x * nnx.sigmoid(", "x * 2 * nnx.sigmoid(", gates),
        ("skipped residual", "h + x if", "h if", ("encoder.blocks.2",)),
        (
            "activation",
            "self.na1 = NormAct(wide, rngs)",
            "self.na1 = NormAct(wide, rngs, act=False)",
            tuple(f"{x}.depthwise_conv" for x in each),
        ),
    ]


def _clip_text() -> list[Edit]:
    layers = _each("text_model.encoder.layers.{}", 2)
    used, mlp = (tuple(f"{layer}.{x}" for layer in layers) for x in ("self_attn", "mlp"))
    norms = tuple(f"{layer}.layer_norm{i}" for layer in layers for i in (1, 2))
    place = ("text_model.embeddings",)
    return [
        ("scale", RIGHT, SCALED, used),
        ("mask", "jnp.tril(jnp.ones((n, n), bool))", "jnp.ones((n, n), bool)", used),
        ("mask", "jnp.ones((n, n), bool))", "jnp.ones((n, n), bool), 1)", used),
        ("q and k exchanged", RIGHT, EXCHANGED, used),
        ("activation", "h * jax.nn.sigmoid(1.702 * h)", "jax.nn.gelu(h)", mlp),
        ("skipped residual", "x = x + self.attn(", "x = self.attn(", layers),
        ("skipped residual", "return x + self.dense", "return self.dense", layers),
        (
            "epsilon",
            "epsilon=1e-5, use_fast_variance=False) for",
            "epsilon=1e-3, use_fast_variance=False) for",
            norms,
        ),
        (
            "norm axes",
            "epsilon=1e-5, use_fast_variance=False) for",
            "epsilon=1e-5, use_fast_variance=False, reduction_axes=-2) for",
            norms,
        ),
        ("position offset", "self.wpe(jnp.arange(n))", "self.wpe(jnp.arange(n) + 1)", place),
    ]


def _t5() -> list[Edit]:
    """The port has one module."""
    return [
        ("scale", ", q, k) + bias", ", q, k) / SIZE**0.5 + bias", ("",)),
        ("mask", "jnp.where(gap > 0, -jnp.inf", "jnp.where(gap > 1, -jnp.inf", ("",)),
        (
            "position offset",
            "gap = at[None] - at[:, None]",
            "gap = at[None] - at[:, None] + 1",
            ("",),
        ),
        (
            "q and k exchanged",
            'heads(p["q"], x), heads(p["k"], memory)',
            'heads(p["k"], x), heads(p["q"], memory)',
            ("",),
        ),
        ("activation", "jax.nn.relu(", "jax.nn.silu(", ("",)),
        ("skipped residual", "x = x + h @", "x = h @", ("",)),
        ("skipped residual", 'x = x + attend(layer["cross"]', 'x = attend(layer["cross"]', ("",)),
        ("epsilon", "1e-6", "1e-3", ("",)),
        ("norm axes", "jnp.mean(x * x, -1", "jnp.mean(x * x, -2", ("",)),
    ]


def _whisper() -> list[Edit]:
    own = (
        "encoder.layers.0.self_attn",
        "decoder.layers.0.self_attn",
        "decoder.layers.0.encoder_attn",
    )
    layers = ("encoder.layers.0", "decoder.layers.0")
    return [
        ("scale", RIGHT, SCALED, own),
        ("mask", "seen = (at[:, None] >= at)", "seen = (at[:, None] + 1 >= at)", own[1:2]),
        ("mask", "seen = (at[:, None] >= at)", "seen = (at[:, None] <= at)", own[1:2]),
        (
            "q and k exchanged",
            "heads(self.wq(x)), heads(self.wk(memory))",
            "heads(self.wk(x)), heads(self.wq(memory))",
            own,
        ),
        ("activation", "approximate=False)))", "approximate=True)))", layers),
        (
            "activation",
            "nnx.gelu(self.halve(x), approximate=False)",
            "nnx.relu(self.halve(x))",
            ("encoder",),
        ),
        ("skipped residual", "return x + self.outer", "return self.outer", layers),
        ("skipped residual", "x = feed(x + attn(h, h))", "x = feed(attn(h, h))", layers[:1]),
        ("skipped residual", "x = x + self.crosses", "x = self.crosses", layers[1:]),
        ("position offset", "self.places(at)", "self.places(at + 1)", ("decoder",)),
    ]


def _mamba2() -> list[Edit]:
    return [
        ("activation", "nnx.silu(self.filter(", "nnx.gelu(self.filter(", ("mixer",)),
        ("activation", "nnx.silu(gate)", "nnx.sigmoid(gate)", ("mixer.norm",)),
        ("skipped residual", "return x + self.out", "return self.out", ("",)),
        ("skipped residual", "(y + self.skip[...][:, None] * h)", "y", ("mixer",)),
        ("scale", "h * step[..., None]", "h", ("mixer",)),
        (
            "stale cache",
            'jnp.einsum("bhpn,bn->bhp", state, c)',
            'jnp.einsum("bhpn,bn->bhp", new, c)',
            ("mixer",),
        ),
        (
            "stale cache",
            "state = state * decay[..., None, None] + new",
            "state = state + new",
            ("mixer",),
        ),
    ]


def _kl_vae() -> list[Edit]:
    sides = "encoder", "decoder"
    used = tuple(f"{side}.mid_block.attentions.0" for side in sides)
    parts = {
        "encoder": (
            "down_blocks.0.resnets.0",
            "down_blocks.1.resnets.0",
            "mid_block.resnets.0",
            "mid_block.resnets.1",
        ),
        "decoder": (
            "mid_block.resnets.0",
            "mid_block.resnets.1",
            "up_blocks.0.resnets.0",
            "up_blocks.0.resnets.1",
            "up_blocks.1.resnets.0",
            "up_blocks.1.resnets.1",
        ),
    }
    blocks = tuple(f"{side}.{part}" for side in sides for part in parts[side])
    return [
        ("scale", RIGHT, SCALED, used),
        ("q and k exchanged", RIGHT, EXCHANGED, used),
        ("skipped residual", "return x + self.proj", "return self.proj", used),
        ("activation", "nnx.silu(self.n2(h))", "nnx.relu(self.n2(h))", blocks),
        (
            "skipped residual",
            "return h + (x if self.nin is None else self.nin(x))",
            "return h",
            blocks,
        ),
        ("activation", "nnx.silu(self.norm(x))", "nnx.gelu(self.norm(x))", sides),
    ]


def _wan_block() -> list[Edit]:
    convolutions = ("conv_in", "block.conv1", "block.conv2")
    norms = ("block.norm1", "block.norm2")
    return [
        (
            "stale cache",
            "return self.conv(x), x[:, -self.past :]",
            "return self.conv(x), cache",
            convolutions,
        ),
        ("stale cache", "x[:, -self.past :]", "x[:, -self.past - 1 : -1]", convolutions),
        ("stale cache", "h, caches = self.res", "h, _ = self.res", ("",)),
        ("activation", "nnx.silu(self.rms2(h))", "nnx.relu(self.rms2(h))", ("block",)),
        ("skipped residual", "return h + self.skip(x)[0]", "return h", ("block",)),
        ("scale", " * x.shape[-1] ** 0.5", "", norms),
        ("norm axes", "jnp.sum(x * x, -1", "jnp.sum(x * x, -2", norms),
    ]


def _gpt2() -> list[Edit]:
    layers = _each("transformer.h.{}", 2)
    used, mlp = (tuple(f"{layer}.{x}" for layer in layers) for x in ("attn", "mlp"))
    return [
        ("scale", RIGHT, SCALED, used),
        ("mask", "is_causal=True", "is_causal=False", used),
        ("q and k exchanged", RIGHT, EXCHANGED, used),
        ("q and k exchanged", "self.query(h), self.key(h)", "self.key(h), self.query(h)", used),
        ("activation", "approximate=True", "approximate=False", mlp),
        ("skipped residual", "x = x + self.out(", "x = self.out(", layers),
        ("skipped residual", "return x + self.down(", "return self.down(", layers),
        (
            "position offset",
            "jnp.arange(ids.shape[1])",
            "jnp.arange(ids.shape[1]) + 1",
            ("transformer",),
        ),
    ]


EDITS: dict[str, list[Edit]] = {
    "bert": _bert(),
    "llama": _llama(),
    "vit": _vit(),
    "convnext": _convnext(),
    "resnet": _resnet(),
    "efficientnet": _efficientnet(),
    "clip_text": _clip_text(),
    "t5": _t5(),
    "whisper": _whisper(),
    "mamba2": _mamba2(),
    "kl_vae": _kl_vae(),
    "wan_block": _wan_block(),
    "gpt2": _gpt2(),
}
