"""The operations of a JAX program: its jaxpr evaluated equation by equation."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.extend import core as jex

from parity.core.tree import flatten
from parity.lines.operations import Program
from parity.lines.source import Frame, Frames

MOVES = frozenset(
    {
        *("transpose", "reshape", "broadcast_in_dim", "slice", "squeeze", "expand_dims", "rev"),
        *("copy", "copy_p", "concatenate", "split", "stack", "pad_none", "device_put", "unstack"),
    }
)
"""Primitives whose outputs are entries of their inputs."""

INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""Parameters that hold the program of an equation that is a call."""

CALLS = frozenset(
    {
        *("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "custom_lin"),
        *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "run_state"),
    }
)
"""Equations whose programs are entered."""


class _Cell:
    """A value on its way: the array, and the number of its value if it has one."""

    __slots__ = ("array", "number")

    def __init__(self, array: Any, number: int | None) -> None:
        self.array, self.number = array, number


def evaluate(
    closed: Any,
    given: Sequence[Any],
    weights: Sequence[bool],
    program: Program,
    *,
    known_constants: bool = True,
) -> list[int | None]:
    """Numbers of the outputs' values of a jaxpr on arrays, of which some are `weights`.

    Its constants count as weights if they are `known_constants`. An output that holds no numbers,
    such as a key, has none.
    """
    cells = [
        _Cell(array, _given(program, array, weight))
        for array, weight in zip(given, weights, strict=True)
    ]
    outputs = _Evaluation(program, known_constants).closed(closed, cells, ())
    return [_number(program, cell) for cell in outputs]


def _given(program: Program, array: Any, weight: bool) -> int | None:
    return program.give(_host(array), weight=weight) if _plain(array) else None


def _number(program: Program, cell: _Cell) -> int | None:
    """Number of a value; a constant of the program is given one."""
    if cell.number is None:
        cell.number = _given(program, cell.array, True)
    return cell.number


def _plain(array: Any) -> bool:
    """True for an array of numbers; a typed key is none."""
    return not jnp.issubdtype(getattr(array, "dtype", np.float32), jax.dtypes.extended)


def _host(array: Any) -> np.ndarray[Any, Any]:
    return np.asarray(array)


