"""Every measurement of the documents: `tests/test_figures.py` holds them, and finds new ones."""

import math
from functools import partial

from safetensors import safe_open

from parity.core.limits import TABLE
from tests.docs.documents import ROOT
from tests.docs.figures import Figure, Lines, Table
from tests.docs.sources import PARAMETERS, cells, numbers, printed, report
from tests.hostile import corpus
from tests.hostile.case import Outcome
from tools import reliability as tool

CLAIMS, SUMMARY = "docs/claims.md", "reports/summary.md"
CARD, THRESHOLDS = "tests/data/small-vae/README.md", "docs/thresholds.md"
FULL = "tests/test_full_size.py::test_the_table_of_the_readme"
TRACE = "tests/golden/test_statistics.py::test_sizes_and_r_are_those_of_the_readme"
POOLING = "tests/gate/test_gate.py::test_the_readme_shows_what_is_printed"
EMULATED = (
    "tests/parity/test_emulate.py::test_bfloat16_products_make_an_mae_of_1e_3_in_a_convolution"
)
PLUGIN = "tests/parity/test_pytest_plugin.py::test_a_failure_names_the_module_and_the_cause"
EXAMPLE = "tests/parity/test_cli_compare.py::test_the_walk_through"
LIMITS = "tests/parity/test_limits.py::"
QUICK, BETWEEN = "test_some_correct_modules_are_measured_again", "1.5 * largest + 0.05"
TRAINED = "tests/test_trained.py::test_psnr_is_that_of_the_card"
WEIGHTS = "diffusion_pytorch_model.safetensors"
TABLE_OF_THE_LADDER = """
    conv 738 1e-06 1.82e-07 7.45e-07 4.81e-07 1.74 perfect PASS
    groupnorm 210 1e-05 6.85e-08 1.44e-06 1.02e-07 0.0982 perfect PASS
    resnet 414 0.0001 2.28e-07 1.11e-06 6.39e-07 1.05 perfect PASS
    block 284 0.001 4.70e-07 1.11e-06 1.25e-06 1.71 perfect PASS
    encoder 280 0.01 7.45e-07 7.45e-07 1.79e-06 1.49 perfect PASS
    vae 6 0.1 4.94e-07 4.94e-07 1.65e-06 0.878 perfect PASS"""

of_readme = partial(Figure, "README.md")


def small_parameters() -> list[float]:
    """Millions of parameters of the small configuration, and of the full one."""
    return [report("baseline/report.json")["facts"]["parameters"] / 1e6, PARAMETERS / 1e6]


def parameters() -> int:
    """Parameters of the checkpoint."""
    with safe_open(ROOT / CARD.replace("README.md", WEIGHTS), "np") as file:
        names = list(file.keys())
        return sum(math.prod(file.get_slice(name).get_shape()) for name in names)


def gelu() -> list[float]:
    """The largest difference that approximating GELU makes."""
    return [printed(CLAIMS, "gelu, largest difference:")]


def extremes() -> list[float]:
    """The largest R of a correct module that is no norm, and of a norm; the smallest of a fault."""
    found: dict[str, float] = {}
    for _, family, _, largest in cells(THRESHOLDS, "## Correct modules"):
        found[family] = max(found.get(family, 0.0), float(largest))
    faults = [float(row[3]) for row in cells(THRESHOLDS, "## Fault zoo")]
    return [found["other"], found["norm"], min(faults)]


def limits() -> list[str]:
    """The table of the limits on R; what justifies them is checked against the tables below it."""
    return [line.as_markdown() for line in TABLE]


def reliability() -> list[str]:
    """The table and the names of the cases, each ending as it must: `tests/hostile` runs them."""
    found = [Outcome(case, case.wanted, "", ()) for case in corpus.CASES]
    return [*tool.table(found), *tool.names(found)]


