"""Small networks drawn at random: what both sides are built from.

A net is a tree of nodes. A node has a kind, of which `reference.py` makes a module of PyTorch and
`port.py` one of NNX; a node under two roles is one module that is shared.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ACTIVATIONS = ("relu", "gelu", "silu", "tanh", "leaky_relu")
SEQUENCE = ("linear", "layer_norm", "rms_norm", "act", "scale", "conv1d", "dropout")
SEQUENCES = ("mlp", "gated", "attention", "residual", "chain", "branches", "twice")
IMAGE = ("conv", "conv", "batch_norm", "group_norm", "act", "scale", "dropout")
IMAGES = ("squeeze", "residual", "chain", "branches", "twice")

SHAPES = ((2, 5, 8), (3, 7, 4), (4, 4, 4))
IMAGE_SHAPES = ((2, 8, 5, 6), (2, 4, 6, 4))
"""Few, since every new one is compiled anew."""


@dataclass(eq=False)
class Node:
    """A module that takes and returns arrays with `width` channels."""

    kind: str
    width: int
    image: bool
    facts: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, "Node"] = field(default_factory=dict)

    def walk(self) -> Iterator["Node"]:
        """This node and all inside it, each once."""
        seen: dict[int, Node] = {}
        for one in (self, *(inner for part in self.parts.values() for inner in part.walk())):
            seen.setdefault(id(one), one)
        yield from seen.values()


@dataclass
class Net:
    """A tree, the shape of its input in PyTorch, and whether it is given a mask too."""

    root: Node
    shape: tuple[int, ...]
    masked: bool


def draw(seed: int) -> Net:
    """A net of 3 to 12 modules."""
    rng = np.random.default_rng([seed, 0])
    image = bool(rng.random() < 0.4)
    shapes = IMAGE_SHAPES if image else SHAPES
    shape = shapes[int(rng.integers(len(shapes)))]
    width = shape[1 if image else 2]
    drawer = _Drawer(rng, image, int(rng.integers(1, 10)))
    parts = {}
    while drawer.left > 0 and len(parts) < 6:
        parts[f"layer{len(parts)}"] = drawer.node(width, 0)
    body = Node("chain", width, image, {"held": drawer.pick("list", "dict", "attributes")}, parts)
    head = Node("linear", width, False, {"out": drawer.pick(2, 5), "bias": drawer.chance(0.8)})
    returns = drawer.pick("array", "tuple", "dict")
    root = Node("net", width, image, {"returns": returns}, {"body": body, "head": head})
    attends = any(node.kind == "attention" for node in root.walk())
    return Net(root, shape, attends and drawer.chance(0.6))


class _Drawer:
    def __init__(self, rng: np.random.Generator, image: bool, left: int) -> None:
        self._rng, self._image, self.left = rng, image, left

    def pick(self, *values: Any) -> Any:
        return values[int(self._rng.integers(len(values)))]

    def chance(self, likely: float) -> bool:
        return bool(self._rng.random() < likely)

    def node(self, width: int, depth: int) -> Node:
        """One of any kind, simple where no more than a few modules are left."""
        self.left -= 1
        simple, others = (IMAGE, IMAGES) if self._image else (SEQUENCE, SEQUENCES)
        kind = self.pick(*(others if self.left > 2 and depth < 3 and self.chance(0.6) else simple))
        node = Node(kind, width, self._image, self._facts(kind, width))
        node.parts = self._parts(kind, width, depth + 1)
        return node

    def _leaf(self, kind: str, width: int, **facts: Any) -> Node:
        self.left -= 1
        image = self._image and kind != "linear"
        return Node(kind, width, image, {**self._facts(kind, width), **facts})

    def _facts(self, kind: str, width: int) -> dict[str, Any]:
        match kind:
            case "linear":
                return {"out": width, "bias": self.chance(0.8)}
            case "conv" | "conv1d":
                groups = self.pick(1, 1, 2, width)
                return {"size": self.pick(1, 3, 5), "groups": groups, "bias": self.chance(0.8)}
            case "act":
                return {"name": self.pick(*ACTIVATIONS)}
            case "group_norm":
                return {"groups": 2, "eps": self.pick(1e-5, 1e-6)}
            case "layer_norm" | "rms_norm" | "batch_norm":
                return {"eps": self.pick(1e-5, 1e-6)}
            case "attention":
                return {"heads": 2, "causal": self.chance(0.4), "packed": self.chance(0.3)}
            case "branches":
                return {
                    "join": self.pick("sum", "product", "cat"),
                    "held": self.pick("list", "dict"),
                }
            case "chain":
                return {"held": self.pick("list", "dict", "attributes")}
            case "twice":
                return {"names": self.pick(1, 2), "between": self.pick("tanh", "sin")}
        return {}

    def _parts(self, kind: str, width: int, depth: int) -> dict[str, Node]:
        wide = 2 * width
        match kind:
            case "mlp":
                act = self._leaf("act", wide)
                return {"up": self._leaf("linear", width, out=wide), "act": act,
                        "down": self._leaf("linear", wide, out=width)}  # fmt: skip
            case "gated":
                bias = self.chance(0.5)
                up, gate = (self._leaf("linear", width, out=wide, bias=bias) for _ in range(2))
                return {"gate": gate, "up": up, "down": self._leaf("linear", wide, out=width)}
            case "attention":
                bias = self.chance(0.7)
                return {r: self._leaf("linear", width, bias=bias) for r in ("q", "k", "v", "out")}
            case "squeeze":
                return {"down": self._leaf("linear", width, out=2),
                        "up": self._leaf("linear", 2, out=width)}  # fmt: skip
            case "residual":
                return {"inner": self.node(width, depth)}
            case "chain":
                return {f"layer{i}": self.node(width, depth) for i in range(self.pick(2, 3))}
            case "branches":
                parts = {name: self.node(width, depth) for name in ("left", "right")}
                if self.chance(0.3):
                    parts["middle"] = self.node(width, depth)
                return parts
            case "twice":
                shared = self.node(width, depth)
                return {"first": shared, "second": shared}
        return {}
