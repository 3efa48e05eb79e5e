"""Faults on a terminal: a block for each mistake, in lines that end between words."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from flax import nnx

from parity import compare
from parity.core.lines import Lines, SourceLine
from parity.core.verdicts import Fault
from parity.report.assertion import assess
from parity.report.excerpts import side_by_side
from parity.report.faults import grouped_faults
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
    assert len(grouped_faults([unknown, replace(unknown, evidence="4 instead of 5")])) == 1
    assert len(grouped_faults([unknown, replace(unknown, evidence="without a mask")])) == 2


def test_sides_are_one_under_the_other_where_there_is_no_room():
    lines = Lines(
        (SourceLine("port.py", 3, "y = " + "x + " * 30, "add"),),
        (SourceLine("model.py", 7, "y = x", "add"),),
    )
    wide, narrow = side_by_side(lines, 120), side_by_side(lines, 40)
    assert wide[0].split("  ")[0] == "port port.py:3: add"
    assert "reference model.py:7" in wide[0]
    assert [row for row in narrow if row.startswith(("port", "reference"))] == [
        "port port.py:3: add",
        "reference model.py:7: add",
    ]
    assert max(map(len, wide)) <= 120
    assert max(map(len, narrow)) <= 40


def test_r_of_a_fault_is_the_same_in_every_output(report):
    """The mistake is in what is passed to a call: what the module returns has another R."""
    row = next(row for row in report.rows if row.path == "" and row.verdict == "FAIL")
    worst = max(row.r for row in report.rows)
    passed = replace(row, exclusive=replace(row.exclusive, r=0.5), child_r=879.0, child_inputs=0.1)
    assert passed.r == 879.0
    only = replace(report, rows=(passed,))
    assert "879" in "\n".join(printed(lambda r, console: show_tree(r, console), only, width=160))
    assert worst > 1e3
    assert assess(report).verdict == "FAIL"
