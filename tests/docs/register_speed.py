"""The measurements of docs/claims.md and docs/performance.md: see `register.py`."""

from collections.abc import Callable
from functools import partial

from tests.docs.figures import Figure, Lines, Table
from tests.docs.sources import (
    channels_last,
    compiling,
    cpu_rows,
    formulation,
    formulations,
    gains,
    numbers,
    off_the_formula,
    printed,
    report,
    sharding,
    tpu,
    tpu_program,
)

CLAIMS, SPEED, SUMMARY = "docs/claims.md", "docs/performance.md", "reports/summary.md"

POOLING = "tests/gate/test_gate.py::test_the_readme_shows_what_is_printed"

CONVOLUTIONS = "tests/bench/test_convolutions.py::"
TIMES, COMPILED = "at commits 8be1f63 and de3e8ba", "commit de3e8ba"
"""When the times of docs/performance.md were measured, of convolutions and of compiling."""

of_claims = partial(Figure, CLAIMS)
of_speed = partial(Figure, SPEED)
COMPILE, CONVOLVE = "python -m tools.measure_compiling", "python -m tools.measure_convolutions"


def again_of_speed(text: str, command: str, same: Callable[[], list[float]], once: str) -> Figure:
    """What docs/claims.md repeats of docs/performance.md, which says when it was measured."""
    return of_claims(text, command, same=same, once=once, of=SPEED)


COMPILING = (
    "| default model, 9 frames of 64x64 | layer by layer | 14.9 | 5.89 | 2.4 |",
    "| default model, 9 frames of 64x64 | steps | 15.7 | 4.84 | 3.0 |",
    "| default model, 9 frames of 64x64 | one program | 13.6 | 4.18 | 2.9 |",
    "| small model, 9 frames, 4 tiles | layer by layer | 14.3 | 0.17 | 1.1 |",
    "| small model, 9 frames, 4 tiles | steps | 11.2 | 0.10 | 0.9 |",
    "| small model, 9 frames, 4 tiles | one program | 10.0 | 0.10 | 1.2 |",
    "| small model, 9 frames, 36 tiles | layer by layer | 16.0 | 0.86 | 1.1 |",
    "| small model, 9 frames, 36 tiles | steps | 10.8 | 0.75 | 0.9 |",
    "| small model, 9 frames, 36 tiles | one program | 9.6 | 0.52 | 1.3 |",
)


def untiled() -> list[float]:
    """Seconds of the whole call as one program, with 4 tiles and with 36."""
    found = compiling()
    return [found[f"small model, 9 frames, {n} tiles", "one program"][0] for n in (4, 36)]


def winograd_by_sum() -> list[float]:
    """How many times the errors of a sum Winograd's are, at most, where it is used."""
    ratios = []
    for shape in {shape for shape, *_ in formulations()} - {"(3, 8, 8, 512)"}:
        pair = formulation(shape, "Winograd"), formulation(shape, "sum of 2-D")
        ratios += [ours / theirs for ours, theirs in zip(*(x[2::3] for x in pair), strict=True)]
    return [max(ratios)]


def sum_by_pytorch() -> list[float]:
    """The same of the sum and PyTorch with AVX2, where the 3-D convolution is kept."""
    ours, theirs = (formulation("(3, 8, 8, 512)", name)[2] for name in ("sum of 2-D", "PyTorch"))
    return [ours / theirs]


