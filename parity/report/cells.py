"""Rows as plain values, and back: the columns of the table, and what a row knows besides.

A column is a field of `Row` or of one of its errors, whose prefix its name has.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from parity.core.codec import forms, typed
from parity.core.exceptions import InputError, shown
from parity.core.measurements import Error, Metrics
from parity.core.problems import PORT_LACKS
from parity.core.verdicts import Row

COLUMNS = (
    *("rung", "case", "path", "nnx_path", "kind", "call", "leaf", "shape", "dtype"),
    *("mae", "mse", "max_abs", "rel_mae", "rel_l2", "rel_linf", "p999", "ulp_p99", "cosine"),
    *("ref_rms", "incl_mae", "incl_rel_l2", "excl_mae", "excl_rel_l2", "floor_rel_l2", "R"),
    *("gain", "grade", "verdict", "worst_index", "nonfinite", "child_inputs", "child_r"),
)
"""The columns, in order: `mae` to `ref_rms` are free-running, `incl_` inclusive, `excl_` exclusive.
`floor_rel_l2` and `R` belong to the exclusive error, of what is returned; `child_inputs` and
`child_r` are relative error and R of what is passed to calls inside, 0 where that is not off."""

DETAILS = (
    *("order", "parent", "limited", "one_sided"),
    *("free_nonfinite", "incl_nonfinite"),
    *("incl_floor_rel_l2", "incl_R", "incl_bounded", "incl_problem"),
    *("excl_nonfinite", "excl_bounded", "excl_moved", "excl_problem"),
)
"""Columns that a report needs to be read back, beside `COLUMNS`. Those named `nonfinite` count the
entries that one side alone has finite, and are null where that error was not measured."""

ERRORS: Mapping[str, Any] = {"metrics": Metrics, "inclusive": Error, "exclusive": Error}
"""The errors of a row by its fields."""

FORMS = {name: forms(kind) for name, kind in {"": Row, **ERRORS}.items()}

MISSING = {float: math.nan, int: None, bool: False, str: ""}
"""Value in place of an error that was not measured, by its type; else it is `""`."""

BETWEEN = {"shape": "x", "worst_index": ","}
"""Separators between the numbers of a column."""

NUMBER = "[0-9]{1,18}"
"""A length or an index, which fit into 64 bits."""


def _place(column: str) -> tuple[str, str]:
    """The error that a column belongs to, `""` for the row itself, and the field."""
    if column in ("floor_rel_l2", "R"):
        column = f"excl_{column}"
    prefix, _, rest = column.partition("_")
    error = {"free": "metrics", "incl": "inclusive", "excl": "exclusive"}.get(prefix, "")
    if error:
        return error, "r" if rest == "R" else rest
    return ("metrics" if column in FORMS["metrics"] else ""), column


EVERY = (*COLUMNS, *DETAILS)

PLACES = {name: _place(name) for name in EVERY if name != "nonfinite"}

NUMERIC = [x for x in PLACES if FORMS[PLACES[x][0]][PLACES[x][1]].hint in (int, float)]
NUMERIC.append("nonfinite")
"""The columns that hold numbers."""


def cells(row: Row, columns: Sequence[str] = COLUMNS) -> dict[str, Any]:
    """A row by column."""
    return {column: cell(row, column) for column in columns}


def cell(row: Row, column: str) -> Any:
    """One plain value of a row."""
    if column == "nonfinite":
        errors = (row.metrics, row.inclusive, row.exclusive)
        return max((error.nonfinite for error in errors if error), default=0)
    error, name = PLACES[column]
    form, holder = FORMS[error][name], getattr(row, error) if error else row
    if holder is None:
        return MISSING.get(form.hint, "")
    value = getattr(holder, name)
    if name in BETWEEN:
        return BETWEEN[name].join(map(str, value))
    return value if form.hint is float else form.write(value)  # a table has NaN


def to_row(values: Mapping[str, Any], reason: str, where: str) -> Row:
    """The row that `cells` of `EVERY` column made these values of.

    Raises:
        InputError: a value has another type; `where` is the row's place in its file.
    """
    typed(values["nonfinite"], int, f"{where}.nonfinite")
    held: dict[str, dict[str, Any]] = {name: {} for name in FORMS}
    for column, (error, name) in PLACES.items():
        value, form, place = values[column], FORMS[error][name], f"{where}.{column}"
        if name in BETWEEN:
            held[error][name] = _numbers(value, BETWEEN[name], place)
        elif error and value is None and form.hint is int:
            held[error][name] = None
        else:
            held[error][name] = form.read(value, place)
    if held[""]["call"] < 0:
        raise InputError(f"{where}.call: expected 0 or more, found {held['']['call']}")
    errors: dict[str, Any] = {
        name: None if held[name]["nonfinite"] is None else kind(**held[name])
        for name, kind in ERRORS.items()
    }
    if held[""]["one_sided"]:  # a file has the side in the reason
        held[""]["one_sided"] = "reference" if reason == PORT_LACKS.text else "port"
    return Row(**held[""], **errors, reason=reason)


def _numbers(value: Any, between: str, where: str) -> tuple[int, ...]:
    text = typed(value, str, where)
    if not re.fullmatch(f"({NUMBER}({between}{NUMBER})*)?", text):
        raise InputError(
            f"{where}: expected numbers with {between!r} between them, found {shown(text)}"
        )
    return tuple(map(int, text.split(between))) if text else ()