class _Evaluation:
    """Evaluates jaxprs, adding every operation to a program."""

    def __init__(self, program: Program, known_constants: bool) -> None:
        self._program, self._known = program, known_constants

    def closed(self, closed: Any, cells: Sequence[_Cell], frames: Frames) -> list[_Cell]:
        """Outputs of a closed jaxpr; its constants are weights."""
        consts = [
            _Cell(const, _given(self._program, const, self._known))
            for const in getattr(closed, "consts", ())
        ]
        return self._open(getattr(closed, "jaxpr", closed), [*consts, *cells], frames)

    def _open(self, jaxpr: Any, cells: Sequence[_Cell], frames: Frames) -> list[_Cell]:
        known: dict[Any, _Cell] = dict(zip([*jaxpr.constvars, *jaxpr.invars], cells, strict=True))

        def read(atom: Any) -> _Cell:
            return _Cell(atom.val, None) if isinstance(atom, jex.Literal) else known[atom]

        for equation in _alive(jaxpr):
            outputs = self._equation(jaxpr, equation, [read(x) for x in equation.invars], frames)
            known.update(zip(equation.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(
        self, jaxpr: Any, equation: Any, cells: Sequence[_Cell], outer: Frames
    ) -> list[_Cell]:
        name, params = equation.primitive.name, equation.params
        frames = (*_frames(equation), *outer)
        if name in CALLS:
            inner = next((params[key] for key in INNER if key in params), None)
            if inner is not None:
                return self.closed(inner, cells, frames)
        if name == "scan":
            return self._scan(params, cells, frames)
        if name == "while":
            return self._while(params, cells, frames)
        if name == "cond":
            index = int(np.clip(_host(cells[0].array), 0, len(params["branches"]) - 1))
            return self.closed(params["branches"][index], cells[1:], frames)
        return self._bind(jaxpr, equation, cells, frames)

    def _bind(
        self, jaxpr: Any, equation: Any, cells: Sequence[_Cell], frames: Frames
    ) -> list[_Cell]:
        """The outputs of an equation that is no call."""
        name, atoms = equation.primitive.name, equation.invars
        variables = {
            x: c for x, c in zip(atoms, cells, strict=True) if not isinstance(x, jex.Literal)
        }
        single = jaxpr.replace(
            constvars=[], invars=list(variables), outvars=equation.outvars, eqns=[equation]
        )
        function = jex.jaxpr_as_fun(jex.ClosedJaxpr(single, ()))
        moves = name in MOVES or _widens(name, equation)
        return self._made(name, list(variables.values()), function, frames, moves=moves)

    def _made(
        self,
        name: str,
        cells: Sequence[_Cell],
        function: Callable[..., list[Any]],
        frames: Frames,
        *,
        moves: bool = False,
    ) -> list[_Cell]:
        """The outputs of a function of these cells, as one operation."""
        arrays = function(*(cell.array for cell in cells))
        if not all(_plain(array) for array in arrays):
            return [_Cell(array, None) for array in arrays]
        places = [at for at, cell in enumerate(cells) if cell.number is not None]
        fixed = [cell.array for cell in cells]

        def again(changed: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
            given = list(fixed)
            for at, array in zip(places, changed, strict=True):
                given[at] = jnp.asarray(array, fixed[at].dtype)
            return [_host(array) for array in function(*given)]

        inputs = [cells[at].number for at in places]
        numbers = self._program.make(
            name,
            [number for number in inputs if number is not None],
            [_host(array) for array in arrays],
            frames,
            moves=moves,
            again=again,
        )
        return [_Cell(x, number) for x, number in zip(arrays, numbers, strict=True)]

    def _scan(
        self, params: Mapping[str, Any], cells: Sequence[_Cell], frames: Frames
    ) -> list[_Cell]:
        fixed, carried = params["num_consts"], params["num_carry"]
        consts, carry = list(cells[:fixed]), list(cells[fixed : fixed + carried])
        stacked = cells[fixed + carried :]
        turns = range(params["length"])
        rows: list[list[_Cell]] = []
        for turn in reversed(turns) if params["reverse"] else turns:
            take = functools.partial(_taken, turn)
            entries = [self._made("slice", [cell], take, frames, moves=True)[0] for cell in stacked]
            outputs = self.closed(params["jaxpr"], [*consts, *carry, *entries], frames)
            carry = outputs[:carried]
            rows.append(outputs[carried:])
        if params["reverse"]:
            rows.reverse()
        columns = [list(column) for column in zip(*rows, strict=True)]
        return [*carry, *(self._made("stack", x, _stacked, frames, moves=True)[0] for x in columns)]

    def _while(
        self, params: Mapping[str, Any], cells: Sequence[_Cell], frames: Frames
    ) -> list[_Cell]:
        tested, made = params["cond_nconsts"], params["body_nconsts"]
        test, body = list(cells[:tested]), list(cells[tested : tested + made])
        state = list(cells[tested + made :])
        while bool(self.closed(params["cond_jaxpr"], [*test, *state], frames)[0].array):
            state = self.closed(params["body_jaxpr"], [*body, *state], frames)
        return state


def _taken(turn: int, array: Any) -> list[Any]:
    return [array[turn]]


def _stacked(*arrays: Any) -> list[Any]:
    return [jnp.stack(arrays)]


def _widens(name: str, equation: Any) -> bool:
    """True for a change of type that loses nothing."""
    if name != "convert_element_type":
        return False
    given, new = equation.invars[0].aval.dtype, equation.params["new_dtype"]
    return bool(jnp.promote_types(given, new) == new)


def _frames(equation: Any) -> Frames:
    traceback = equation.source_info.traceback
    if traceback is None:
        return ()
    return tuple(Frame(x.file_name, x.line_num, x.function_name) for x in traceback.frames)


def _alive(jaxpr: Any) -> list[Any]:
    """The equations that the outputs depend on: what calls inside would compute is not made."""
    needed = {atom for atom in jaxpr.outvars if not isinstance(atom, jex.Literal)}
    alive = []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(out in needed for out in equation.outvars):
            alive.append(equation)
            needed |= {atom for atom in equation.invars if not isinstance(atom, jex.Literal)}
    return alive[::-1]


def run(function: Callable[..., Any], args: Sequence[Any]) -> tuple[Program, list[int]]:
    """The program of `function(*args)`, and the numbers of its outputs.

    The state of an NNX module is its weights; those of another function are its constants.
    """
    graph, state = nnx.split(function) if isinstance(function, nnx.Module) else (None, ())
    leaves, form = jax.tree.flatten((state, jax.tree.map(jnp.asarray, tuple(args))))

    def traced(*leaves: Any) -> list[Any]:
        state, args = jax.tree.unflatten(form, leaves)
        called = function if graph is None else nnx.merge(graph, state)
        return [value for _, value in flatten(called(*args)).arrays]

    program, held = Program(), len(jax.tree.leaves(state))
    closed = jax.make_jaxpr(traced)(*leaves)
    numbers = evaluate(closed, leaves, [at < held for at in range(len(leaves))], program)
    return program, [number for number in numbers if number is not None]
