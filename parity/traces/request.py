"""The index of a recording before anything ran: its request, and the model that it is of."""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from parity.capture import torch as capture_torch
from parity.core.pair import Case, Pair, PairOptions
from parity.core.store import digest
from parity.core.tree import flatten
from parity.host import environment
from parity.options.options import Options
from parity.run.loop import pair_facts
from parity.traces.index import Index, StoredTensor
from parity.traces.plain import encode
from parity.traces.shards import Array, Form, ToWrite


def requested(
    pair: Pair,
    reference: torch.nn.Module,
    options: PairOptions,
    cases: Sequence[Case],
    scope: Options,
    seed: int,
) -> tuple[Index, ToWrite]:
    """The index without files and cases; and the weights, to be written."""
    arrays = ToWrite()
    tensors, state = _tensors(reference, arrays)
    assert pair.offline is not None  # `record_pair` checked it
    settings = dict(pair.offline.settings(reference))
    about = dict(environment.describe(seed, reference))
    request = {
        "seed": seed,
        "options": _digest({name: repr(value) for name, value in options.items()}),
        "cases": [[case.name, case.path, _given(case)] for case in cases],
        "settings": _digest(settings),
        "code": _code(reference),
        "commit": about["commit"],
        "versions": dict(about["versions"]),
    }
    modules = capture_torch.modules(reference)
    index = Index(
        pair=pair.name,
        request=request,
        layout=dict(pair.layout),
        settings=settings,
        environment=about,
        facts=pair_facts(pair, reference, cases, options, seed),
        only=scope.only,
        depth=scope.depth,
        modules=tuple(replace(info, path=path) for path, info in modules.items()),
        tensors=tensors,
        state=state,
    )
    return index, arrays


def _tensors(
    reference: torch.nn.Module, arrays: ToWrite
) -> tuple[tuple[StoredTensor, ...], Mapping[str, Form]]:
    """The tensors of the modules, and those of the state dict by name; adds both to `arrays`."""

    def form(read: Callable[[], Array]) -> Form:
        array = read()
        return arrays.add(digest(array), array, read)

    numbers: dict[int, int] = {}
    tensors = []
    for one in capture_torch.named_tensors(reference):
        number = numbers.setdefault(one.identity, len(numbers) + 1)
        tensors.append(StoredTensor(one.path, one.name, one.buffer, number, form(one.read)))
    state = {
        name: form(partial(capture_torch.to_numpy, value))
        for name, value in reference.state_dict().items()
        if isinstance(value, torch.Tensor)
    }
    return tuple(tensors), state


def _given(case: Case) -> str:
    """A digest of the arguments; of those that the cases before decide on, of none."""
    flat = flatten((case.args, dict(case.kwargs)))
    arrays = [
        capture_torch.to_numpy(array) if isinstance(array, torch.Tensor) else array
        for _, array in flat.arrays
    ]
    return _digest([encode(flat.skeleton), *(digest(array).hex() for array in arrays)])


def _code(reference: torch.nn.Module) -> str:
    """A digest of the files that the reference's classes are written in."""
    homes = {sys.modules.get(type(module).__module__) for module in reference.modules()}
    files = sorted({file for home in homes if (file := getattr(home, "__file__", None))})
    return _digest([hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