FIGURES = (
    of_readme(TABLE_OF_THE_LADDER, "make report", test=FULL, bound="/ 3 < ours < 3 *"),
    of_readme(
        "- modules: 514 matched + 18 declared of 532 - calls: 1149 of 1149 compared "
        "- parameters: 436 of 436 tensors",
        "make report",
        test=FULL,
        bound="assert counts <= set(",
    ),
    of_readme(
        "- weights: 436 of 436 tensors equal",
        "make report",
        test=FULL,
        bound="assert counts <= set(",
    ),
    of_readme(
        "cores and 8 GiB.",
        "make report",
        test="tests/test_full_size.py::test_memory",
        bound='facts["peak_memory_gib"] <= 8',
    ),
    of_readme(
        "This run took {} min {} s and {} GiB on 2 cores with AVX-512 (measured once,",
        "make report",
        same=lambda: numbers(SUMMARY, "rows, # min # s, # GiB"),
        once="at commit d365403",
    ),
    of_readme(
        "(encode {}, decode {}, measured once,",
        "make report",
        same=lambda: numbers(SUMMARY, "products: encode #, decode #,"),
        once="at commit d7ac0ed",
    ),
    of_readme(
        "# {} M parameters instead of {} M", "parity run cogvideox --config small", small_parameters
    ),
    of_readme(
        "off by 6.8e-01 (R 2.85e+06 > 10 in",
        "parity run mutants:POOLING --config small",
        test=POOLING,
        bound="assert not difference(shown",
    ),
    of_readme(
        "explains 100 % of the error, everywhere",
        "parity run mutants:POOLING --config small",
        test=POOLING,
        bound="assert not difference(shown",
    ),
    of_readme(
        "that is 38 MB instead of 740",
        "parity record cogvideox --config small",
        test=TRACE,
        bound="rel=0.05",
    ),
    of_readme(
        "the weights are {} GB",
        "parity record cogvideox --config small",
        lambda: [4 * PARAMETERS / 1e9],
    ),
    of_readme("recorded whole, 3.0 GB", "parity record cogvideox", once="commit 197cd6a"),
    of_readme(
        "it finds R at most 1.8 in the right port",
        "parity check traces/small",
        test=TRACE,
        bound="< 1.5 * largest",
    ),
    of_readme(
        "and 1.5e6 where the mistaken pooling begins",
        "parity check traces/small",
        test="tests/golden/test_statistics.py::test_the_earlier_ports_pooling_is_found",
        bound="shown / 2 <",
    ),
    of_readme(
        "FAIL R 1.70e+06 test_port.py::test_the_port",
        "pytest -m parity",
        test=PLUGIN,
        bound="pytest.approx(shown, rel=0.2)",
    ),
    of_readme(
        "without one it costs less than a microsecond",
        "parity.tap",
        test="tests/parity/test_taps.py::test_a_tap_costs_less_than_a_microsecond",
        bound="< 1e-6",
    ),
    Figure(
        "examples/README.md",
        "- calls: 16 of 16 compared - parameters: 22 of 22 tensors ... "
        "- weights: 22 of 22 tensors equal",
        "parity compare examples.attention:make_pair",
        test=EXAMPLE,
        bound="difference(documents[1]",
    ),
    Figure(
        "examples/README.md",
        "explains 100 % of the error, everywhere; what it hands on is off "
        "by 7.9e-01 (R 3.31e+06 > 10 in",
        "parity compare examples.attention:make_pair",
        test=EXAMPLE,
        bound="difference(documents[1]",
    ),
    Figure(
        "examples/README.md",
        "output: max 3.907e-01, MAE 9.955e-02, rel_l2 5.740e-01; the worst "
        "at (1, 1, 8): -0.746035 instead of -0.355294",
        "python repro/repro.py",
        test=EXAMPLE,
        bound="difference(documents[3]",
    ),
    Figure(
        "docs/tutorial.md",
        "An MAE of {} would",
        "parity compare pair:make_pair",
        lambda: [printed("docs/tutorial.md", "off by MAE")],
    ),
    Figure(
        "docs/tutorial.md",
        "it has {}, and what it does",
        "parity compare pair:make_pair",
        lambda: [printed("docs/tutorial.md", "(R")],
    ),
    Figure(
        "docs/jaxvae.md",
        "off by 1e-3 in each convolution",
        "python -m tools.claims coarse_products",
        test=EMULATED,
        bound="0.9e-3 <",
    ),
    Figure(
        "docs/porting-guide.md",
        "1e-3 in every product",
        "parity compare --emulate tpu-default",
        test=EMULATED,
        bound="0.9e-3 <",
    ),
    Figure(
        "docs/porting-guide.md",
        "at most {} off, by the value of x alone",
        "python -m tools.claims coarse_products counterparts",
        gelu,
    ),
    Figure(
        "docs/how-it-works.md",
        "correct modules reach {}, correct norms {}, and mistakes start at {}.",
        "python -m tools.measure_r",
        same=extremes,
        of=THRESHOLDS,
        test=LIMITS + "test_reasons_are_those_of_the_tables",
        bound="max(correct.values())) == 12",
    ),
    Figure(
        "docs/how-it-works.md",
        "where 2e-6 is a relative error of 2e-7",
        "pytest -m slow tests/test_trained.py",
        test="tests/test_trained.py::test_convolutions_are_off_by_more_than_a_rungs_limit",
        bound="< 4e-6 assert 1e-7 < worst.incl_rel_l2 < 4e-7",
    ),
    Figure(
        CARD,
        "with {} parameters",
        "python -m tools.train_checkpoint",
        lambda: [parameters()],
    ),
    Figure(
        CARD,
        "float32, 69 minutes on 1 cores.",
        "python -m tools.train_checkpoint",
        once="Versions: torch 2.13.0+cpu, diffusers 0.42.1",
    ),
    Figure(
        THRESHOLDS,
        "5.7 times at 9216 positions",
        "python -m tools.measure_r",
        once="commit e3a6bb9",
    ),
    Figure(
        "docs/reliability.md",
        "50 interruptions,",
        "make test-slow",
        test="tests/hostile/test_interrupted.py::test_ctrl_c_at_50_moments",
        bound="check_interruptions(50,",
    ),
    Figure(
        "docs/reliability.md",
        "500 comparisons in one process",
        "make test-slow",
        test="tests/hostile/test_at_once.py::test_500_comparisons_need_no_more_memory",
        bound="range(500)",
    ),
)

LINES = (
    Lines("docs/thresholds.md", "python -m tools.measure_r", limits),
    Lines("docs/reliability.md", "python -m tools.reliability", reliability),
)

TABLES = (
    Table(
        CARD,
        "which it has not seen",
        "python -m tools.train_checkpoint",
        TRAINED,
        'assert f"{found:.1f}" == shown',
        quick=TRAINED,
    ),
    *(
        Table(
            THRESHOLDS,
            f"## {below}",
            "python -m tools.measure_r",
            LIMITS + test,
            bound,
            LIMITS + quick,
        )
        for below, test, bound, quick in (
            ("Correct modules", "test_correct_modules_are_measured_again", BETWEEN, QUICK),
            ("Gradients of correct", "test_correct_modules_are_measured_again", BETWEEN, QUICK),
            (
                "Sums over many positions",
                "test_sums_are_measured_again",
                "1.34 * float(",
                "test_short_sums_are_measured_again",
            ),
            (
                "Fault zoo",
                "test_the_fault_zoo_is_measured_again",
                "10 * float(row[3])",
                "test_some_faults_are_measured_again",
            ),
        )
    ),
)
