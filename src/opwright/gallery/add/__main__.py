"""``python -m opwright.gallery.add``: the table of an elementwise benchmark, S × K by kernel.

For each size: the first two values of the output (the same for every correct kernel), the mean time, and
``torch.add`` beside it. ``--iters N`` takes fewer samples, ``--size N`` (repeatable) fewer sizes.
"""

import argparse
import statistics

import opwright as ow
from opwright.gallery.add import add

parser = argparse.ArgumentParser(prog="python -m opwright.gallery.add", description=__doc__.splitlines()[0])
parser.add_argument("--size", type=int, action="append", help="of S and K (default: 1024, 2048, 4096)")
parser.add_argument("--iters", type=int, help="samples of each (default: until the spread is small)")
parser.add_argument("--device", choices=["cpu", "cuda"], help="default: the GPU, if there is one")
parser.add_argument("--dtype", action="append", help="such as float16 (repeatable; default: float32)")
options = parser.parse_args()

sizes = options.size or [1024, 2048, 4096]
report = ow.bench(
    add,
    sizes={"S": sizes, "K": sizes},
    dtypes=options.dtype or ["float32"],
    directions=["forward"],
    device=options.device,
    baselines=["eager"],
    iters=options.iters,
)
before = None
for m in report:
    if m.cache != "warm":
        continue
    if m.case != before:
        s, k = m.case["n"]
        print(f"{'-' * 72}\nS={s}, K={k}, {m.case['dtype']}")
        before = m.case
    tag = "torch.add" if m.kernel == "eager" else m.kernel
    values = ", ".join(f"{v: .8f}" for v in m.first_values)
    print(f"{tag:>20}: [{values}], mean {statistics.fmean(m.raw) / 1e3:.6f} ms")
for error in report.errors:
    print(f"error: {error}")
raise SystemExit(bool(report.errors))
