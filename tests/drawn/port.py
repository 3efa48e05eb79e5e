"""The port of a drawn net: right, in a drawn style, or with one mistake."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tests.drawn.grammar import Net, Node
from tests.ports.loading import of

ACTIVATIONS = {
    "relu": jax.nn.relu, "gelu": lambda x: jax.nn.gelu(x, approximate=False), "silu": jax.nn.silu,
    "tanh": jnp.tanh, "leaky_relu": jax.nn.leaky_relu,
}  # fmt: skip
OTHERS = {
    "relu": "leaky_relu",
    "gelu": "silu",
    "silu": "gelu",
    "tanh": "relu",
    "leaky_relu": "relu",
}

MISTAKES = {
    "linear": ("kernel scaled", "bias lost", "outputs exchanged"),
    "layer_norm": ("epsilon", "bias lost", "unbiased", "not centred"),
    "rms_norm": ("epsilon", "centred"),
    "act": ("another",),
    "scale": ("lost", "reversed"),
    "conv1d": ("flipped", "bias lost", "shifted", "kernel scaled"),
    "conv": ("flipped", "bias lost", "shifted", "kernel scaled", "edges"),
    "batch_norm": ("epsilon", "own statistics", "not centred"),
    "group_norm": ("one group", "interleaved", "unbiased"),
    "dropout": ("scaled",),
    "mlp": ("no activation", "added"),
    "gated": ("exchanged", "gelu"),
    "attention": ("no scale", "heads last", "over queries", "mask", "exchanged"),
    "squeeze": ("maximum", "gelu", "no sigmoid"),
    "residual": ("lost", "doubled"),
    "chain": ("exchanged", "one lost"),
    "branches": ("one lost", "exchanged"),
    "twice": ("once", "between"),
    "net": ("maximum", "first"),
}


@dataclass(frozen=True)
class Mistake:
    """One that the code of a node makes."""

    node: Node
    name: str


@dataclass(frozen=True)
class Style:
    """What right ports do differently."""

    names: str
    """of attributes: as the reference's, others, flat with numbers."""
    arguments: str
    fused: bool
    leaves: str
    """layers of Flax, the port's own modules, or functions over what is held."""
    first: bool
    """True if images come in and go out channel-first."""
    wrapped: bool


def style(seed: int) -> Style:
    """A style."""
    rng = np.random.default_rng([seed, 2])
    pick = lambda *values: values[int(rng.integers(len(values)))]  # noqa: E731
    return Style(
        pick("same", "others", "flat"), pick("position", "keyword"), pick(True, False),
        pick("stock", "own", "function"), pick(True, False, False), pick(True, False, False),
    )  # fmt: skip


# A leaf's code: its parameters, the input, what it is, and the name of a mistake


def _linear(p: Any, x: Any, f: Any, wrong: str) -> Any:
    y = x @ p["kernel"] * (1.05 if wrong == "kernel scaled" else 1)
    y = y + p["bias"] if "bias" in p and wrong != "bias lost" else y
    return jnp.roll(y, 1, -1) if wrong == "outputs exchanged" else y


def _normed(x: Any, axes: Any, eps: float, wrong: str) -> Any:
    mean, eps = x.mean(axes, keepdims=True), 1e-2 if wrong == "epsilon" else eps
    centred = x if wrong == "not centred" else x - mean
    variance = jnp.square(x - mean).mean(axes, keepdims=True)
    count = np.prod([x.shape[axis] for axis in axes])
    variance = variance * count / (count - 1) if wrong == "unbiased" else variance
    return centred * jax.lax.rsqrt(variance + eps)


def _layer_norm(p: Any, x: Any, f: Any, wrong: str) -> Any:
    y = _normed(x, (-1,), f["eps"], wrong) * p["scale"]
    return y if wrong == "bias lost" else y + p["bias"]


def _rms_norm(p: Any, x: Any, f: Any, wrong: str) -> Any:
    x = x - x.mean(-1, keepdims=True) if wrong == "centred" else x
    eps = 1e-2 if wrong == "epsilon" else f["eps"]
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + eps) * p["scale"]


