"""`jaxvae convert`: a checkpoint for PyTorch to one for JAX, and back."""

import logging
from pathlib import Path

import click

from jaxvae.cli.options import JSON, OFFLINE, QUIET, REVISION, load, report
from jaxvae.io.diffusers_folder import SHARDED_NAME, WeightsError


@click.command()
@click.argument("source", metavar="DIR_OR_REPO")
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--dtype",
    type=click.Choice(("float32", "bfloat16", "float16")),
    default="float32",
    show_default=True,
    help="What the parameters are kept in.",
)
@REVISION
@OFFLINE
@QUIET
@JSON
def convert(
    source: str,
    target: Path,
    dtype: str,
    revision: str | None,
    local_files_only: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write a checkpoint of diffusers as one of JAX, or back.

    SOURCE is the checkpoint, TARGET a new folder. What diffusers saved, here or on the Hub, becomes
    a checkpoint for `jaxvae.load_checkpoint`, which many devices read in parts; such a checkpoint
    becomes a folder that diffusers loads. Values stay the same to the bit where --dtype can hold
    them.

    \b
    Example:
      jaxvae convert path/to/vae checkpoints/vae
    """
    if target.exists():
        raise WeightsError(f"{target}: expected a new folder, found one; choose another name")
    import jax
    from flax import nnx

    from jaxvae.io.sharded_checkpoint import save_checkpoint

    sharded = (Path(source) / SHARDED_NAME).exists()
    model = load(source, revision, local_files_only, param_dtype=dtype, finite=False)
    if sharded:
        model.save_pretrained(target)
    else:
        # Orbax logs what it raises as well, some of it when garbage is collected
        logging.disable(logging.ERROR)
        save_checkpoint(model, target)
    kinds = ("JAX", "diffusers") if sharded else ("diffusers", "JAX")
    facts = {
        "read": f"{source} ({kinds[0]})",
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))),
        "dtype": dtype,
        "wrote": f"{target} ({kinds[1]})",
    }
    report(facts, quiet=quiet, as_json=as_json)
