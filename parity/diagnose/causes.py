"""The causes of a fault: a closed vocabulary, each with what to do about it."""

EXPLAINED = 0.1
"""A change is the cause if it leaves at most this part of the error."""

UNEXPLAINED = ("", "glue", "unknown")
"""Causes that say where the error is, and not what it is."""

HINTS = {
    "padding": "compare amount, side and mode of the padding with the reference's",
    "causal_side": "a causal convolution pads before the first frame, not after the last",
    "weights_layout": "check the order of the kernel's axes when the weights are converted",
    "weights_swapped": "check the names in the conversion of the weights",
    "weights_missing": "load this tensor: check its name in the conversion",
    "weights_precision": "load the weights in the precision that the reference has",
    "weights_value": "convert the tensor again: it was changed before that or after",
    "norm_buffers": "check the running statistics and how they were converted",
    "epsilon": "pass the reference's epsilon: the defaults of the two frameworks differ",
    "norm_axes": "check over which axes, and in which groups, the statistics are taken",
    "norm_variance": "use the two-pass variance: use_fast_variance=False in Flax",
    "attention_scale": "multiply the scores by what the reference does: mostly 1 / sqrt(head size)",
    "attention_mask": "compare what each position may see, and what the mask does to the scores",
    "attention_heads": "compare which numbers are heads, positions, queries, keys and values",
    "rotary": "compare positions, frequencies, and which channels are turned together",
    "activation": "use the reference's activation, with its variant",
    "resize": "check method, antialias and where pixel centres lie",
    "pooling": "check what the mean divides by, and which entries are pooled together",
    "reshape_order": "transpose before the reshape: the port's arrays are channel-last",
    "cache": "check what is passed from one chunk to the next",
    "clamp": "limit the values as the reference does",
    "not_called": "call the module where the reference calls it",
    "dropout": "call .eval() on the port, or make the random layer deterministic",
    "matmul_precision": "ask for precision='highest', or set jax_default_matmul_precision",
    "scale_or_offset": "look for a factor or an offset that is missing or applied twice",
    "dtype": "compute in the reference's type",
    "nonfinite": "look at the first call whose output is not finite",
    "shape": "compare sizes, strides and padding",
    "glue": "look at the module's local code in the segment named",
    "unknown": "look at the module's local code",
}
