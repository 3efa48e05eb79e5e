"""Coverage of the tensors, and weight map findings that the outputs refute."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from parity.core.tensors import Weight
from parity.core.verdicts import Coverage, Row


def resolved(
    weights: Sequence[Weight], coverage: Coverage, rows: Sequence[Row]
) -> tuple[Weight, ...]:
    """The weight map without the unusual orders of axes that the port knows how to read.

    These are of modules that ran: if all that they return is right, so is the order.
    """
    ran = {*coverage.matched, *coverage.inlined}
    ran -= {row.path for row in rows if row.verdict not in ("PASS", "WARN")}
    return tuple(
        replace(line, cause="", finding="") if line.transform and line.path in ran else line
        for line in weights
    )


def with_weights(
    coverage: Coverage,
    weights: Sequence[Weight],
    port_of: Mapping[str, str],
    tried: Collection[str] = (),
) -> Coverage:
    """The coverage with its tensors counted, and the argument that leaves out what has no
    counterpart, if all its globs were `tried`.

    `port_of` maps the reference's modules to the port's. A tensor without a counterpart makes the
    coverage incomplete, unless it is declared or its module did not run; so does a leaf too many
    in a module that the reference has.
    """
    lines: dict[str, list[Weight]] = {}
    for line in weights:
        if line.name:
            lines.setdefault(line.name, []).append(line)
    parameters = [own for own in lines.values() if own[0].kind == "parameter"]
    buffers = [own for own in lines.values() if own[0].kind == "buffer"]
    globs = lacking(coverage, weights, port_of)
    return replace(
        coverage,
        proposal=f"ignore={[*globs]}" if globs and {*globs} <= {*tried} else "",
        parameters=len(parameters),
        matched_parameters=_paired(parameters),
        buffers=len(buffers),
        matched_buffers=_paired(buffers),
        unmatched_tensors=tuple(line.text for line in _lost(coverage, weights, port_of)),
    )


def lacking(
    coverage: Coverage, weights: Sequence[Weight], port_of: Mapping[str, str]
) -> tuple[str, ...]:
    """Globs of what has no counterpart, and of nothing else that is known."""
    lost = _lost(coverage, weights, port_of)
    names = [*coverage.unmatched, *(line.name or line.nnx_name for line in lost)]
    names += [text.partition(" call ")[0] for text in coverage.unmatched_calls]
    known = {name for line in weights for name in (line.name, line.nnx_name)} | _paths(coverage)
    globs: dict[str, None] = {}
    for name in names:
        glob = ".".join("*" if part.isdecimal() else part for part in name.split("."))
        more = any(fnmatchcase(one, glob) for one in known - {*names})
        globs[name if more else glob] = None
    return tuple(globs)


def _lost(
    coverage: Coverage, weights: Sequence[Weight], port_of: Mapping[str, str]
) -> list[Weight]:
    """The lines without a counterpart of modules that ran."""
    ran = _paths(coverage) - set(coverage.idle)
    places = {name for path, name in port_of.items() if path in ran}
    return [
        line
        for line in weights
        if not line.paired and line.wrong and line.path in (ran if line.name else places)
    ]


def _paths(coverage: Coverage) -> set[str]:
    """All modules of the reference."""
    return {*coverage.matched, *coverage.declared, *coverage.unmatched, *coverage.inlined}


def _paired(tensors: Sequence[Sequence[Weight]]) -> int:
    return sum(all(line.paired for line in own) for own in tensors)
