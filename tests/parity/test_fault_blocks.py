"""Faults on a terminal: a block for each mistake, in lines that end between words."""

import io
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from flax import nnx

from parity import compare
from parity.core.lines import Lines, SourceLine
from parity.core.verdicts import Fault
from parity.report.excerpts import side_by_side
from parity.report.faults import grouped_faults
from parity.report.table import by_kind
from parity.report.terminal import _Readable, show, show_verdict
from parity.report.tree import show_tree
from tests.nets import port_of, torch_of

X = (np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32),)


@pytest.fixture(scope="module")
def report():
    """Two blocks with the same mistake, and another one around them."""
    torch.manual_seed(0)
    blocks = [
        torch_of(lambda self, x: torch.tanh(self.a(x)), a=torch.nn.Linear(8, 8)) for _ in range(2)
    ]
    ports = [port_of(block, lambda self, x: nnx.gelu(self.a(x))) for block in blocks]
    reference = torch_of(lambda self, x: self.q(self.p(x)) * 1.5, p=blocks[0], q=blocks[1])
    port = port_of(reference, lambda self, x: self.q(self.p(x)), p=ports[0], q=ports[1])
    return compare(reference, port, X)


def printed(show, report, **how):
    file = io.StringIO()
    show(report, _Readable(file=file, color_system=None, force_jupyter=False, **how))
    return file.getvalue().splitlines()


def test_one_mistake_in_two_modules_is_one_block(report):
    assert [fault.path for fault in report.faults] == ["p", "q", ""]
    shown = printed(show_verdict, report)
    heads = [line for line in shown if line.startswith("fault")]
    assert heads == ["fault 1 of 2: activation", "fault 2 of 2: scale_or_offset"]
    block = shown[1 : shown.index(heads[1])]
    parts = {line[2:11].strip(): line[11:] for line in block[:5]}
    first = report.first_fault
    assert [*parts] == ["where", "alike", "what", "why", "do this"]
    assert parts["where"].startswith("p (Net), call 0 of __call__, ")
    assert parts["alike"] == "q"
    assert parts["what"] == first.magnitude.replace("`", "")
    assert "R " in parts["what"]
    assert parts["why"] == first.evidence
    assert parts["do this"] == first.hint
    assert "test_fault_blocks.py" in block[5]


def test_a_pipe_gets_a_line_for_each_part_and_a_terminal_lines_of_its_width(report):
    piped = printed(show, report, width=60)
    assert max(map(len, piped)) > 80
    narrow = printed(show, report, width=60, force_terminal=True)
    assert max(map(len, narrow)) <= 60
    said = " ".join(" ".join(narrow).split())
    for fault in report.faults[::2]:
        assert fault.hint in said
        assert fault.evidence in said


def test_groups_go_by_cause_kind_and_line():
    line = SourceLine("port.py", 3, "x", "mul")
    one = Fault("a", 0, "", "c", "Net", "2 instead of 3", cause="scale", lines=Lines((line,)))
    same = replace(one, path="b", evidence="4 instead of 5")
    other_line = replace(one, lines=Lines((replace(line, line=9),)))
    unknown = replace(one, lines=None)
    apart = (other_line, replace(one, cause="sign"), replace(one, kind="Other"), unknown)
    assert grouped_faults([one, *apart, same]) == [(one, same), *((x,) for x in apart)]
    anything = replace(unknown, cause="glue")  # that no cause is known is none in common
    assert len(grouped_faults([anything, replace(anything, path="b")])) == 2
    other_side = replace(one, lines=Lines((), (line,)))
    assert len(grouped_faults([one, other_side, replace(one, evidence="a bias")])) == 3


def test_sides_are_one_under_the_other_where_there_is_no_room():
    long = SourceLine("port.py", 3, "y = " + "x + " * 30, "add")
    short, ref = replace(long, text="y = x"), SourceLine("model.py", 7, "y = x", "add")
    head, _ = side_by_side(Lines((short,), (ref,)))
    assert head.startswith("port port.py:3: add  ")
    assert head.endswith("reference model.py:7: add")
    piped = side_by_side(Lines((long,), (ref,)))
    heads = ["port port.py:3: add", "reference model.py:7: add"]
    assert [row for row in piped if row.startswith(("port", "reference"))] == heads
    assert long.text.strip() in piped[1]
    narrow = side_by_side(Lines((long,), (ref,)), 40)
    assert max(map(len, narrow)) <= 40
    assert len(narrow) == len(piped)


def test_r_of_a_row_is_that_of_what_it_passes_on_too(report):
    """What the module returns has another R: tree, tables and history show the larger one."""
    row = next(row for row in report.rows if row.path == "" and row.verdict == "FAIL")
    passed = replace(row, exclusive=replace(row.exclusive, r=0.5), child_r=879.0, child_inputs=0.1)
    only = replace(report, rows=(passed,))
    assert passed.r == 879.0
    assert by_kind(only.rows)[0].largest == 879.0
    for width in (160, 60):
        shown = printed(lambda r, console: show_tree(r, console), only, width=width)
        assert "879" in "\n".join(shown)
        assert any("<root>" in line and "FAIL" in line for line in shown)


def test_why_a_report_without_faults_is_no_pass_is_printed_alone(report):
    doubtful = replace(report, faults=(), rows=(replace(report.rows[0], verdict="UNKNOWN"),))
    assert len(printed(show_verdict, doubtful)) == 1
    assert len(printed(partial(show_verdict, reasons=True), doubtful)) > 1
