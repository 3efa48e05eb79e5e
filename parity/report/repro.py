"""A fault as a folder that shows it: its call's arrays, and a script that makes the call."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import save

from parity.core.exceptions import InputError
from parity.core.files import write_all
from parity.core.repro import Repro

SCRIPT = '''\
"""{title}

Gives the port's module what the reference's was given, and prints how far what it returns is from
what the reference returned. Run it where `parity` was run: it imports `{home}`.

    python {script}

It needs NumPy, safetensors, JAX, Flax and what that imports.{needs}
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
{torch}from safetensors.numpy import load_file

{settings}sys.path.insert(0, os.getcwd())
from {home} import {name}{imports}

{making}

here = Path(__file__).parent
given = {{key: jnp.asarray(array) for key, array in load_file(here / "inputs.safetensors").items()}}
output = {call}


def leaf(value, path):
    """The object that `path`, keys with dots between, leads to."""
    if not path:
        return value
    head, _, rest = path.partition(".")
    if isinstance(value, Mapping):  # keys may be numbers, and have dots in them
        key = next(key for key in value if path == str(key) or path.startswith(f"{{key}}."))
        return leaf(value[key], path[len(str(key)) + 1 :])
    return leaf(value[int(head)] if head.isdecimal() else getattr(value, head), rest)


for key, array in load_file(here / "expected.safetensors").items():
    found = leaf(output, key.partition(".")[2])
    wide = np.complex128 if np.iscomplexobj(array) else np.float64
    want, got = np.asarray(array, wide), np.asarray(found, wide)
    if want.shape != got.shape:
        print(f"{{key}}: shape {{got.shape}} instead of {{want.shape}}")
        continue
    gap = np.abs(got - want)
    at = tuple(int(i) for i in np.unravel_index(gap.argmax(), gap.shape))
    print(f"{{key}}: max {{gap.max():.3e}}, MAE {{gap.mean():.3e}},"
          f" rel_l2 {{np.linalg.norm(gap) / np.linalg.norm(want):.3e}};"
          f" the worst at {{at}}: {{got[at]:.6g}} instead of {{want[at]:.6g}}")
'''


def write_repro(repro: Repro, folder: Path, make: str) -> list[Path]:
    """Write the arrays and the script, each file whole or not at all; returns their paths.

    `make` is `module:attribute` of what makes the port.

    Raises:
        InputError: the call cannot be written down, or `make` is not of that form.
    """
    where = f"`{repro.fault.name}`, call {repro.fault.call}"
    if repro.problem:
        raise InputError(f"repro: {where} cannot be made again by itself: {repro.problem}")
    home, colon, name = make.partition(":")
    if not (colon and name.isidentifier()):
        raise InputError(f"repro: make={make!r}: expected module:attribute, what makes the port")
    arrays = {
        "inputs": repro.given or {},
        "expected": repro.expected or {},
        "weights": repro.weights or {},
    }
    try:
        files: dict[str, str | bytes] = {
            f"{key}.safetensors": save(dict(found)) for key, found in arrays.items()
        }
    except (SafetensorError, KeyError) as error:  # KeyError: a type that it has no name for
        raise InputError(f"repro: {where} has arrays that no file can hold: {error}") from error
    files["repro.py"] = _script(repro, folder / "repro.py", home, name)
    write_all(folder, files)
    return [folder / key for key in files]


def _script(repro: Repro, place: Path, home: str, name: str) -> str:
    fault = repro.fault
    torch = "torch.manual_seed" in repro.making
    reference = torch or "reference" in repro.making
    return SCRIPT.format(
        title=f"{fault.where}: {fault.cause or 'fault'}.",
        home=home,
        name=name,
        script=place,
        needs="\nThe port gets its weights from the reference: it needs torch."
        if reference
        else "",
        torch="import torch\n" if torch else "",
        settings="".join(f"{line}\n" for line in repro.settings),
        imports=f"\n{repro.imports}" if repro.imports else "",
        making=repro.making.replace("{name}", name),
        call=repro.call,
    )