def _batch_norm(p: Any, x: Any, f: Any, wrong: str) -> Any:
    if wrong == "own statistics":
        return _normed(x, (0, 1, 2), f["eps"], "") * p["scale"] + p["bias"]
    centred = x if wrong == "not centred" else x - p["mean"]
    eps = 1e-2 if wrong == "epsilon" else f["eps"]
    return centred * jax.lax.rsqrt(p["var"] + eps) * p["scale"] + p["bias"]


def _group_norm(p: Any, x: Any, f: Any, wrong: str) -> Any:
    groups = 1 if wrong == "one group" else f["groups"]
    if wrong == "interleaved":
        y = _normed(x.reshape(*x.shape[:-1], -1, groups), (1, 2, 3), f["eps"], "")
    else:
        y = _normed(x.reshape(*x.shape[:-1], groups, -1), (1, 2, 4), f["eps"], wrong)
    return y.reshape(x.shape) * p["scale"] + p["bias"]


def _conv(p: Any, x: Any, f: Any, wrong: str) -> Any:
    kernel = p["kernel"] * (1.05 if wrong == "kernel scaled" else 1)
    space = tuple(range(kernel.ndim - 2))
    kernel = jnp.flip(kernel, space) if wrong == "flipped" else kernel
    pad = f["size"] // 2
    pads = [(pad + 1, pad - 1) if wrong == "shifted" else (pad, pad) for _ in space]
    if wrong == "edges":
        x = jnp.pad(x, [(0, 0), *pads, (0, 0)], mode="edge")
        pads = [(0, 0) for _ in space]
    letters = "HW"[: len(space)]
    y = jax.lax.conv_general_dilated(
        x, kernel, [1] * len(space), pads, feature_group_count=f["groups"],
        dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
    )  # fmt: skip
    return y + p["bias"] if "bias" in p and wrong != "bias lost" else y


def _scale(p: Any, x: Any, f: Any, wrong: str) -> Any:
    return x if wrong == "lost" else x * (p["scale"][::-1] if wrong else p["scale"])


LEAVES = {
    "linear": _linear, "layer_norm": _layer_norm, "rms_norm": _rms_norm, "scale": _scale,
    "batch_norm": _batch_norm, "group_norm": _group_norm, "conv": _conv, "conv1d": _conv,
    "act": lambda p, x, f, wrong: ACTIVATIONS[OTHERS[f["name"]] if wrong else f["name"]](x),
    "dropout": lambda p, x, f, wrong: x / 0.7 if wrong else x,
}  # fmt: skip


