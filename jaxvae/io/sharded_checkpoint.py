"""Sharded checkpoints: every device writes and reads its own part of the parameters.

A folder of Orbax's, not of diffusers': for training runs on many devices. PyTorch cannot read it;
`save_pretrained` writes what PyTorch reads.
"""

import glob
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Sharding, SingleDeviceSharding
from jax.typing import DTypeLike

from jaxvae.io.diffusers_folder import WeightsError
from jaxvae.io.messages import first_line
from jaxvae.io.pretrained import Pretrained
from jaxvae.io.weights import refuse_misfits, refuse_too_large
from jaxvae.layers.convolution import Precision

Model = TypeVar("Model", bound=Pretrained)
Placement = Sharding | Callable[[str, jax.ShapeDtypeStruct], Sharding]
"""Where parameters go: all alike, or by name (`encoder.conv_in.conv.kernel`), shape and dtype."""


def save_checkpoint(model: Pretrained, path: str | Path) -> None:
    """Write the parameters, as they are sharded, and the config into a new folder.

    Returns when all is written. The folder appears when it is complete. Other state, such as the
    random streams of dropout, is not saved. Raises WeightsError if the folder is there already or
    cannot be written.
    """
    # Importing Orbax takes as long as importing JAX; most programs never need it.
    import orbax.checkpoint as ocp

    folder = Path(path).absolute()
    if folder.exists():
        raise WeightsError(f"{folder}: expected a new folder, found one; choose another name")
    named = {**model.config.to_dict(), "_class_name": model.config.class_name}
    arrays = {name: param[...] for name, param in _parameters(model).items()}
    _check_space(folder, sum(array.nbytes for array in arrays.values()))
    items = ocp.args.Composite(
        config=ocp.args.JsonSave(named), parameters=ocp.args.StandardSave(arrays)
    )
    unfinished = glob.escape(folder.name) + ".orbax-checkpoint-tmp*"
    before = set(folder.parent.glob(unfinished))
    left = {folder}
    try:
        # An interrupt is raised on the main thread; the block waits until the other has written
        # all, so that nothing is written anew behind the removal.
        with (
            ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer,
            ThreadPoolExecutor(1) as apart,
        ):
            apart.submit(checkpointer.save, folder, items).result()
        left.clear()
    except (OSError, ValueError) as error:  # ValueError: of the library that writes the arrays
        raise WeightsError(f"{folder}: cannot be written ({first_line(error)})") from error
    finally:
        for one in left | {*folder.parent.glob(unfinished)} - before:
            shutil.rmtree(one, ignore_errors=True)


def _check_space(folder: Path, needed: int) -> None:
    # Orbax 0.12.8 prints a traceback for every array that it still writes when a disk is full.
    free = shutil.disk_usage(next(one for one in folder.parents if one.exists())).free
    if free < needed:
        raise WeightsError(
            f"{folder}: cannot be written: the parameters have {needed >> 20} MiB,"
            f" and {free >> 20} MiB are free there"
        )


def restore(
    class_of: Callable[[Mapping[str, Any]], type[Model]],
    path: str | Path,
    placement: Placement | None,
    dtype: DTypeLike,
    precision: Precision,
    param_dtype: DTypeLike | None,
) -> Model:
    """Return the model of a checkpoint, its parameters placed as asked for.

    `class_of` tells its class by its configuration. See `models/loading.py`.
    """
    import orbax.checkpoint as ocp

    folder = Path(path).absolute()
    if not folder.is_dir():
        raise WeightsError(f"{folder}: expected a folder that save_checkpoint wrote, found none")
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        with _explained(folder):
            saved = checkpointer.restore(folder, ocp.args.Composite(config=ocp.args.JsonRestore()))
            model_class = class_of(saved["config"])
            config = model_class.config_class.from_dict(saved["config"])
            found = ocp.StandardCheckpointHandler().metadata(folder / "parameters").tree
        model = model_class.without_values(config, dtype, precision, param_dtype)
        slots = _parameters(model)
        try:
            _check_shapes(slots, found)
        except WeightsError as error:
            raise WeightsError(f"{folder}: {error}") from error
        wanted = {name: _placed(name, param, placement) for name, param in slots.items()}
        with _explained(folder):
            restored = checkpointer.restore(
                folder, ocp.args.Composite(parameters=ocp.args.StandardRestore(wanted))
            )
    values = restored["parameters"]
    cut = {name: one.dtype for name, one in values.items() if one.dtype != found[name].dtype}
    try:
        refuse_too_large({name: cut[name] for name in cut if jnp.isinf(values[name]).any()})
    except WeightsError as error:
        raise WeightsError(f"{folder}: {error}") from error
    for name, param in slots.items():
        param.set_value(values[name])
    model.eval()  # type: ignore[no-untyped-call]
    return model


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn what Orbax raises about the files of a checkpoint into one line."""
    try:
        yield
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(
            f"{folder}: cannot be restored ({first_line(error)});"
            " expected a folder that save_checkpoint wrote"
        ) from error


def _check_shapes(slots: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    # Before any array is read: Orbax leaves the reads of the others running when one fails.
    refuse_misfits(
        [name for name in slots if name not in found],
        [name for name in found if name not in slots],
        [
            f"{name} (expected {param.shape}, found {tuple(found[name].shape)})"
            for name, param in slots.items()
            if name in found and tuple(found[name].shape) != param.shape
        ],
    )


def _parameters(model: nnx.Module) -> dict[str, Any]:
    return {
        ".".join(map(str, (*path, name))): value
        for path, module in nnx.iter_modules(model)
        for name, value in vars(module).items()
        if isinstance(value, nnx.Param)
    }


def _placed(name: str, param: Any, placement: Placement | None) -> jax.ShapeDtypeStruct:
    if placement is None:
        placement = SingleDeviceSharding(jax.devices()[0])
    if not isinstance(placement, Sharding):
        placement = placement(name, jax.ShapeDtypeStruct(param.shape, param.dtype))
    return jax.ShapeDtypeStruct(param.shape, param.dtype, sharding=placement)
