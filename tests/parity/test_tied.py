"""A head that shares the weight of the embedding, and a port that multiplies by that weight."""

import numpy as np
import pytest
import torch

from tests.nets import ported
from tests.ports import nnx_of
from tests.reports import compare

IDS = np.array([[1, 2, 4], [3, 4, 6]])


class Reference(torch.nn.Module):
    def __init__(self, head_first=False):
        super().__init__()
        torch.manual_seed(0)
        emb, head = torch.nn.Embedding(7, 6), torch.nn.Linear(6, 7, bias=False)
        head.weight = emb.weight
        for name in ("head", "emb") if head_first else ("emb", "head"):
            setattr(self, name, {"emb": emb, "head": head}[name])

    def forward(self, ids):
        return self.head(self.emb(ids))


def port(reference, head):
    return nnx_of(
        lambda self, ids: self.project(self.emb, self.emb(ids)),
        emb=ported(reference.emb),
        project=head,
    )


def attend(emb, h):
    return emb.attend(h)


def product(emb, h):
    return h @ emb.embedding[...].T


def negated(emb, h):
    return -emb.attend(h)


def compared(head, **options):
    reference = Reference(**options)
    return compare(reference, port(reference, head), (IDS,))


@pytest.mark.parametrize("head", [attend, product])
@pytest.mark.parametrize("head_first", [False, True])
def test_the_head_is_inlined(head, head_first):
    report = compared(head, head_first=head_first)
    assert report.verdict == "PASS", report.notes
    assert list(report.coverage.inlined) == ["head"]


def test_a_wrong_head_is_a_fault_of_the_module_around_it():
    report = compared(negated)
    assert report.verdict == "FAIL"
    assert [(fault.path, fault.cause) for fault in report.faults] == [("", "scale_or_offset")]


def test_a_head_with_a_weight_of_its_own_is_missing():
    reference = Reference()
    reference.head.weight = torch.nn.Parameter(reference.emb.weight + 1)
    report = compare(reference, port(reference, attend), (IDS,))
    assert report.verdict == "FAIL"
    assert report.coverage.unmatched == ("head",)
