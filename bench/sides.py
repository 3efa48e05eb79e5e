"""An autoencoder on PyTorch and on JAX, each in a process of its own, asked for one run at a time.

Memory that a framework has taken from a GPU it keeps until its process ends, hence the processes.
"""

import gc
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from parity.host.memory import give_back, peak_memory


@dataclass(frozen=True)
class Spec:
    """The content of a process: a model, an input and how they are run.

    `dtype` is float32, tf32 (float32 whose products may be rounded to TF32), bfloat16 or, of
    PyTorch alone, float64. `layout` is contiguous, channels_last, channels_last_3d or compile, of
    PyTorch alone. Frames, height and width are those of the video; an image has one frame.
    """

    framework: str
    device: str
    config: str
    direction: str
    dtype: str
    frames: int
    height: int
    width: int
    layout: str = "contiguous"
    model: str = "cogvideox"


MODELS = {"cogvideox": "default", "kl": "sd", "wan": "wan2.1"}
"""The pairs that can be measured, and the name of their full size."""

IMAGES = ("kl",)
"""The pairs whose inputs have one frame."""


def family(model: str) -> Any:
    """Return the classes and configurations of a pair."""
    return import_module(f"jaxvae.pairs.{model}.pair").FAMILY


def config_of(spec: Spec) -> Any:
    """Return the configuration of a model."""
    from jaxvae.pairs.port import read_config

    return read_config(family(spec.model).configs, spec.config)


PATIENCE = 1800
"""Seconds after which a side that does not answer is given up: compiling takes minutes."""


PRODUCT = 2048
"""Rows and columns of the matrices that show what a machine can do."""


class Failed(Exception):
    """A side that cannot do what it was asked for, and why; `memory` if there was too little."""

    def __init__(self, reason: str, memory: bool = False):
        super().__init__(reason)
        self.memory = memory