def _stock(node: Node) -> nnx.Module | None:
    f, width, rngs = node.facts, node.width, nnx.Rngs(0)
    norm = {"epsilon": f.get("eps"), "use_fast_variance": False, "rngs": rngs}
    match node.kind:
        case "linear":
            return nnx.Linear(width, f["out"], use_bias=f["bias"], rngs=rngs)
        case "layer_norm":
            return nnx.LayerNorm(width, **norm)
        case "rms_norm":
            return nnx.RMSNorm(width, **norm)
        case "group_norm":
            return nnx.GroupNorm(width, num_groups=f["groups"], **norm)
        case "batch_norm":
            return nnx.BatchNorm(width, use_running_average=True, momentum=0.9, **norm)
        case "conv" | "conv1d":
            size = (f["size"],) * (1 if node.kind == "conv1d" else 2)
            pad = [(n // 2, n // 2) for n in size]
            groups = {"feature_group_count": f["groups"], "use_bias": f["bias"], "rngs": rngs}
            return nnx.Conv(width, width, size, padding=pad, **groups)
    return None


# The code of a module with others inside; `b` is the block


def _attention(b: Any, x: Any, mask: Any) -> Any:
    batch, length, width = x.shape
    heads = b.node.facts["heads"]
    if b.fused:
        parts = jnp.split(b.call("qkv", x, mask), 3, -1)
    else:
        parts = [b.call(role, x, mask) for role in ("q", "k", "v")]
    if b.wrong == "exchanged":
        parts = [parts[1], parts[0], parts[2]]
    if b.wrong == "heads last":
        q, k, v = (p.reshape(batch, length, -1, heads).transpose(0, 3, 1, 2) for p in parts)
    else:
        q, k, v = (p.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3) for p in parts)
    scores = q @ k.swapaxes(2, 3) / (1 if b.wrong == "no scale" else (width // heads) ** 0.5)
    seen = jnp.ones((1, 1, length, length), bool)
    if b.node.facts["causal"] and not (b.wrong == "mask" and mask is None):
        seen = jnp.tril(seen)
    if mask is not None and b.wrong != "mask":
        seen = seen & mask[:, None, None, :]
    scores = jnp.where(seen, scores, -jnp.inf)
    mixed = jax.nn.softmax(scores, -2 if b.wrong == "over queries" else -1) @ v
    return b.call("out", mixed.transpose(0, 2, 1, 3).reshape(x.shape), mask)


def _gated(b: Any, x: Any, mask: Any) -> Any:
    if b.fused:
        gate, up = jnp.split(b.call("both", x, mask), 2, -1)
    else:
        gate, up = b.call("gate", x, mask), b.call("up", x, mask)
    gate, up = (up, gate) if b.wrong == "exchanged" else (gate, up)
    act = ACTIVATIONS["gelu" if b.wrong == "gelu" else "silu"]
    return b.call("down", act(gate) * up, mask)


def _squeeze(b: Any, x: Any, mask: Any) -> Any:
    mean = x.max((1, 2)) if b.wrong == "maximum" else x.mean((1, 2))
    act = ACTIVATIONS["gelu" if b.wrong == "gelu" else "relu"]
    gate = b.call("up", act(b.call("down", mean, mask)), mask)
    return x * (gate if b.wrong == "no sigmoid" else jax.nn.sigmoid(gate))[:, None, None]


def _mlp(b: Any, x: Any, mask: Any) -> Any:
    h = b.call("up", x, mask)
    h = h if b.wrong == "no activation" else b.call("act", h, mask)
    return b.call("down", h, mask) + (x if b.wrong == "added" else 0)


def _residual(b: Any, x: Any, mask: Any) -> Any:
    return {"": 1, "lost": 0, "doubled": 2}[b.wrong] * x + b.call("inner", x, mask)


def _chain(b: Any, x: Any, mask: Any) -> Any:
    roles = [*b.node.parts]
    if b.wrong:
        roles = [*roles[:-2], *roles[-2:][::-1]] if b.wrong == "exchanged" else roles[:-1]
    for role in roles:
        x = b.call(role, x, mask)
    return x


def _branches(b: Any, x: Any, mask: Any) -> Any:
    made, join = [b.call(role, x, mask) for role in b.node.parts], b.node.facts["join"]
    if b.wrong == "exchanged":
        made = [made[1], made[0], *made[2:]]
    if b.wrong == "one lost":
        made[-1] = jnp.zeros_like(made[-1])
    if join == "sum":
        return sum(made)
    if join == "product":
        return made[0] * jax.nn.sigmoid(made[1]) + sum(made[2:])
    pieces = [jnp.array_split(y, len(made), -1)[i] for i, y in enumerate(made)]
    return jnp.concatenate(pieces, -1)


def _twice(b: Any, x: Any, mask: Any) -> Any:
    between = {"tanh": jnp.tanh, "sin": jnp.sin}[b.node.facts["between"]]
    between = jax.nn.relu if b.wrong == "between" else between
    y = between(b.call("first", x, mask))
    return y if b.wrong == "once" else b.call("second", y, mask)


def _net(b: Any, x: Any, mask: Any) -> Any:
    turn = x.ndim == 4 and b.style.first
    hidden = b.call("body", x.transpose(0, 2, 3, 1) if turn else x, mask)
    axes = (1, 2) if x.ndim == 4 else (1,)
    pooled = {"": hidden.mean, "maximum": hidden.max}.get(b.wrong, hidden[:, 0:1].mean)(axes)
    logits = b.call("head", pooled, mask)
    hidden = hidden.transpose(0, 3, 1, 2) if turn else hidden
    return {
        "array": logits,
        "tuple": (hidden, logits),
        "dict": {"hidden": hidden, "logits": logits},
    }[b.node.facts["returns"]]


CODE = {
    "attention": _attention, "gated": _gated, "squeeze": _squeeze, "mlp": _mlp, "net": _net,
    "residual": _residual, "chain": _chain, "branches": _branches, "twice": _twice,
}  # fmt: skip


class Params(nnx.Module):
    """Parameters, each with the name of the code and one of its own."""

    def __init__(self, held: dict[str, Any], names: dict[str, str]) -> None:
        self.names = tuple((name, names.get(name, name)) for name in held)
        for name, own in self.names:
            setattr(self, own, nnx.Param(held[name]))

    def values(self) -> dict[str, Any]:
        return {name: getattr(self, own)[...] for name, own in self.names}


class Own(Params):
    """A leaf that the port has written itself."""

    run: Any

    def __call__(self, x: Any) -> Any:
        return self.run(self.values(), x)


class Block(nnx.Module):
    """A module with others inside; each has a class of its own, which says what it is."""

    node: Node
    style: Style
    wrong: str
    fused: bool
    places: dict[str, tuple[Any, ...]]
    """By role the attributes that lead to a part, and the function over what that holds if it is
    none that is called."""

    def __call__(self, x: Any, mask: Any = None) -> Any:
        return CODE[self.node.kind](self, x, mask)

    def call(self, role: str, x: Any, mask: Any) -> Any:
        keys, run = self.places[role]
        part: Any = self
        for key in keys:
            part = getattr(part, key) if isinstance(key, str) else part[key]
        if run is not None:
            return run(part.values() if keys else {}, x)
        return part.hand(x, mask) if isinstance(part, (Block, Wrapper)) else part(x)

    def hand(self, x: Any, mask: Any) -> Any:
        return self(x, mask)


class KeywordBlock(Block):
    """The same with other arguments."""

    def __call__(self, hidden: Any, *, keep: Any = None) -> Any:
        return CODE[self.node.kind](self, hidden, keep)

    def hand(self, x: Any, mask: Any) -> Any:
        return self(hidden=x, keep=mask)


class Wrapper(nnx.Module):
    """A module that only the port has."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, x: Any, mask: Any = None) -> Any:
        return self.inner.hand(x, mask)

    def hand(self, x: Any, mask: Any) -> Any:
        return self(x, mask)


OTHER_NAMES = {
    "q": "query", "k": "key", "v": "value", "qkv": "c_attn", "out": "c_proj", "up": "fc_in",
    "down": "fc_out", "gate": "w1", "both": "w13", "kernel": "w", "bias": "b", "scale": "gamma",
    "body": "encoder", "head": "classifier", "inner": "fn", "left": "a", "right": "b",
    "layers": "stack", "blocks": "stages", "first": "again", "second": "still",
}  # fmt: skip


class _Maker:
    """Parts for nodes: a module, or (its parameters, a function over them)."""

    def __init__(self, weights: dict[int, Any], how: Style, mistake: Mistake | None) -> None:
        self._weights, self._style, self._mistake = weights, how, mistake
        self._names = {} if how.names == "same" else OTHER_NAMES
        self._made: dict[int, Any] = {}

    def part(self, node: Node) -> Any:
        if id(node) not in self._made:
            made = self._leaf(node) if node.kind in LEAVES else self._block(node)
            self._made[id(node)] = made
        return self._made[id(node)]

    def _wrong(self, node: Node) -> str:
        return self._mistake.name if self._mistake and self._mistake.node is node else ""

    def _leaf(self, node: Node) -> Any:
        held, wrong, style = self._weights[id(node)], self._wrong(node), self._style.leaves
        stock = _stock(node) if style == "stock" and not wrong else None
        if stock is not None:
            for name, array in held.items():
                getattr(stock, name)[...] = array
            return stock

        def run(p: Any, x: Any) -> Any:
            return LEAVES[node.kind](p, x, node.facts, wrong)

        if style == "function":
            return Params(held, self._names), run
        kind = node.kind.title().replace("_", "")
        return type(kind, (Own,), {"run": staticmethod(run)})(held, self._names)

    def _block(self, node: Node) -> Any:
        parts = dict(node.parts)
        fused = self._fuse(node, parts)
        made = {role: self.part(part) for role, part in parts.items()}
        keyword = self._style.arguments == "keyword" and node.kind != "net"
        places: dict[str, Any] = {}
        known = {"node": node, "style": self._style, "wrong": self._wrong(node), "fused": fused}
        cls = type(
            node.kind.title(), (KeywordBlock if keyword else Block,), {**known, "places": places}
        )
        block = cls()
        held, modules = node.facts.get("held"), {}
        for role, part in made.items():
            part, run = part if isinstance(part, tuple) else (part, None)
            name = self._names.get(role, role)
            if isinstance(part, Params) and run and not part.names:
                places[role] = (), run
            elif self._style.names == "flat" or held not in ("list", "dict"):
                name = f"{held}_{role}" if self._style.names == "flat" and held else name
                setattr(block, name, part)
                places[role] = (name,), run
            else:
                group = self._names.get("layers" if held == "list" else "blocks", "layers")
                places[role] = (group, len(modules) if held == "list" else name), run
                modules[name] = part
        if modules:
            setattr(
                block, group, nnx.List(modules.values()) if held == "list" else nnx.Dict(modules)
            )
        return Wrapper(block) if self._style.wrapped and node.kind == "chain" else block

    def _fuse(self, node: Node, parts: dict[str, Node]) -> bool:
        """Put one node for those that the port holds as one; False if there are none."""
        roles = {"attention": ("q", "k", "v"), "gated": ("gate", "up")}.get(node.kind)
        if roles is None or not self._style.fused or any(self._wrong(parts[r]) for r in roles):
            return False
        pieces = [parts.pop(role) for role in roles]
        first = pieces[0]
        whole = Node(
            "linear",
            first.width,
            False,
            {**first.facts, "out": sum(p.facts["out"] for p in pieces)},
        )
        arrays = [self._weights[id(piece)] for piece in pieces]
        self._weights[id(whole)] = {
            n: jnp.concatenate([a[n] for a in arrays], -1) for n in arrays[0]
        }
        parts["qkv" if node.kind == "attention" else "both"] = whole
        return True


def _weights(net: Net, theirs: dict[int, Any]) -> dict[int, dict[str, Any]]:
    """The tensors of every leaf by the names that the port's code has for them."""
    found: dict[int, dict[str, Any]] = {}
    for node in net.root.walk():
        if node.facts.get("packed"):
            for i, role in enumerate(("q", "k", "v")):
                arrays = _tensors(theirs[id(node)].qkv, "linear")
                found[id(node.parts[role])] = {n: jnp.split(a, 3, -1)[i] for n, a in arrays.items()}
        elif node.kind in LEAVES and id(node) in theirs:
            found[id(node)] = _tensors(theirs[id(node)], node.kind)
    return found


def _tensors(module: Any, kind: str) -> dict[str, Any]:
    names = {"running_mean": "mean", "running_var": "var", "bias": "bias"}
    found = {}
    for name, tensor in module.state_dict().items():
        array = of(tensor)
        if name == "weight" and array.ndim > 1:
            found["kernel"] = array.transpose(*range(2, array.ndim), 1, 0)
        elif name in names or name == "weight":
            found[names.get(name, "scale")] = array
    return found


def port(net: Net, theirs: dict[int, Any], seed: int, mistake: Mistake | None = None) -> nnx.Module:
    """The port, in the style of this seed."""
    return _Maker(_weights(net, theirs), style(seed), mistake).part(net.root)
