"""The command `parity`: exit 0 pass, 1 parity failure, 2 usage or input error."""

import sys
import traceback
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parity.emulate import MEANINGS
from parity.errors import InputError

if TYPE_CHECKING:
    from parity.records import Pair

GROUP = "parity.pairs"
PROFILE = click.option(
    "--profile", metavar="DIR", help="Also profile the run, with the calls of modules by name."
)


class Size(click.ParamType[tuple[int, int]]):
    """Height and width in pixels, as in 64x64."""

    name = "HxW"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Parse; at least one pixel each way."""
        if isinstance(value, tuple):
            return value
        parts = str(value).lower().split("x")
        if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
            self.fail(f"{value!r} is not HEIGHTxWIDTH, as in 64x64", param, ctx)
        return int(parts[0]), int(parts[1])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="jaxvae", prog_name="parity")
def cli() -> None:
    """A profiler for numerical error between PyTorch and Flax NNX."""


@cli.command()
@click.argument("pair", default="cogvideox")
@click.option("--video", metavar="FILE", help="Clip to use: a video or an .npy (T, H, W, 3).")
@click.option("--frames", type=click.IntRange(1), default=17, show_default=True)
@click.option("--size", type=Size(), default="64x64", show_default=True, help="Window, in pixels.")
@click.option("--weights", metavar="DIR_OR_REPO", help="Checkpoint for both sides.")
@click.option("--config", metavar="NAME_OR_FILE", help="Random weights of this configuration.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--emulate",
    type=click.Choice(list(MEANINGS)),
    help="Also run the port as hardware with coarser products would, and report what that adds; "
    "verdict and table stay those of the port as it runs here. "
    + " ".join(f"{name}: {meaning}." for name, meaning in MEANINGS.items()),
)
@click.option(
    "--disable-jit",
    is_flag=True,
    help="Run the port operation by operation: modules inside its own programs and loops are seen "
    "call by call.",
)
@PROFILE
@click.option("--out", metavar="DIR", help="Where the report goes  [default: reports/PAIR]")
def run(
    pair: str,
    video: str | None,
    frames: int,
    size: tuple[int, int],
    weights: str | None,
    config: str | None,
    seed: int,
    emulate: str | None,
    disable_jit: bool,
    profile: str | None,
    out: str | None,
) -> None:
    """Run the ladder of PAIR: a registered name, or module:attribute of one of yours."""
    from rich.console import Console

    if weights and config:
        raise InputError("--weights brings its own configuration: leave --config out")
    if out:
        writable(Path(out))
    profile_folder = writable(Path(profile), "--profile") if profile else None
    chosen = find_pair(pair)
    folder = writable(Path(out or f"reports/{chosen.name}"))

    from parity.environment import effective_precision
    from parity.pipeline import run_pair
    from parity.profile import profiled
    from parity.report.terminal import show, shown_progress

    console = Console(stderr=True)
    precision = ", ".join(f"{name} {found}" for name, found in effective_precision().items())
    console.print(f"effective precision of float32 products: {precision}", highlight=False)
    with shown_progress(console) as progress, profiled(profile_folder):
        report = run_pair(
            chosen,
            video=video,
            frames=frames,
            size=size,
            weights=weights,
            config=config,
            seed=seed,
            emulate=emulate,
            disable_jit=disable_jit,
            progress=progress,
            own_process=True,
        )
    written = report.write(folder)
    console = Console()
    show(report, console if console.is_terminal else Console(width=100))
    click.echo(f"wrote {len(written)} files to {folder}")
    sys.exit(0 if report else 1)


@cli.command()
@click.argument("pair", default="cogvideox")
@click.option("--config", default="small", show_default=True, help="Configuration of the models.")
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Each draws new weights, and for each mistake a module to make it in.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--only", metavar="GLOB", default="*", help="Mistakes by name.")
@PROFILE
@click.option("--out", metavar="DIR", help="Where the table goes  [default: reports/PAIR-selftest]")
def selftest(
    pair: str, config: str, rounds: int, seed: int, only: str, profile: str | None, out: str | None
) -> None:
    """Make known mistakes in the port of PAIR, and see whether they are found."""
    from rich.console import Console

    profile_folder = writable(Path(profile), "--profile") if profile else None
    chosen = find_pair(pair)
    folder = writable(Path(out or f"reports/{chosen.name}-selftest"))

    from parity.profile import profiled
    from parity.report.terminal import shown_progress
    from parity.selftest import bench
    from parity.selftest.show import show, write

    with shown_progress(Console(stderr=True)) as progress, profiled(profile_folder):
        result = bench.selftest(
            chosen, config=config, rounds=rounds, seed=seed, only=only, progress=progress
        )
    console = Console()
    show(result, console if console.is_terminal else Console(width=100))
    click.echo(f"wrote {write(result, folder)}")
    sys.exit(0 if result else 1)


def find_pair(name: str) -> "Pair":
    """The pair registered under `name`, or the attribute that module:attribute names."""
    from importlib import import_module

    from parity.records import Pair

    registered = {entry.name: entry for entry in entry_points(group=GROUP)}
    try:
        if name in registered:
            found = registered[name].load()
        else:
            module, colon, attribute = name.partition(":")
            if not colon:
                raise InputError(
                    f"no pair {name!r}; registered: {', '.join(sorted(registered)) or 'none'}; "
                    "or give module:attribute"
                )
            sys.path.insert(0, str(Path.cwd()))  # a console script does not look there
            found = getattr(import_module(module), attribute)
    except InputError:
        raise
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InputError(f"pair {name!r} cannot be loaded: {error}") from error
    if not isinstance(found, Pair):
        raise InputError(f"{name!r} is a {type(found).__name__}, expected a parity.Pair")
    return found


def writable(folder: Path, option: str = "--out") -> Path:
    """Make the folder now: a run of minutes should not end in an error about it."""
    import os

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be made ({error.strerror}); choose another {option}"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{folder}: cannot be written to; choose another {option}")
    return folder


def main() -> None:
    """Entry point of the console script."""
    try:
        cli.main(standalone_mode=False)
    except InputError as error:
        click.echo(f"parity: {error}", err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except OSError as error:
        click.echo(f"parity: {error}; the run is lost", err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("parity: interrupted", err=True)
        sys.exit(130)
    except Exception:
        # A model or pair that raises: its author needs the traceback, and CI must not take it
        # for a failed comparison.
        traceback.print_exc()
        click.echo("parity: the run broke off, nothing was compared", err=True)
        sys.exit(2)
