"""What commands are pointed at: functions that are none, that fail, that return something else."""

from pathlib import Path

from tests.hostile.case import Case

MAKER = """
import numpy as np, torch
from flax import nnx
import parity

class Port(nnx.Module):
    def __call__(self, x):
        return x

def good():
    return torch.nn.Identity(), Port(), (np.ones((2, 3), np.float32) * [1, 2, 3],)

def one(x): ...
def none(): ...
def pair(): return torch.nn.Identity(), Port()
def four(): return (*good(), 1)
def listed(): return list(good())
def text(): return "good"
def swapped(): return tuple(reversed(good()[:2])) + good()[2:]
def unknown(): return dict(zip(("torch_module", "nnx_module", "torch_args"), good()), extra=1)
def lacking(): return {"torch_module": good()[0]}
def empty(): return {}
def numbers(): return {1: 2}
def bare(): return *good()[:2], good()[2][0]
def fails(): raise RuntimeError("the maker")
def leaves(): raise SystemExit(7)
def generates(): yield 1
async def later(): ...
number = 3
PAIR = parity.Pair
"""


def case(name: str, words: tuple[str, ...], *says: str, wanted: int = 2) -> Case:
    def write(home: Path) -> None:
        (home / "maker.py").write_text(MAKER)
        (home / "broken.py").write_text("def good(:\n")
        (home / "needy.py").write_text("import not_installed_anywhere\n")

    return Case("maker", name, write, words=("parity", *words, "--quiet", "--out", "out"),
                says=says, wanted=wanted)  # fmt: skip


COMPARE = [
    case(f"compare {name!r:.40}", ("compare", name), *says)
    for name, *says in (
        ("", "module:attribute"), ("maker", "module:attribute"), (":good", "module:attribute"),
        ("maker:", "module:attribute"), ("maker:good:more", "module:attribute"),
        ("maker.py:good", "cannot be loaded"), ("./maker:good", "module:attribute"),
        ("/tmp/maker:good", "module:attribute"), ("maker:__import__('os')", "module:attribute"),
        ("gone:good", "cannot be loaded"), ("maker:gone", "cannot be loaded"),
        ("maker.sub:good", "cannot be loaded"), ("a\nb:good", "module:attribute"),
        ("n" * 300 + ":good", "cannot be loaded"), ("maker:number", "is a int"),
        ("maker:one", "missing a required argument"), ("maker:none", "returns a NoneType"),
        ("maker:pair", "returns a tuple of 2"), ("maker:four", "returns a tuple of 4"),
        ("maker:listed", "returns a list"), ("maker:text", "returns a str"),
        ("maker:swapped", "in this order"), ("maker:unknown", "argument 'extra'"),
        ("maker:lacking", "missing a required argument: 'nnx_module'"),
        ("maker:empty", "missing a required argument: 'torch_module'"),
        ("maker:numbers", "keywords must be strings"), ("maker:bare", "tuple of arguments"),
        ("maker:generates", "returns a generator"), ("m" * 5000, "module:attribute"),
    )
]  # fmt: skip

OPTIONS = [
    case(" ".join(("compare", *words)), ("compare", "maker:good", *words), *says)
    for words, *says in (
        (("--depth", "-1"), "--depth"), (("--depth", "x"), "--depth"), (("--seed", "-1"), "--seed"),
        (("--seed", str(2**70)), "--seed"), (("--device", "quantum"), "--device"),
        (("--device", "cpu:99"), "--device"), (("--device", ":"), "--device"),
        (("--device", "cpu:x"), "--device"),
        (("--emulate", "fp8"), "--emulate"), (("--only", "gone*"), "gone*"),
        (("--unknown",), "--unknown"), (("more",), "more"),
    )
] + [
    case("run a class for a pair", ("run", "maker:PAIR"), "expected a parity.Pair"),
    case("run what is no pair", ("run", "gone"), "no pair 'gone'"),
    Case("maker", "record what is no pair", words=("parity", "record", "os:path", "--out", "out"),
         says=("expected a parity.Pair",)),
    case("run with an empty name", ("run", ""), "no pair ''"),
    case("run with a configuration that is not there", ("run", "cogvideox", "--config", "gone",
         "--frames", "1", "--size", "8x8"), "no configuration 'gone'"),
    case("run with a folder for a configuration", ("run", "cogvideox", "--config", ".",
         "--frames", "1", "--size", "8x8"), "no configuration '.'"),
    case("run with weights that are not there", ("run", "cogvideox", "--weights", "gone",
         "--frames", "1", "--size", "8x8"), "gone"),
    case("run with weights in a folder above", ("run", "cogvideox", "--weights", "../../gone",
         "--frames", "1", "--size", "8x8"), "../../gone"),
    case("run with weights and a configuration", ("run", "cogvideox", "--weights", "x",
         "--config", "small"),
         "leave --config out"),
    case("run of a clip that is too small", ("run", "cogvideox", "--config", "small",
         "--frames", "1", "--size", "1x1"), "at least"),
    Case("maker", "a file for --out", lambda home: (home / "file").touch(),
         words=("parity", "run", "cogvideox", "--out", "file/x"), says=("cannot be made", "--out")),
    Case("maker", "a device for --out", words=("parity", "run", "cogvideox", "--out", "/dev/null"),
         says=("--out",)),
    Case("maker", "a name too long for --out",
         words=("parity", "run", "cogvideox", "--out", "x" * 300), says=("--out",)),
    Case("maker", "no command", words=("parity", "frobnicate"), says=("No such command",)),
    Case("maker", "a command with a line end", words=("parity", "a\nb"), says=("No such command",)),
]  # fmt: skip

CASES = [*COMPARE, *OPTIONS]
