"""Compiled steps in a file: another process runs them without tracing or compiling.

Not in diffusers. A file holds XLA's executables (`jax.experimental.serialize_executable`), not
exported programs (`jax.export`): those may be read by later versions and on other machines, but are
compiled again where they are read, and that is what takes minutes. So a file serves the versions,
the kind of device and the configuration that it was written with, and is refused anywhere else.
Parameters are arguments: models with other weights share a file.

A file is code. Its digest tells a damaged file, not one that somebody made on purpose: load only
what you, or someone you trust, have saved.
"""

import hashlib
import json
import os
import platform
import struct
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import jax

from jaxvae.devices.compile_ahead import compile_programs
from jaxvae.devices.compile_cache import use_default_cache, without_cache
from jaxvae.devices.loaded import add_loaded, key_of
from jaxvae.models.cogvideox.autoencoder import AutoencoderKLCogVideoX
from jaxvae.run.steps import Parts, decode_chunk, encode_chunk

MAGIC = b"jaxvae programs 1\n"
_STEPS = {"encode": encode_chunk, "decode": decode_chunk}


class ProgramsError(ValueError):
    """A file of programs that is damaged, or belongs to another model, version or machine."""


def save(
    vae: AutoencoderKLCogVideoX,
    path: str | Path,
    *,
    video: tuple[int, ...] | None = None,
    latent: tuple[int, ...] | None = None,
) -> None:
    """Compile the steps of these shapes, as `compile_ahead` does, and write them into one file.

    Shapes are (b, t, h, w, c) of what `encode` and `decode` get. Switch tiling, slicing and
    gradient checkpointing before. The file appears when it is complete, and replaces one that is
    there. Raises ValueError for shapes that cannot be, and ProgramsError if the parameters lie on
    several devices or the file cannot be written.
    """
    from jax.experimental import serialize_executable

    header = _environment(vae, "aot.save")
    use_default_cache()  # decided once in a process, and not where the cache is off for a moment
    wanted = list(vae.step_programs(video, latent))
    with without_cache():
        # `partial` makes functions that JAX has not met: it would return what it fetched before.
        programs = compile_programs(
            (replace(coder, step=partial(coder.step)), chunk, cache)
            for coder, chunk, cache in wanted
        )
    header["programs"], payloads = [], []
    for (coder, chunk, cache), compiled in zip(wanted, programs, strict=True):
        payload, tree, _ = serialize_executable.serialize(compiled)
        payloads.append(payload)
        header["programs"].append(
            {
                "step": next(name for name, step in _STEPS.items() if step is coder.step),
                "chunk": _described(chunk),
                "cache": _described(cache),
                "next_cache": _described(compiled.out_info[1]),
                "structure": _digest(str(tree)),
                "bytes": len(payload),
            }
        )
    text = json.dumps(header).encode()
    content = b"".join((struct.pack("<Q", len(text)), text, *payloads))
    file = Path(path)
    part = file.with_name(f".{file.name}.{uuid4().hex}")
    try:
        try:
            part.write_bytes(MAGIC + hashlib.sha256(content).digest() + content)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ProgramsError(f"{file}: cannot be written ({error})") from error


def load(vae: AutoencoderKLCogVideoX, path: str | Path) -> None:
    """Read what `save` wrote: `encode` and `decode` of those shapes run the steps from the file.

    They do so for `vae`, and as JAX's own compiled programs for every model in this process that
    is like it. Cutting chunks and joining frames are not steps: they are compiled as always, in
    milliseconds. So are the steps of any other shape, and after a switch that changes the program.

    The file must be trusted (see above). Nothing in it is run or unpickled before its digest, and
    then its versions, device and configuration, are found right. Raises ProgramsError.
    """
    from jax.experimental import serialize_executable

    file = Path(path)
    header, payloads = _read(file)
    expected = _environment(vae, "aot.load")
    for name, value in expected.items():
        if header.get(name) != value:
            theirs, ours = _unlike(header.get(name), value)
            raise ProgramsError(
                f"{file}: made for {name} {theirs!r}, expected {ours!r}; save it again with this"
                " model, on this kind of machine"
            )
    if not all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(vae)):
        raise ProgramsError(
            "aot.load: expected parameters that lie on a device, found NumPy arrays;"
            " put them there with nnx.update(vae, jax.device_put(nnx.state(vae)))"
        )
    (device,) = _devices(vae)
    found = []
    for program in header["programs"]:
        parts: Parts = (
            (vae.encoder, vae.quant_conv)
            if program["step"] == "encode"
            else (vae.decoder, vae.post_quant_conv)
        )
        sharding = jax.sharding.SingleDeviceSharding(device)
        chunk, cache, next_cache = (
            _shapes(program[name], sharding) for name in ("chunk", "cache", "next_cache")
        )
        arguments = (parts, chunk, cache)
        tree = jax.tree.structure((arguments, {}))
        if _digest(str(tree)) != program["structure"]:
            raise ProgramsError(
                f"{file}: made for a model in another state; expected the same precision and"
                " switches (gradient checkpointing, training mode) as when it was saved"
            )
        found.append((key_of(_STEPS[program["step"]], *arguments), tree, next_cache))
    loaded = []
    for (_, tree, next_cache), payload in zip(found, payloads, strict=True):
        returned = jax.tree.structure((0, next_cache))
        try:
            program = serialize_executable.deserialize_and_load(
                payload, tree, returned, backend=device.client, execution_devices=[device]
            )
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            raise ProgramsError(f"{file}: refused by this machine's runtime ({reason})") from error
        loaded.append(program)
    for (key, _, _), program in zip(found, loaded, strict=True):
        add_loaded(key, program)


