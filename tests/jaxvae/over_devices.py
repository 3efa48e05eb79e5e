"""Run the tiny model on one device and over meshes; a process of its own, as devices are virtual.

    python over_devices.py RESULTS.npz MODEL DEVICES MODE... [PROCESS PORT]

With PROCESS (0 or 1) and PORT the devices are those of two processes, one each, and the first of
them writes the results.
"""

import json
import os
import sys

MODES = {
    "batch": {"batch": 2},
    "width": {"width": 4},
    "time": {"time": 3},  # on a ring of two, forwards is backwards
    "time_of_two": {"time": 2},
    "height": {"height": 4},
    "all_eight_high": {"height": 8},
    "batch_width": {"batch": 2, "width": 4},
    "height_width": {"height": 4, "width": 2},
    "time_width": {"time": 4, "width": 2},
    "time_batch_height": {"time": 2, "batch": 2, "height": 2},
}
OTHER_WAYS = ("time_batch_height",)  # streams, and inside of a caller's own jit
SIZES = {"all_eight_high": (16, 8)}  # height and width of the latent; otherwise 4 x 4

CHUNK = 4  # frames; latent ones are 2
FRAMES, LATENTS = 25, 13  # 5 + 5 * 4 and 3 + 5 * 2: over 2 or 3 devices a round is not full


def compiled_programs():
    """Collect the names of the programs that XLA compiles, or fetches from a cache."""
    from jax import monitoring

    found = []

    def listen(event, duration, **kwargs):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(kwargs.get("fun_name", ""))

    monitoring.register_event_duration_secs_listener(listen)
    return found


def main(results, model, devices, *modes_and_process):
    modes = [word for word in modes_and_process if word in MODES]
    process = modes_and_process[len(modes) :]
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={devices}"

    import jax

    if process:
        number, port = process
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{port}", 2, int(number))

    import numpy as np
    from jax.experimental.multihost_utils import process_allgather
    from jax.sharding import AxisType

    from jaxvae import AutoencoderKLCogVideoX

    vae = AutoencoderKLCogVideoX.from_pretrained(model)
    vae.num_sample_frames_batch_size = CHUNK
    compiled = compiled_programs()
    found, told = {}, {}

    def inputs(height, width):
        random = np.random.default_rng(0)
        video = random.standard_normal((2, FRAMES, 2 * height, 2 * width, 3))
        latent = random.standard_normal((2, LATENTS, height, width, 2))
        return video.astype(np.float32), latent.astype(np.float32)

    def keep(name, output):
        local = output.is_fully_addressable
        found[name] = np.asarray(output) if local else process_allgather(output, tiled=True)
        told[name] = [list(output.shape), list(output.addressable_shards[0].data.shape)]

    def run(name, size):
        video, latent = inputs(*size)
        for direction, output in {
            "encode": vae.encode(video).parameters,
            "decode": vae.decode(latent),
        }.items():
            keep(f"{name}/{direction}", output)

    def run_otherwise(name, size):
        video, latent = inputs(*size)
        parts = [video[:, :7], video[:, 7:]]
        for i, output in enumerate(vae.encode_stream(parts, FRAMES)):
            keep(f"{name}/stream/encode/{i}", output)
        for i, output in enumerate(vae.decode_stream(latent)):
            keep(f"{name}/stream/decode/{i}", output)
        encode = jax.jit(lambda vae, x: vae.encode(x).parameters)
        keep(f"{name}/jit/encode", encode(vae, video))
        keep(f"{name}/jit/decode", jax.jit(vae.decode)(latent))

    for mode in modes:
        size = SIZES.get(mode, (4, 4))
        reference = "one/{}x{}".format(*size)
        if f"{reference}/encode" not in found:
            run(reference, size)
        axes = MODES[mode]
        shape, names = tuple(axes.values()), tuple(axes)
        mesh = jax.make_mesh(
            shape,
            names,
            axis_types=(AxisType.Auto,) * len(axes),
            devices=jax.devices()[: int(np.prod(shape))],
        )
        vae.enable_sharding(mesh, **{name: name for name in names})
        vae.compile_ahead(*(array.shape for array in inputs(*size)))
        compiled.clear()
        run(mode, size)
        told[f"{mode}/compiled"] = sum("_compiled" in name for name in compiled)
        if mode in OTHER_WAYS:
            run_otherwise(mode, size)
        vae.disable_sharding()

    if not process or number == "0":
        np.savez(results, told=json.dumps(told), **found)
    if process:
        jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