def input_shape(spec: Spec, config: Any) -> tuple[int, ...]:
    """Return the shape, channels last, of a video or image, or of its latent."""
    encodes, shrink = spec.direction == "encode", config.spatial_ratio
    axes = {"batch": 1, "frames": spec.frames, "height": spec.height, "width": spec.width}
    if not encodes:
        latent = (config.latent_frames(spec.frames), spec.height // shrink, spec.width // shrink)
        axes.update(zip(("frames", "height", "width"), latent, strict=True))
    channels = config.in_channels if encodes else config.latent_channels
    return (*(axes[name] for name in family(spec.model).model.axes), channels)


def make_input(spec: Spec, config: Any) -> np.ndarray:
    """Noise, channels last, float32: a video or image within [-1, 1], or a latent of N(0, 1)."""
    noise, shape = np.random.default_rng(0), input_shape(spec, config)
    values = noise.uniform(-1, 1, shape) if spec.direction == "encode" else noise.normal(size=shape)
    return values.astype(np.float32)


class TorchSide:
    """diffusers' model."""

    def __init__(self, spec: Spec):
        """Build the model where it runs; raises Failed if PyTorch has no such device."""
        import torch

        if spec.device == "gpu" and not torch.cuda.is_available():
            raise Failed("this PyTorch finds no CUDA device")

        self.torch, self.spec = torch, spec
        self.cuda = spec.device == "gpu"
        place = "cuda" if self.cuda else "cpu"
        dtype = torch.float32 if spec.dtype == "tf32" else getattr(torch, spec.dtype)
        torch.backends.cuda.matmul.allow_tf32 = spec.dtype == "tf32"
        torch.backends.cudnn.allow_tf32 = spec.dtype == "tf32"
        # torch's own `to`: that of diffusers says that it had rather be asked otherwise
        reference = family(spec.model).source().make_torch(None, spec.config, 0)
        model = torch.nn.Module.to(reference, place, dtype)
        x = torch.from_numpy(make_input(spec, config_of(spec)))
        self.x = x.movedim(-1, 1).contiguous().to(place, dtype)
        if spec.layout.startswith("channels_last"):
            for module in model.modules():
                if isinstance(module, torch.nn.Conv3d):
                    module.to(memory_format=torch.channels_last_3d)
                if isinstance(module, torch.nn.Conv2d):
                    module.to(memory_format=torch.channels_last)
            self.x = self.x.to(memory_format=getattr(torch, spec.layout))
        if spec.direction == "encode":
            self.call = lambda x: model.encode(x).latent_dist.parameters
        else:
            self.call = lambda z: model.decode(z).sample
        if spec.layout == "compile":
            self.call = torch.compile(self.call)

    def seconds(self) -> float:
        """Of one run, to its end."""
        if self.cuda:
            self.torch.cuda.synchronize()
        start = time.perf_counter()
        self._run()
        if self.cuda:
            self.torch.cuda.synchronize()
        return time.perf_counter() - start

    def output(self) -> np.ndarray:
        """Return the output of a run, channels last, float64."""
        output = self._run().movedim(1, -1)
        return np.asarray(output.double().cpu().numpy())

    def memory(self) -> dict[str, int]:
        """Bytes at the highest point since `_forget_peak`; on a GPU also of the device, from the
        start.
        """
        found = {"resident": peak_memory()}
        if self.cuda:
            found["peak"] = self.torch.cuda.max_memory_allocated()
            found["reserved"] = self.torch.cuda.max_memory_reserved()
        return found

    def operations(self) -> int:
        """Of the convolutions of one run as they are written: a product and a sum are two."""
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            self._run()
        return int(counter.get_total_flops())

    def product(self) -> float:
        """Operations a second in a product of two matrices of float32, at best."""
        a = self.torch.ones(PRODUCT, PRODUCT)
        return 2 * PRODUCT**3 / min(_timed(lambda: a @ a) for _ in range(10))

    def about(self) -> dict[str, Any]:
        """Versions and the device."""
        about: dict[str, Any] = {"torch": self.torch.__version__}
        about["threads"] = self.torch.get_num_threads()
        if self.cuda:
            about["device"] = self.torch.cuda.get_device_name()
            about["cuda"] = self.torch.version.cuda
            about["cudnn"] = self.torch.backends.cudnn.version()
        return about

    def _run(self) -> Any:
        with self.torch.inference_mode():
            return self.call(self.x)


class JaxSide:
    """The port."""

    def __init__(self, spec: Spec):
        """Build the model where it runs; raises Failed if JAX has no such device."""
        import jax
        import jax.numpy as jnp

        try:
            self.device = jax.devices(spec.device)[0]
        except RuntimeError as error:
            raise Failed(f"this JAX finds no {spec.device}: {_line(error)}") from error
        self.jax, self.spec = jax, spec
        dtype = jnp.bfloat16 if spec.dtype == "bfloat16" else jnp.float32
        precision = "default" if spec.dtype == "tf32" else "highest"
        config, model = config_of(spec), family(spec.model).model
        with jax.default_device(self.device), tempfile.TemporaryDirectory() as folder:
            # by another process: who uses the port alone does not hold PyTorch as well
            saving = multiprocessing.get_context("spawn").Process(target=_save, args=(spec, folder))
            saving.start()
            saving.join()
            if saving.exitcode:
                raise Failed("PyTorch's model could not be saved for the port; its error is above")
            self.vae = model.from_pretrained(folder, dtype=dtype, precision=precision)
            self.x = jax.block_until_ready(jnp.asarray(make_input(spec, config), dtype))

    def tile(self) -> None:
        """From now on in tiles: another function, in less memory."""
        self.vae.enable_tiling()

    def seconds(self) -> float:
        """Of one run, to its end."""
        start = time.perf_counter()
        self._run()
        return time.perf_counter() - start

    def output(self) -> np.ndarray:
        """Return the output of a run, channels last, float64."""
        return np.asarray(self._run(), np.float64)

    def memory(self) -> dict[str, int]:
        """Bytes at the highest point so far, as `TorchSide`'s, and `temporary`, of one program.

        That is what the compiler says that the largest step needs beside what it is given.
        """
        found = {"resident": peak_memory()}  # before anything is compiled for it
        if stats := self.device.memory_stats():  # a CPU has none
            found["peak"] = stats["peak_bytes_in_use"]
        shape = "video" if self.spec.direction == "encode" else "latent"
        with self.jax.default_device(self.device):
            found["temporary"] = max(
                coder.lower(x, cache).compile().memory_analysis().temp_size_in_bytes
                for coder, x, cache in self.vae.step_programs(**{shape: self.x.shape})
            )
        return found

    def product(self) -> float:
        """Operations a second in a product of two matrices of float32, at best."""
        a = self.jax.device_put(np.ones((PRODUCT, PRODUCT), np.float32), self.device)
        times = self.jax.jit(lambda a: self.jax.numpy.matmul(a, a, precision="highest"))
        times(a)
        return (
            2
            * PRODUCT**3
            / min(_timed(lambda: self.jax.block_until_ready(times(a))) for _ in range(10))
        )

    def about(self) -> dict[str, Any]:
        """Versions and the device."""
        client = self.device.client
        return {
            "jax": self.jax.__version__,
            "device": self.device.device_kind,
            "platform": client.platform_version.splitlines()[0],
        }

    def profile(self, folder: str) -> None:
        """Write a profile of one run to `folder`."""
        from parity.host.profile import profiled

        with profiled(Path(folder)):
            self._run()

    def _run(self) -> Any:
        with self.jax.default_device(self.device):
            if self.spec.direction == "encode":
                return self.jax.block_until_ready(self.vae.encode(self.x).parameters)
            return self.jax.block_until_ready(self.vae.decode(self.x))


class Side:
    """A side in a process of its own; methods are asked for by name. Use it in a `with`."""

    def __init__(self, spec: Spec):
        """Start the process; whether the side could be made is said by the first answer."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, spec))
        self._process.start()
        theirs.close()

    def ask(self, method: str, *args: Any) -> Any:
        """Return the output of the side's method; raise Failed with its reason, or that it died."""
        try:
            self._pipe.send((method, args))
            if not self._pipe.poll(PATIENCE):
                raise Failed(f"no answer in {PATIENCE} s")
            kind, answer = self._pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._process.join()
            raise Failed(f"its process ended with code {self._process.exitcode}") from None
        if kind != "done":
            raise Failed(answer, memory=kind == "memory")
        return answer

    def __enter__(self) -> "Side":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._pipe.close()  # which the process takes for the end
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def in_turn(sides: Mapping[str, Side], rounds: int) -> dict[str, Any]:
    """Seconds of a first run, of `rounds` runs in turn, and the memory of each side.

    Another side begins each turn, so that none always follows the same one. What fails is a record
    that says why. Raises Failed where memory is too little.
    """
    record: dict[str, Any] = {name: {} for name in sides}
    order = list(sides)
    for round_ in range(rounds + 1):
        for name in order:
            side = sides[name]
            found = record[name]
            if "skipped" in found:
                continue
            try:
                seconds = side.ask("seconds")
                if round_ == 0:
                    found["first"] = seconds
                else:
                    found.setdefault("seconds", []).append(seconds)
                if round_ == rounds:
                    found["median"] = statistics.median(found["seconds"])
                    found |= side.ask("memory")
            except Failed as failure:
                if failure.memory:
                    raise
                record[name] = {"skipped": str(failure)}
        order.append(order.pop(0))
    return record


def _timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _save(spec: Spec, folder: str) -> None:
    family(spec.model).source().make_torch(None, spec.config, 0).save_pretrained(folder)


def _forget_peak() -> None:
    """From now on the peak is that of runs; making the model is over. Linux alone can forget."""
    gc.collect()
    give_back()
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _serve(pipe: Any, spec: Spec) -> None:
    made: Any = None
    while True:
        try:
            method, args = pipe.recv()
        except EOFError:
            return
        try:
            if made is None:
                made = (JaxSide if spec.framework == "JAX" else TorchSide)(spec)
                _forget_peak()
            answer = "done", getattr(made, method)(*args)
        # Whatever a framework raises is a row of the table: the others are still to be measured.
        except Exception as error:
            answer = ("memory" if short_of_memory(error) else "failed"), _line(error)
        # Before the answer: what a side does after it would slow the next one's run.
        gc.collect()
        pipe.send(answer)


def short_of_memory(error: Exception) -> bool:
    """Return True if a framework says that the device, or the host, has too little memory."""
    text = f"{type(error).__name__}: {error}"
    return any(word in text for word in ("OutOfMemory", "out of memory", "RESOURCE_EXHAUSTED"))


def _line(error: Exception) -> str:
    text = next((line for line in str(error).splitlines() if line.strip()), "no reason given")
    return str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {text}"[:300]
