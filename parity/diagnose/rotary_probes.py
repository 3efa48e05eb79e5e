"""Rotary embeddings: positions, frequencies, direction, and which channels are turned together."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from parity.diagnose.attention import Flow, Function, attentions, short, tensors_of, with_tensors
from parity.diagnose.probe import Trial, probe_of_flow
from parity.diagnose.replay import Change, Operation

Tables = Mapping[int, tuple[int, torch.Tensor, str]]
"""By the place of an operation, the position of a table among its tensors, the table as
cosine + i sine, and which part of it stands there: "real", "imag", or "" for all. At the place
of a cosine or sine the position is -1: it returns a table."""


FLOATS = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def tables(operations: Sequence[Operation]) -> Tables:
    """The factors that are cosines or sines of the same angles: their squares sum to one.

    Where there is none, the cosines and sines themselves.
    """
    factors = [
        (op, at, x)
        for op in operations
        if op.name.strip("_") in ("mul", "imul", "rmul") and len(tensors_of(op)) == 2
        for at, x in enumerate(tensors_of(op))
        if x.ndim > 1 and x.numel() > 3 and x.dtype in FLOATS and float(x.abs().max()) < 1 + 1e-5
    ]
    found: dict[int, tuple[int, torch.Tensor, str]] = {}
    for i, (op, at, x) in enumerate(factors):
        if x.is_complex() and torch.allclose(x.abs(), x.abs().new_ones(())):
            found[op.place] = at, x, ""
        for other, at_other, y in factors[i + 1 :]:
            if (x.shape, x.dtype) == (y.shape, y.dtype) and not x.is_complex() and _one(x, y):
                ends = (op, at, x), (other, at_other, y)
                cosine, sine = sorted(ends, key=lambda end: -float(end[2].mean()))
                whole = torch.complex(cosine[2], sine[2])
                found[cosine[0].place] = cosine[1], whole, "real"
                found[sine[0].place] = sine[1], whole, "imag"
    made = [op for op in operations if op.name in ("cos", "sin") and op.made.ndim > 1]
    for cos, sin in itertools.permutations(made if not found else (), 2):
        if (cos.name, sin.name) == ("cos", "sin") and torch.equal(cos.subject, sin.subject):
            whole = torch.complex(cos.made, sin.made)
            found |= {cos.place: (-1, whole, "real"), sin.place: (-1, whole, "imag")}
    return found


def _one(x: torch.Tensor, y: torch.Tensor) -> bool:
    return torch.allclose(x.square() + y.square(), x.new_ones(()))


@probe_of_flow
def turns(operations: Sequence[Operation]) -> Iterator[Trial]:
    """Queries or keys, or both, turned by other angles."""
    found, flow = tables(operations), Flow(operations)
    sides = {"": set(found)} if found else {}
    for one in attentions(flow) if found else ():
        makers = flow.makers[one.scores.op.place]
        q, k = (set() if maker is None else flow.above(maker) for maker in makers)
        sides |= {" of queries": (q - k) & set(found), " of keys": (k - q) & set(found)}
    for side, places in sides.items():
        for cause, text, turn in _turns(found[min(places)][1]) if places else ():
            changes = {place: partial(_turned, table=found[place], turn=turn) for place in places}
            yield Trial(cause, text + side, changes)


def _turned(op: Operation, table: tuple[int, torch.Tensor, str], turn: Function) -> Any:
    at, whole, part = table
    new = turn(whole)
    value = getattr(new, part).clone() if part else new
    return value if at < 0 else with_tensors(op, {at: value})


def _turns(table: torch.Tensor) -> Iterator[tuple[str, str, Function]]:
    """Other tables than this one: the cause, what is changed, and how."""
    yield "rotary", "leaving out the rotation", torch.ones_like
    yield "rotary", "the other direction of the rotation", torch.conj
    yield "rotary", "sine and cosine exchanged in the rotation", lambda t: 1j * t.conj()
    for text, sizes in (("of a pair", (2, -1)), ("of a half", (-1, 2))):
        text = f"the angles {text} beside each other in the rotation"
        relaid = partial(lambda t, to: t.unflatten(-1, to).mT.flatten(-2), to=sizes)
        yield "rotary", text, relaid
    for kind in ("bfloat16", "float16"):
        text = f"sine and cosine in {kind} in the rotation"
        low = partial(short, kind=kind)
        yield "dtype", text, partial(lambda t, f: torch.complex(f(t.real), f(t.imag)), f=low)
    axis, step = _step(table)
    if axis < 0:
        return
    for text, by in (("later", 1), ("earlier", -1)):
        yield "rotary", f"positions one {text} in the rotation", partial(_later, by=by)
    logs = step.angle().abs().log()
    count = len({round(x, 3) for x in logs.flatten().tolist()})
    own = float(logs.max() - logs.min()) * count / max(count - 1, 1)
    start = _first_position(table, step) if count > 1 else 0
    for base in (1e2, 1e3, 1e4, 1e5, 5e5, 1e6) if count > 1 else ():
        text = f"frequencies to the base {base:g} instead of {math.exp(own):.6g} in the rotation"
        yield "rotary", text, partial(_respeeded, start=start, power=math.log(base) / own)


def _step(table: torch.Tensor) -> tuple[int, torch.Tensor]:
    """The axis of positions that are one apart, and what turns from one to the next; -1 if none."""
    for axis in range(table.ndim - 1):
        n = table.shape[axis] - 1
        ratio = table.narrow(axis, min(1, n), n) / table.narrow(axis, 0, n)
        first = ratio.narrow(axis, 0, min(1, n))
        if n and torch.allclose(ratio, first) and not torch.allclose(first, torch.ones_like(first)):
            return axis, first
    return -1, table


def _later(table: torch.Tensor, by: int) -> torch.Tensor:
    return table * _step(table)[1] ** by


def _first_position(table: torch.Tensor, step: torch.Tensor) -> int:
    first, speed = (x.reshape(-1, x.shape[-1])[0][: 2**3] for x in (table, step.angle()))
    starts = torch.arange(2**12, dtype=speed.dtype)[:, None] * speed
    return int((torch.exp(1j * starts) - first).abs().amax(1).argmin())


def _respeeded(table: torch.Tensor, start: int, power: float) -> torch.Tensor:
    """The table of the same positions, with these powers of its frequencies."""
    axis, step = _step(table)
    speed = step.angle()
    at = torch.arange(start, start + table.shape[axis], dtype=speed.dtype)
    at = at.reshape([-1 if i == axis else 1 for i in range(table.ndim)])
    turned = (at * speed.sign() * speed.abs() ** power).expand(table.shape)
    return torch.polar(torch.ones_like(turned), turned)


def _stacked(op: Operation, axis: int) -> torch.Tensor:
    first, second = op.args[0]
    return torch.stack((first, second), axis)


PICKED: Sequence[tuple[Change, Change]] = [
    (
        partial(lambda op, at: op.subject.chunk(2, -1)[at].clone(), at=at),
        partial(lambda op, at: op.subject[..., at::2].clone(), at=at),
    )
    for at in (0, 1)
]
APART = (lambda op: op.subject.chunk(2, -1), lambda op: tuple(new(op) for _, new in PICKED))
TOGETHER = (lambda op: _stacked(op, -2).flatten(-2), lambda op: _stacked(op, -1).flatten(-2))
STACKED = (lambda op: _stacked(op, -1), lambda op: _stacked(op, -2))
"""What an operation does with two parts of the last axis, and the same of the other two parts."""

WAYS: dict[str, Sequence[tuple[Change, Change]]] = {
    "their neighbours instead of those of the other half": (*PICKED, APART, TOGETHER),
    "those of the other half instead of their neighbours": (
        *((new, own) for own, new in PICKED),
        STACKED,
    ),
}


@probe_of_flow
def pairs(operations: Sequence[Operation]) -> Iterator[Trial]:
    """Neighbouring channels instead of those of two halves, as a rotary embedding pairs them."""
    names = ("getitem", "chunk", "cat", "concat", "stack")
    turning, flow = tables(operations), Flow(operations)
    makers = [flow.makers[place][at] for place, (at, _, _) in turning.items()]
    of_tables = flow.above(*(maker for maker in makers if maker is not None))
    cause = "rotary" if turning else "reshape_order"
    found = [operation for operation in operations if operation.name in names]
    for text, ways in WAYS.items():
        changes = {op.place: new for op in found for own, new in ways if _does(op, own)}
        if len(changes) > 1:  # taken apart and put together again
            yield Trial(cause, f"channels paired with {text}", changes)
        turned = {place: new for place, new in changes.items() if place not in of_tables}
        if 1 < len(turned) < len(changes):
            yield Trial(cause, f"channels, and not their angles, paired with {text}", turned)


def _does(operation: Operation, own: Change) -> bool:
    """True if the operation returns this."""
    try:
        found, wanted = _parts(operation.result()), _parts(own(operation))
    except (AttributeError, TypeError, ValueError, IndexError, RuntimeError):
        return False  # it takes something else
    return len(found) == len(wanted) and all(map(torch.equal, found, wanted))


def _parts(result: Any) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)