FIGURES = (
    # docs/claims.md: the figures of its `console` blocks are held by tests/test_claims.py
    of_claims(
        "it is a mistake: corrected, {}",
        "python -m tools.claims",
        lambda: [printed(CLAIMS, "mistaken: 0.411 MAE:")],
    ),
    of_claims(
        "by default give {}",
        "python -m tools.claims",
        lambda: [printed(CLAIMS, "conv MAE, TPU default:")],
    ),
    of_claims(
        "these products give {}: not explained",
        "python -m tools.claims",
        lambda: [printed(CLAIMS, "norm after it MAE, TPU default:")],
    ),
    of_claims(
        "here {}.",
        "python -m tools.claims coarse_products",
        lambda: [
            printed(CLAIMS, "conv MAE, TPU default:")
            / printed(CLAIMS, "norm after it MAE, TPU default:")
        ],
    ),
    of_claims(
        "would have to be {}, or",
        "python -m tools.claims coarse_products",
        lambda: [printed(CLAIMS, "conv MAE, TPU default:") / 1.2e-2],
    ),
    of_claims(
        "chunks after the first can, to 2e-6",
        "tests/jaxvae/test_sharding.py",
        test="tests/jaxvae/test_sharding.py::test_as_on_one_device",
        bound="LIMIT = 2e-6",
    ),
    of_claims(
        "{} times for a small model on a CPU,",
        "python -m tools.claims",
        same=lambda: numbers(CLAIMS, "compiled: # times as fast in one run"),
        test="tests/test_claims.py::test_compiled_code_is_faster",
        bound="shown / 4 < ratio < 4 * shown",
    ),
    again_of_speed("{} times over compiled layers", COMPILE, lambda: gains()[:1], COMPILED),
    again_of_speed("| {} s for 36 tiles |", COMPILE, lambda: untiled()[1:], COMPILED),
    again_of_speed("on a CPU at most {} %, mostly", CONVOLVE, channels_last, TIMES),
    of_claims(
        "the encoder's MAE is {} with AVX-512",
        "make report",
        same=lambda: numbers(SUMMARY, r"\| encode, mean \| # \|"),
        of=SUMMARY,
        once="at d365403",
    ),
    of_claims(
        "and {} with AVX2",
        "make report",
        same=lambda: numbers(SUMMARY, "products: encode #,"),
        of=SUMMARY,
        once="at d7ac0ed",
    ),
    of_claims(
        "explains 100 % of the error, everywhere",
        "parity run mutants:POOLING --config small",
        test=POOLING,
        bound="assert not difference(again",
    ),
    of_claims(
        "encoding 4 frames takes {} GiB", "make tpu-aot", lambda: tpu("encode | 4 | 768x1360")[:1]
    ),
    of_claims("needs {} GiB of {}, and", "make tpu-aot", lambda: tpu("decode | 8 | 768x1360")),
    of_claims(
        "14 times as fast in one run",
        "python -m tools.claims compiled",
        test="tests/test_claims.py::test_compiled_code_is_faster",
        bound="shown / 4 < ratio < 4 * shown",
    ),
    again_of_speed(
        "steps are {} times as fast as layers that are compiled one by one, and the whole as "
        "one program {} times",
        COMPILE,
        gains,
        COMPILED,
    ),
    again_of_speed("runs in {} s;", COMPILE, lambda: untiled()[1:], COMPILED),
    again_of_speed(
        "it took {} s (the same page).",
        COMPILE,
        lambda: numbers(SPEED, "36 tiles # s and"),
        "commit ef9697b",
    ),
    again_of_speed(
        "takes {} ms with channels last and {} ms with channels first",
        CONVOLVE,
        lambda: [
            formulation("(9, 64, 64, 128)", name)[-3] for name in ("3-D", "3-D, channels first")
        ],
        TIMES,
    ),
    # tests/bench/test_convolutions.py compares these with the table
    of_claims("within 5 % at other sizes", CONVOLVE, once=TIMES, of=SPEED),
    again_of_speed("where channels last are {} % faster", CONVOLVE, channels_last, TIMES),
    # docs/performance.md
    of_speed(
        "at most {} times those of the sum",
        CONVOLVE,
        same=winograd_by_sum,
        test=CONVOLUTIONS + "test_errors_are_those_of_the_table",
        bound="1.34 * max(shown)",
    ),
    of_speed(
        "its errors are {} times PyTorch's",
        CONVOLVE,
        same=sum_by_pytorch,
        test=CONVOLUTIONS + "test_errors_are_those_of_the_table",
        bound="1.34 * max(shown)",
    ),
    of_speed("Channels last are at most {} % faster", CONVOLVE, same=channels_last, once=TIMES),
    *(of_speed(row, COMPILE, once=COMPILED) for row in COMPILING),
    of_speed(
        "4 tiles took 20.8 s and 1.1 GiB, with 36 tiles 70.3 s and 2.3 GiB",
        COMPILE,
        once="commit ef9697b",
    ),
    of_speed("mapped over, {} and {} s", COMPILE, same=untiled, once=COMPILED),
    of_speed(
        "{} times as fast as layers that are compiled one by one, and the whole call as one "
        "program {} times",
        COMPILE,
        same=gains,
        once=COMPILED,
    ),
    of_speed(
        "to 2e-6 of the largest value",
        "tests/jaxvae/test_sharding.py",
        test="tests/jaxvae/test_sharding.py::test_as_on_one_device",
        bound="LIMIT = 2e-6",
    ),
    of_speed(
        "those of the formula to {} %",
        "python -m tools.measure_sharding",
        lambda: off_the_formula("flops")[-1:],
    ),
    of_speed(
        "({} to {} % more)",
        "python -m tools.measure_sharding",
        lambda: [off_the_formula("permuted", "encode")[i] for i in (0, -1)],
    ),
    of_speed(
        "decoded {} times as fast by 8 chips ({} % of 8), {} times by 32 ({} %) and {} times by "
        "256 ({} %),",
        "python -m tools.measure_sharding",
        lambda: [one for chips in (8, 32, 256) for one in sharding(chips)],
    ),
    of_speed(
        "assumes {} microsecond a message",
        "python -m tools.measure_sharding",
        lambda: [report("bench/sharding.json")["latency_us"]],
    ),
    of_speed(
        "768x1360 takes {} GiB, {} of them for what",
        "make tpu-aot",
        lambda: [
            tpu("encode | 4 | 768x1360")[0],
            tpu_program("encode first 4 of 768x1360", "output"),
        ],
    ),
    of_speed(
        "does not fit one chip ({} of {} GiB)",
        "make tpu-aot",
        lambda: tpu("decode | 16 | 768x1360"),
    ),
    of_speed(
        "decode in {} GiB, not in 16: the first chunk of three latent frames has {} GiB of "
        "temporary arrays, the others {}.",
        "make tpu-aot",
        lambda: [
            tpu("decode | 49 | 480x720")[0],
            tpu_program("decode first 3 of 480x720", "temporary"),
            tpu_program("decode next 2 of 480x720", "temporary"),
        ],
    ),
)

LINES = (Lines(SPEED, "make bench", lambda: [*cpu_rows(), *cpu_rows("avx2/")]),)

TABLES = (
    Table(
        SPEED,
        "(`--large` for 240x360",
        "python -m tools.measure_convolutions",
        CONVOLUTIONS + "test_errors_are_those_of_the_table",
        "1.34 * max(shown)",
        quick=CONVOLUTIONS + "test_errors_of_the_smallest_shape",
        once=TIMES,
    ),
)
