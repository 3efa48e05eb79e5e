"""Numbers of the documents that nobody measured: constants of the code, and what `why` says."""

from functools import partial

import numpy as np

from jaxvae.devices import compile_cache
from jaxvae.layers import winograd
from parity.cache import folder
from parity.core.limits import TABLE
from parity.core.measurements import UNSTEADY
from parity.core.metrics import roundoff
from parity.diagnose.scene import EXPLAINED
from parity.gradients import measure as gradients
from parity.gradients import noise as gradient
from parity.gradients.measure import rows as backward_rows
from parity.gradients.spread_torch import CANCELS
from parity.judge.verdict import GRADES
from parity.measure.exclusive import SLACK
from parity.measure.free import channels as parts
from parity.measure.free import masks, noise
from parity.report import diff
from parity.traces.sample import KEPT
from tests.docs.figures import Definition
from tests.docs.sources import GIB, fewest_cores
from tests.hostile.case import LONGEST, MEMORY
from tools import train_checkpoint as trained

NORM, OTHER = TABLE
EXACT = np.ones(1, np.float32)
UNIT = 2 / (noise.score(EXACT, EXACT + 2.0**-23, EXACT.astype(np.float64)).r or 1)
"""Roundings that are an R of 1 where the reference is exact: 2^-23 is two of them."""
README = partial(Definition, "README.md")
HOW = partial(Definition, "docs/how-it-works.md")
CLAIMS = partial(Definition, "docs/claims.md")
SPEED = partial(Definition, "docs/performance.md")