def _read(file: Path) -> tuple[dict[str, Any], list[bytes]]:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ProgramsError(f"{file}: cannot be read ({error})") from error
    start = len(MAGIC) + hashlib.sha256().digest_size
    if not data.startswith(MAGIC):
        raise ProgramsError(f"{file}: expected a file that aot.save wrote, found another")
    if hashlib.sha256(data[start:]).digest() != data[len(MAGIC) : start]:
        raise ProgramsError(f"{file}: is not what aot.save wrote, by its digest; fetch it again")
    (size,) = struct.unpack_from("<Q", data, start)
    start += 8
    header = json.loads(data[start : start + size])
    start += size
    payloads = []
    for program in header["programs"]:
        payloads.append(data[start : start + program["bytes"]])
        start += program["bytes"]
    return header, payloads


def _environment(vae: AutoencoderKLCogVideoX, name: str) -> dict[str, Any]:
    """What must be equal where a file is written and where it is read."""
    devices = _devices(vae)
    if vae.sharding is not None:
        raise ProgramsError(f"{name}: expected a model on one device; call disable_sharding()")
    if len(devices) != 1:
        raise ProgramsError(
            f"{name}: expected parameters on one device, found them on {len(devices)}; a program"
            " for several devices cannot be stored"
        )
    (device,) = devices
    return {
        "jaxvae": f"{version('jaxvae')} {_sources()}",
        "jax": version("jax"),
        "jaxlib": version("jaxlib"),
        "flax": version("flax"),
        "platform": f"{device.platform} {device.client.platform_version}",
        "device": f"{device.device_kind} {device.id}",
        "machine": _machine(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        # as JSON has it: tuples are lists
        "config": json.loads(json.dumps(vae.config.to_dict())),
        "dtype": str(vae.dtype),
        "param_dtype": str(vae.param_dtype),
    }


def _unlike(theirs: Any, ours: Any) -> tuple[Any, Any]:
    """Of two mappings what differs in them, of anything else all."""
    if not isinstance(theirs, dict) or not isinstance(ours, dict):
        return theirs, ours
    names = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    return {name: theirs.get(name) for name in names}, {name: ours.get(name) for name in names}


def _devices(vae: AutoencoderKLCogVideoX) -> set[jax.Device]:
    leaves = map(jax.numpy.asarray, jax.tree.leaves(vae))  # parameters may be NumPy arrays
    return set().union(*(leaf.sharding.device_set for leaf in leaves))


def _machine() -> str:
    """The processor's instruction set: a program for a CPU uses all of it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else [platform.processor()]
    features = next((x for x in lines if x.startswith(("flags", "Features"))), lines[0])
    return f"{platform.machine()} {_digest(features)}"


def _sources() -> str:
    """A digest of this package's code: a program of other code is another program."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return _digest("".join(f"{file.name}\n{file.read_text(encoding='utf-8')}" for file in files))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _described(tree: Any) -> Any:
    """Return nested dicts, as JSON can hold them; an array is its shape and dtype in a list."""
    if isinstance(tree, Mapping):
        return {key: _described(value) for key, value in tree.items()}
    return None if tree is None else [list(tree.shape), str(tree.dtype)]


def _shapes(described: Any, sharding: jax.sharding.Sharding) -> Any:
    """Return what `_described` has described, on a device."""
    if isinstance(described, Mapping):
        return {key: _shapes(value, sharding) for key, value in described.items()}
    if described is None:
        return None
    shape, dtype = described
    return jax.ShapeDtypeStruct(tuple(shape), jax.numpy.dtype(dtype), sharding=sharding)
