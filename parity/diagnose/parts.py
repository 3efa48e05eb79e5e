"""Operations that are made of others, taken apart: a port may go wrong inside."""

import math
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F


def attended(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """What `F.scaled_dot_product_attention` returns, operation by operation."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(groups, -3) for x in (key, value))
    scores = torch.matmul(query, key.transpose(-2, -1))
    scores = scores * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = scores.softmax(-1)
    if attn_mask is not None:
        weights = weights.nan_to_num()  # nothing is seen from a row that is masked throughout
    return torch.matmul(torch.dropout(weights, dropout_p, dropout_p > 0), value)


_attention = F.multi_head_attention_forward

PARTS: Mapping[Any, Callable[..., Any]] = {
    F.scaled_dot_product_attention: attended,
    # the same code, but that it does not hand itself over as a whole
    _attention: FunctionType(
        _attention.__code__,
        {**_attention.__globals__, "has_torch_function": lambda _: False},
        _attention.__name__,
        _attention.__defaults__,
    ),
}
"""By operation, a function that does the same in operations that are seen."""