DEFINITIONS = (
    README("They need Python 3.11 or 3.12", why="versions"),
    README(
        "{} cores and 8 GiB.", (fewest_cores(),), "the fewest that wrote a report; GiB: a figure"
    ),
    README(
        "below R {}, a relative error of {} roundings ({} in float32) or an MAE of {} counts",
        (
            diff.R_FLOOR,
            diff.RELATIVE_FLOOR,
            diff.RELATIVE_FLOOR * roundoff("float32"),
            diff.MAE_FLOOR,
        ),
    ),
    README("R near 1 is as accurate as PyTorch", why="what R is"),
    README(
        "above {} fails ({} for norms), above {} ({}) warns",
        (OTHER.fail, NORM.fail, OTHER.warn, NORM.warn),
    ),
    README("(an epsilon of 1e-5 for 1e-6)", why="PyTorch's default, and NNX's"),
    README("a wrong output of size 1e-5", why="an example"),
    README(
        "an error below {} % over the limit is none in entries that changes of {} roundings",
        (100 * gradient.KINK, gradients.SHAKEN),
    ),
    README("those of sqrt(n) / {} such sums", (noise.LONG,)),
    README("--fail-if-worse 2x", why="an example"),
    README("not finite, and {} entries;", (KEPT,)),
    *(README(f"| {name} | below {{}} |", (limit,)) for name, limit in GRADES[:-1]),
    README("R is under {} times what fails", (SLACK,)),
    README("at most {} GiB, unless JAX's own cache", (compile_cache.LARGEST / GIB,)),
    Definition("docs/cache.md", "at most {} GiB, or as many as", (folder.LARGEST,)),
    HOW(
        "An output of size 1e-5 can be wrong altogether and have an MAE below 1e-5;", why="example"
    ),
    HOW("(more than {} times all else", (masks.HUGE,)),
    HOW("off by more than {} % although R holds", (100 * parts.OFF,)),
    HOW("if its own R is above {} the row", (parts.FAR,)),
    HOW(
        "whose R of {} is an error of {} % of the output",
        (OTHER.fail, 400 * OTHER.fail * roundoff("bfloat16")),
    ),
    HOW("activations of size 1e4 can differ by 1e-3", why="an example"),
    HOW("R near 1 says: as accurate as PyTorch", why="what R is"),
    HOW("R <= 1 + rel_l2", why="a formula"),
    HOW("under {} times its limit (`SLACK`", (SLACK,)),
    HOW(
        "R above {} fails and above {} warns; for norms these are {} and {} (",
        (OTHER.fail, OTHER.warn, NORM.fail, NORM.warn),
    ),
    HOW("an epsilon of 1e-5 for 1e-6", why="PyTorch's default, and NNX's"),
    HOW("more than {} % away from its own float64 run", (100 * UNSTEADY,)),
    HOW("comes to more than {} times the terms that arrive", (CANCELS,)),
    HOW(
        "an error below {} % is over its limit, the float64 run is made {} times more, with "
        "inputs and parameters changed by {} roundings",
        (100 * gradient.KINK, gradients.SHAKES, gradients.SHAKEN),
    ),
    HOW("only if that is {} times nearer than its own error", (1 / backward_rows.NEARER,)),
    HOW(
        "a factor explains {} % of it, in {} entries or more",
        (100 * gradient.MOST, gradient.ENOUGH),
    ),
    HOW('and "explains 99.9 % of the error" is', why=f"an example; the limit is {EXPLAINED}"),
    CLAIMS("holds them to 20 %, but for those below 1e-4", why="`difference` in documents.py"),
    CLAIMS("the encoder's MAE of 0.3 to 0.6", why="a claim"),
    CLAIMS("80 % of that comes from group norms", why="a claim"),
    CLAIMS("MAE of 8.8e-4 is excellent, 0.3 and 0.6 need attention", why="a claim"),
    CLAIMS("the first convolution's MAE of 8.8e-4 | the", why="a claim"),
    CLAIMS("a group norm after it has 1.2e-2", why="a claim"),
    CLAIMS("16 frames of 768x1360 need 50 GB", why="a claim"),
    CLAIMS("JIT makes it 112 times as fast", why="a claim"),
    CLAIMS("channels last is 2 to 5 times (20 to 50 %) as fast", why="a claim"),
    CLAIMS("The 8.8e-4 of the documents", why="a claim"),
    CLAIMS("make 1.2e-2 of it", why="a claim"),
    CLAIMS("Nor are the 0.05 of a resnet", why="a claim"),
    CLAIMS("The documents say 16, 25 and 50 GB for", why="a claim"),
    SPEED('"50 GB of 32 for 16 frames', why="a claim"),
    SPEED("not 112 times, which is what JIT was said", why="a claim"),
    SPEED('"2 to 5 times" or "20 to 50 %" does not hold', why="a claim"),
    SPEED(
        "Above {} MiB of transformed input frames take turns",
        (winograd.BLOCK / 2**20,),
    ),
    Definition(
        "docs/porting-guide.md",
        "1e-5 is PyTorch's default, 1e-6 is NNX's",
        why="defaults; tests/test_pytorch_to_jax.py uses them",
    ),
    Definition("docs/porting-guide.md", "nothing accumulates to 0.1", why="a claim"),
    Definition("docs/reliability.md", "rises by at most {} MiB.", (MEMORY / 2**20,)),
    Definition("docs/reliability.md", "of at most {} characters,", (LONGEST,)),
    Definition(
        "docs/pytorch-to-jax.md",
        "the default epsilon is 1e-6",
        why="NNX's; the rows of this table are tests",
    ),
    Definition("docs/pytorch-to-jax.md", "1e-6 in NNX", why="NNX's; the row is a test"),
    Definition("docs/thresholds.md", "sqrt(n) / {} times {} roundings", (noise.LONG, UNIT)),
    Definition("docs/thresholds.md", "| positions | sqrt(n) / {} |", (noise.LONG,)),
    Definition(
        "docs/tutorial.md",
        "has an epsilon of 1e-6 by default, PyTorch's has 1e-5",
        why="the fault shown above it says so",
    ),
    Definition("docs/tutorial.md", "a correct norm would have an R near 1", why="what R is"),
    Definition("CONTRIBUTING.md", '"eps=1e-06 instead of 1e-05"', why="an example"),
    Definition(
        "tests/data/small-vae/README.md",
        "mean absolute error + {} x divergence from N(0, 1) of a drawn latent, Adam at 0.001",
        (trained.KL,),
    ),
)
