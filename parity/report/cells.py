"""Rows as plain values, and back: the columns of the table, and what a row knows besides."""

import math
from collections.abc import Mapping
from typing import Any

from parity.core.exceptions import InputError, shown
from parity.core.measurements import Error, Metrics
from parity.core.problems import PORT_LACKS, Problem, ProblemKind, Side, not_measured
from parity.core.verdicts import Row, Verdict
from parity.report.table import COLUMNS, record
from parity.report.typed import typed

FREE = (
    "mae", "mse", "max_abs", "rel_mae", "rel_l2", "rel_linf", "p999", "ulp_p99", "cosine",
    "ref_rms",
)  # fmt: skip

DETAILS = (
    "order", "parent", "limited", "one_sided", "handed", "free_nonfinite", "incl_nonfinite",
    "incl_floor_rel_l2", "incl_R", "incl_bounded", "incl_problem", "excl_nonfinite",
    "excl_bounded", "excl_moved", "excl_problem",
)  # fmt: skip
"""What a report needs to be read back, beside `COLUMNS`. The three counts of entries that are not
finite alike are null where that error was not measured."""

TYPES: Mapping[str, Any] = {
    **dict.fromkeys((*COLUMNS, *DETAILS), float),
    **dict.fromkeys(("rung", "case", "path", "nnx_path", "kind", "leaf", "shape", "dtype"), str),
    **dict.fromkeys(("grade", "worst_index", "incl_problem", "excl_problem"), str),
    **dict.fromkeys(("call", "nonfinite", "order", "parent"), int),
    **dict.fromkeys(("free_nonfinite", "incl_nonfinite", "excl_nonfinite"), int | None),
    **dict.fromkeys(("limited", "one_sided", "incl_bounded", "excl_bounded", "excl_moved"), bool),
    "verdict": Verdict,
}

_DIGITS = 18  # of a length or an index, which fit into 64 bits


def cells(row: Row) -> dict[str, Any]:
    """A row by column, those of `COLUMNS` first, then those of `DETAILS`."""
    free, inclusive, exclusive = row.metrics, row.inclusive, row.exclusive
    return {
        **record(row),
        "order": row.order,
        "parent": row.parent,
        "limited": row.limited,
        "one_sided": bool(row.one_sided),
        "handed": row.handed,
        "free_nonfinite": free.nonfinite if free else None,
        "incl_nonfinite": inclusive.nonfinite if inclusive else None,
        "incl_floor_rel_l2": inclusive.floor_rel_l2 if inclusive else math.nan,
        "incl_R": inclusive.r if inclusive else math.nan,
        "incl_bounded": inclusive.bounded if inclusive else False,
        "incl_problem": _text(inclusive),
        "excl_nonfinite": exclusive.nonfinite if exclusive else None,
        "excl_bounded": exclusive.bounded if exclusive else False,
        "excl_moved": exclusive.moved if exclusive else False,
        "excl_problem": _text(exclusive),
    }


def to_row(values: Mapping[str, Any], reason: str, where: str) -> Row:
    """The row that `cells` made these values of.

    Raises:
        InputError: a value has another type; `where` is the row's place in its file.
    """
    cell = {name: typed(values[name], TYPES[name], f"{where}.{name}") for name in TYPES}
    if cell["call"] < 0:
        raise InputError(f"{where}.call: expected 0 or more, found {cell['call']}")
    free = inclusive = exclusive = None
    if cell["free_nonfinite"] is not None:
        index = _numbers(cell["worst_index"], ",", f"{where}.worst_index")
        figures = {name: cell[name] for name in FREE}
        free = Metrics(**figures, worst_index=index, nonfinite=cell["free_nonfinite"])
    if cell["incl_nonfinite"] is not None:
        inclusive = Error(
            cell["incl_mae"], cell["incl_rel_l2"], cell["incl_nonfinite"],
            cell["incl_floor_rel_l2"], cell["incl_R"],
            _problem(cell["incl_problem"], cell["incl_mae"]), cell["incl_bounded"],
        )  # fmt: skip
    if cell["excl_nonfinite"] is not None:
        exclusive = Error(
            cell["excl_mae"], cell["excl_rel_l2"], cell["excl_nonfinite"], cell["floor_rel_l2"],
            cell["R"], _problem(cell["excl_problem"], cell["excl_mae"]), cell["excl_bounded"],
            cell["excl_moved"],
        )  # fmt: skip
    same = ("rung", "case", "path", "nnx_path", "kind", "call", "leaf", "dtype", "gain", "grade",
            "verdict", "order", "parent", "limited", "handed")  # fmt: skip
    side: Side = "reference" if reason == PORT_LACKS.text else "port"
    return Row(
        **{name: cell[name] for name in same},
        shape=_numbers(cell["shape"], "x", f"{where}.shape"),
        metrics=free,
        inclusive=inclusive,
        exclusive=exclusive,
        reason=reason,
        one_sided=side if cell["one_sided"] else "",
    )


def _text(error: Error | None) -> str:
    return "" if error is None or error.problem is None else error.problem.text


def _problem(text: str, mae: float) -> Problem | None:
    """A problem of a file, which has its text alone: only other shapes make an error infinite."""
    if not text:
        return None
    return Problem(ProblemKind.SHAPE, text) if math.isinf(mae) else not_measured(text)


def _numbers(text: str, between: str, where: str) -> tuple[int, ...]:
    parts = text.split(between) if text else []
    if not all(part.isascii() and part.isdecimal() and len(part) <= _DIGITS for part in parts):
        raise InputError(
            f"{where}: expected numbers with {between!r} between them, found {shown(text)}"
        )
    return tuple(map(int, parts))
