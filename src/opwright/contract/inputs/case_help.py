"""What the words of a case mean: ``opwright check --help-cases``, and the tables of ``docs/checking.md``."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["LAYOUTS", "PARTS", "SCALARS", "VALUES", "WORDS"]

PARTS: Mapping[str, str] = {
    "n=5": "the size of a dim; of a `*n` dim `2x3` (two axes) or `-` (none)",
    "dtype=float16": "the dtype, if the tensors share one; else `Float=float16 Int=int32`",
    "layout=sliced": "how the tensors lie in memory",
    "values=dyadic": "the values of tensors for which the operator states none",
    "scalars=zero": "the values of numbers for which the operator states none",
    "kind=tanh": "the value of an option: a bool, a `Literal`, or `one_of=`",
    "absent=bias": "one optional argument is left out",
    "optional=absent": "all optional arguments are left out",
    "lists=2": "the number of tensors in each list",
    "ranks=2": "the number of processes of an operator that communicates",
    "sample=0": "the arguments are a sample of the operator, by its number",
}
LAYOUTS: Mapping[str, str] = {
    "contiguous": "no gaps: rows one after another",
    "transposed": "the last two dims are swapped in memory",
    "sliced": "every second or third element of a larger tensor",
    "padded": "rows of a wider matrix",
    "permuted": "dims in another order: channels_last, or reversed",
    "offset": "one to eight elements past the start of the storage, so vector loads are misaligned",
    "expanded": "stride 0: one element for several places; never a mutated argument",
    "repeated": "the last dim has stride 0: one element for each row",
    "far": "rows whose offsets exceed 2³¹ elements",
    "far_inner": "inner steps whose offsets exceed 2³¹ elements",
    "broadcast": "dims that may broadcast (`#n`) have size 1; `broadcast:#n`: one of these dims alone",
    "sliced:x": "the argument `x` alone has the layout",
}
VALUES: Mapping[str, str] = {
    "large": "floats: magnitudes up to 10⁵, in float16 up to 100",
    "confident": "floats: logits of a model that is sure, about 30 times normal ones",
    "shifted": "floats: 100 ± 1, so differences from the mean are small",
    "inf": "floats: infinities among normal values",
    "nan": "floats: NaN among normal values",
    "tiny": "floats: -0.0 and denormal numbers among normal values",
    "dyadic": "floats: multiples of ⅛, so there are ties, and sums are exact",
    "low": "floats: about -30,000, less than the initial value of many masks and maxima",
    "small": "floats: rows of zeros, and of magnitudes from 10⁻⁸ to 1",
    "huge": "float16: about 700, whose square exceeds its largest number",
    "masked": "floats: -inf at the beginning of some rows, in whole rows, and at half of the places of vectors",
    "large_integers": "integers: up to 2²⁶; float32 does not have all of these",
    "wide": "integers: up to 2⁴⁰, of all magnitudes; the largest differ by one",
    "bounds": "stated ranges: a quarter of the values at each end",
    "runs": "bools and `one_of=`: whole rows and runs of one value",
    "peak_targets": "class indices beside scores: most point at the largest score of their row",
}
SCALARS: Mapping[str, str] = {
    "default": "the default of the argument",
    "zero": "0",
    "negative": "-1, or -1.375",
    "large": "6, or 7.5",
    "hundreds": "130, or 130.5",
    "lowest": "the lower end of the stated range",
    "highest": "the upper end of the stated range",
}
# The words that a part of a case takes, by the part's name.
WORDS: Mapping[str, Mapping[str, str]] = {"layout": LAYOUTS, "values": VALUES, "scalars": SCALARS}
