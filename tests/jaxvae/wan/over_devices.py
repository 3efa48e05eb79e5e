"""Run the small models on one device and over meshes; a process of its own: devices are virtual.

Prints the largest difference for each mesh.
"""

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import numpy as np
from jax.sharding import AxisType

from tests.jaxvae.conftest import Bridge
from tests.jaxvae.wan.conftest import make_pair

MESHES = {
    "batch": {"batch": 2},
    "height": {"height": 2},
    "width": {"width": 2},
    "time": {"time": 3},
    "time-batch": {"time": 2, "batch": 2},
    "tiles": {"tiles": 2},
}


def mesh_of(axes):
    count = int(np.prod(list(axes.values())))
    return jax.make_mesh(
        tuple(axes.values()),
        tuple(axes),
        (AxisType.Auto,) * len(axes),
        devices=jax.devices()[:count],
    )


def results(vae, x):
    posterior = vae.encode(x)
    z = np.asarray(posterior.mode())
    found = [np.asarray(posterior.parameters), np.asarray(vae.decode(z))]
    if vae.sharding is None or vae.sharding.tiles is None:
        streamed = [np.asarray(part) for part in vae.encode_stream([x], x.shape[1])]
        found += [
            np.concatenate(streamed, 1),
            np.concatenate(list(map(np.asarray, vae.decode_stream(z))), 1),
        ]
    return found


def main():
    x = Bridge.normal(2, 22, 16, 16, 3)  # 1 + 5 * 4 frames: rounds are not full
    for name, axes in MESHES.items():
        vae = Bridge.clone(make_pair("2.1").ours)
        if name == "tiles":
            vae.enable_tiling(8, 16, 8, 8)
        wanted = results(vae, x)
        vae.enable_sharding(mesh_of(axes), **{axis: axis for axis in axes})
        found = results(vae, x)
        worst = max(Bridge.error(a, b) for a, b in zip(found, wanted, strict=False))
        sys.stdout.write(f"{name} {worst}\n")


if __name__ == "__main__":
    main()
