"""The command `jaxvae`, against diffusers on the same frames."""

import json
from types import SimpleNamespace

import diffusers
import imageio.v3 as imageio
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from click import UsageError
from flax import nnx
from safetensors.numpy import load_file, save_file
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from jaxvae import AutoencoderKLCogVideoX
from jaxvae.cli import coding, main, options
from jaxvae.cli.options import set_tiles
from jaxvae.cli.reconstruct import returned
from jaxvae.io.diffusers_folder import WeightsError
from jaxvae.io.video import find_video, from_pixels, to_pixels
from jaxvae.models.cogvideox.config import CogVideoXVAEConfig
from tests.commands import jaxvae


@pytest.fixture(scope="module")
def home(tmp_path_factory, pair):
    """A folder with diffusers' model, and a clip of 11 frames of 20x27 pixels."""
    folder = tmp_path_factory.mktemp("command")
    pair.theirs.save_pretrained(folder / "vae")
    rows, columns = np.mgrid[:20, :27]
    frames = [
        np.stack([rows * 9 + 3 * t, columns * 7, rows * columns % 250], -1) for t in range(11)
    ]
    np.save(folder / "clip.npy", np.stack(frames).astype(np.uint8))
    return folder


@pytest.fixture(scope="module")
def window(home):
    """What the model takes of it: 9 frames, sizes that divide by 4, the middle."""
    return np.load(home / "clip.npy")[:9, :, 1:25]


@pytest.fixture(scope="module")
def theirs(pair, window):
    """diffusers' reconstruction, as 8-bit frames."""
    video = torch.from_numpy(from_pixels(window)).movedim(-1, 0)[None]
    with torch.no_grad():
        return to_pixels(pair.theirs(video).sample[0].movedim(0, -1).numpy())


@pytest.mark.slow
def test_reconstruct_gives_the_frames_of_diffusers(home, window, theirs):
    done = jaxvae(
        "reconstruct", home / "clip.npy", home / "back.npy", "--weights", home / "vae",
        "--compare", home / "shown.png", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    back = np.load(home / "back.npy")
    gap = np.abs(back.astype(int) - theirs)
    assert gap.max() <= 1  # a value on the edge between two levels
    assert (gap > 0).mean() < 255 * 2e-5  # a share that values off by 2e-5 of their range reach
    facts = json.loads(done.stdout)
    assert facts["psnr_db"] == pytest.approx(peak_signal_noise_ratio(window, back))
    each = [
        structural_similarity(*pair, channel_axis=-1) for pair in zip(back, window, strict=True)
    ]
    assert facts["ssim"] == pytest.approx(np.mean(each))
    assert (facts["frames"], facts["left_out"], facts["size"]) == (9, 2, "20x24")
    assert facts["latent"] == "3x5x6x4"
    picture = imageio.imread(home / "shown.png")
    assert picture.shape == (3 * 20, 3 * 24, 3)
    assert np.array_equal(picture[:20, :24], window[0])
    assert np.array_equal(picture[40:, 24:48], back[8])
    gap = np.minimum(4 * np.abs(back[4].astype(int) - window[4]), 255)
    assert np.array_equal(picture[20:40, 48:], gap)


@pytest.mark.slow
def test_encode_and_decode_do_the_same_in_two_steps(home, theirs):
    encoded = jaxvae(
        "encode", home / "clip.npy", home / "latent.safetensors", "--weights", home / "vae",
        "--frames", 9,
    )  # fmt: skip
    assert encoded.returncode == 0, encoded.stderr
    assert "latent   3x5x6x4" in encoded.stdout
    arrays = load_file(home / "latent.safetensors")
    assert {name: array.shape for name, array in arrays.items()} == {
        "mean": (1, 3, 5, 6, 4), "logvar": (1, 3, 5, 6, 4)
    }  # fmt: skip
    words = ("decode", home / "latent.safetensors", "--weights", home / "vae", "--quiet")
    decoded = jaxvae(*words, home / "decoded.npy")
    assert (decoded.returncode, decoded.stdout) == (0, ""), decoded.stderr
    assert np.abs(np.load(home / "decoded.npy").astype(int) - theirs).max() <= 1


@pytest.mark.slow
def test_decode_reads_a_latent_in_bfloat16(home):
    """In a process of its own: once JAX is imported NumPy knows the type."""
    words = ("--weights", home / "vae", "--dtype", "bfloat16", "--quiet")
    encoded = jaxvae("encode", home / "clip.npy", home / "half.safetensors", *words, "--frames", 9)
    assert (encoded.returncode, encoded.stderr) == (0, "")
    decoded = jaxvae("decode", home / "half.safetensors", home / "half.npy", *words)
    assert (decoded.returncode, decoded.stderr) == (0, "")
    assert np.load(home / "half.npy").shape == (9, 20, 24, 3)


@pytest.mark.slow
def test_a_video_of_a_latent(run, home):
    array = np.random.default_rng(0).standard_normal((1, 3, 5, 6, 4)).astype(np.float32)
    save_file({"latent": array}, home / "drawn.safetensors", {"rate": "30000/1001"})
    words = ("decode", "drawn.safetensors", "drawn.mp4", "--weights", "vae")
    assert run(*words) == (0, "")
    assert imageio.imread(home / "drawn.mp4").shape == (9, 20, 24, 3)
    assert imageio.immeta(home / "drawn.mp4")["fps"] == pytest.approx(30000 / 1001)
    assert run(*words, "--rate", "10") == (0, "")
    assert imageio.immeta(home / "drawn.mp4")["fps"] == 10


def test_convert_and_back(home, pair):
    done = jaxvae("convert", home / "vae", home / "sharded")
    assert done.returncode == 0, done.stderr
    assert f"wrote       {home / 'sharded'} (JAX)" in done.stdout
    done = jaxvae("convert", home / "sharded", home / "again", "--quiet")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    loaded = diffusers.AutoencoderKLCogVideoX.from_pretrained(home / "again")
    wanted = pair.theirs.state_dict()
    found = loaded.state_dict()
    assert set(found) == set(wanted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.slow
def test_what_convert_wrote_can_be_used(home, run):
    assert run("convert", "vae", "for-jax", "--quiet") == (0, "")
    words = ("encode", "clip.npy", "mean.safetensors", "--frames", "1", "--quiet", "--weights")
    means = []
    for weights in ("vae", "for-jax"):
        assert run(*words, weights) == (0, "")
        means.append(load_file(home / "mean.safetensors")["mean"])
    assert np.array_equal(*means)
    with pytest.raises(WeightsError, match="jaxvae convert for-jax NEW_FOLDER"):
        AutoencoderKLCogVideoX.from_pretrained("for-jax")


def test_of_a_latent_that_is_not_sampled_only_means_are_held(home):
    """Part by part: half of what `encode` holds."""
    clip = find_video(home / "clip.npy")
    model = SimpleNamespace(
        config=SimpleNamespace(latent_channels=3),
        encode_stream=lambda parts, _: (np.ones((1, 1, 2, 2, 6)) for part in parts),
    )
    with options.progress(quiet=True) as bars:
        assert coding.encoded(model, clip, bars).shape == (1, 2, 2, 2, 6)
        assert coding.encoded(model, clip, bars, mean=True).shape == (1, 2, 2, 2, 3)


def test_what_is_no_number_is_null_in_json(capsys):
    options.report({"psnr_db": np.inf, "ssim": np.nan, "frames": 1}, quiet=False, as_json=True)
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert printed == {"psnr_db": None, "ssim": None, "frames": 1}


INTERRUPTED = """
import ctypes, os, signal, sys

ctypes.pythonapi.Py_AtExit(ctypes.CDLL(None).abort)  # as threads of XLA may, at the exit
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
sent = []

def begun(event, args):
    if event == "open" and not sent and os.listdir("out"):
        sent.append(os.kill(os.getpid(), signal.SIGINT))

sys.addaudithook(begun)
"""


def test_an_interrupt_leaves_before_the_interpreter_ends(home, tmp_path):
    """Once it has begun to write."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED)
    (tmp_path / "out").mkdir()
    words = ("reconstruct", home / "clip.npy", "out/back.npy", "--weights", home / "vae")
    done = jaxvae(*words, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.strip().splitlines()[-1] == "jaxvae: interrupted"
    assert list((tmp_path / "out").iterdir()) == []


@pytest.fixture
def run(home, monkeypatch, capsys):
    """The command in this process: its exit code, and what it printed as an error."""

    def run(*words):
        monkeypatch.setattr("sys.argv", ["jaxvae", *map(str, words)])
        monkeypatch.chdir(home)
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reconstruct", "clip.npy", "out.npy"], "Missing option '--weights'"),
        (["reconstruct", "gone.mp4", "out.npy", "--weights", "vae"], "gone.mp4: no such file"),
        (["reconstruct", "clip.npy", "out.gif", "--weights", "vae"], "out.gif: cannot be written"),
        (["reconstruct", "clip.npy", "no/out.mp4", "--weights", "vae"], "make no first"),
        (["reconstruct", "clip.npy", "out.npy", "--weights", "gone"], "gone"),
        (["reconstruct", "clip.npy", "out.npy", "--weights", "vae", "--size", "64x64"],
         "clip.npy has frames of 20x27"),
        (["reconstruct", "clip.npy", "out.npy", "--weights", "vae", "--size", "3x9"],
         "this model needs at least 4x4"),
        (["reconstruct", "clip.npy", "out.npy", "--weights", "vae", "--first", "11"],
         "11 frames, and none from number 11 on"),
        (["reconstruct", "clip.npy", "out.npy", "--weights", "vae", "--compare", "a.jpg"],
         "expected a name that ends in .png"),
        (["encode", "clip.npy", "latent.npz", "--weights", "vae"], "with .safetensors"),
        (["decode", "gone.safetensors", "out.npy", "--weights", "vae"], "not a readable safetens"),
        (["decode", "vae/config.json", "out.npy", "--weights", "vae"], "not a readable safetens"),
        (["decode", "other.safetensors", "out.npy", "--weights", "vae"],
         "expected an array `latent` or `mean`, found x"),
        (["decode", "shape.safetensors", "out.npy", "--weights", "vae"],
         "this model decodes (1, frames, height, width, 4), channels last"),
        (["decode", "nan.safetensors", "out.npy", "--weights", "vae"], "no finite numbers"),
        (["decode", "half.safetensors", "out.npy", "--weights", "vae"], "no finite numbers"),
        (["decode", "whole.safetensors", "out.npy", "--weights", "vae"],
         "`latent` holds int32 values; expected floating-point numbers"),
        (["reconstruct", "clip.npy", "clip.npy", "--weights", "vae"],
         "clip.npy: is what is read; expected another file to write to"),
        (["reconstruct", "clip.npy", "link.npy", "--weights", "vae"], "link.npy: is what is read"),
        (["reconstruct", "frame.png", "out.npy", "--weights", "vae", "--compare", "frame.png"],
         "frame.png: is what is read"),
        (["encode", "rate.safetensors", "rate.safetensors", "--weights", "vae"],
         "rate.safetensors: is what is read"),
        (["decode", "latent.npy", "latent.npy", "--weights", "vae"], "latent.npy: is what is read"),
        (["decode", "rate.safetensors", "out.npy", "--weights", "vae"], "rate '-3' is not"),
        (["convert", "vae", "vae"], "vae: expected a new folder, found one"),
        (["convert", "gone", "new"], "gone"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_said_in_one_line(run, home, words, message):
    latent = np.zeros((1, 1, 5, 6, 4), np.float32)
    save_file({"x": latent}, home / "other.safetensors")
    save_file({"latent": latent[..., :3]}, home / "shape.safetensors")
    save_file({"latent": latent * np.nan}, home / "nan.safetensors")
    save_file({"latent": latent}, home / "rate.safetensors", {"rate": "-3"})
    save_file({"latent": latent.astype(np.int32)}, home / "whole.safetensors")
    save_file({"latent": (latent * np.nan).astype(jnp.bfloat16)}, home / "half.safetensors")
    save_file({"latent": latent}, home / "latent.npy")
    imageio.imwrite(home / "frame.png", np.zeros((20, 24, 3), np.uint8))
    link = home / "link.npy"
    if not link.exists():
        link.symlink_to("clip.npy")
    before = {path.name for path in home.iterdir()}
    code, error = run(*words)
    assert code == 2
    assert message in error.strip().splitlines()[-1]
    assert {path.name for path in home.iterdir()} == before


TILES = [(16, 16), (12, 20), (8, 24)]


@pytest.mark.parametrize("tile", TILES)
def test_tiles_overlap_by_whole_latents(pair, bridge, tile):
    """16 pixels that overlap by a fifth would give back another size than went in."""
    ours = bridge.clone(pair.ours)
    set_tiles(ours, tile)
    shape = jax.ShapeDtypeStruct((1, 1, 20, 24, 3), "float32")
    latent = jax.eval_shape(lambda x: ours.encode(x).mode(), shape)
    assert jax.eval_shape(ours.decode, latent).shape == shape.shape
    with pytest.raises(UsageError, match="expected multiples of 4, at least two"):
        set_tiles(ours, (10, 16))


@pytest.mark.parametrize("part", [1 / 6, 1 / 5, 1 / 4, 0.4])
def test_overlaps_are_whole_after_they_are_rounded(part):
    """As the source cuts them: 392 pixels that overlap by 10 of 49 latents are cut to 312, 9."""
    for latents in range(2, 400):
        overlap = options._overlap(8 * latents, part, 8)
        shared = round(latents * overlap)
        assert 0 < shared < latents
        assert abs(shared / latents - part) < max(0.05, 1 / latents)
        for lines, known in ((latents, shared), (8 * latents, 8 * shared)):
            assert (int(lines * overlap), int(lines * (1 - overlap))) == (known, lines - known)


def test_tiles_of_a_size_that_is_no_multiple_are_a_little_smaller():
    config = CogVideoXVAEConfig(sample_height=500)
    ours = AutoencoderKLCogVideoX.without_values(config)
    set_tiles(ours, None)
    assert ours.tile_plan()[0] == (248, 360)


def test_what_is_no_picture_is_said_before_any_work(tmp_path, run, home):
    fields = json.loads((home / "vae/config.json").read_text())
    grey = fields | {"in_channels": 1}
    model = AutoencoderKLCogVideoX(CogVideoXVAEConfig.from_dict(grey), rngs=nnx.Rngs(0))
    model.save_pretrained(tmp_path / "grey")
    words = ("reconstruct", "clip.npy", "grey.npy", "--weights", str(tmp_path / "grey"))
    code, error = run(*words)
    assert code == 2
    assert "takes 1 channels and returns 3" in error


@pytest.mark.slow
@pytest.mark.parametrize("tile", TILES)
def test_tiles_are_those_of_diffusers(run, home, pair, bridge, window, tile):
    words = ("reconstruct", "clip.npy", "tiled.npy", "--weights", "vae", "--frames", "1")
    assert run(*words, "--tile", f"{tile[0]}x{tile[1]}") == (0, "")
    theirs = bridge.clone(pair.theirs)
    theirs.enable_tiling(*tile, 4 / tile[0], 4 / tile[1])
    video = torch.from_numpy(from_pixels(window[:1])).movedim(-1, 0)[None]
    wanted = to_pixels(theirs(video).sample[0].movedim(0, -1).numpy())
    assert np.abs(np.load(home / "tiled.npy").astype(int) - wanted).max() <= 1


@pytest.mark.parametrize(
    ("ratio", "frames", "wanted"),
    [(4, 1, 1), (4, 4, 1), (4, 8, 8), (4, 9, 9), (4, 12, 9), (4, 17, 17), (4, 49, 49), (4, 15, 9),
     (2, 3, 1), (2, 4, 4), (2, 7, 5), (1, 6, 6)],
)  # fmt: skip
def test_how_many_frames_come_back(ratio, frames, wanted):
    config = CogVideoXVAEConfig(temporal_compression_ratio=ratio)
    assert returned(frames, config) == wanted
