"""
Judge a kernel that a model wrote
=================================

After this tutorial you can decide whether to trust a kernel that a program wrote. You judge two candidates for a task
of KernelBench: one of them is right for the task's inputs only.

`KernelBench <https://scalingintelligence.stanford.edu/blogs/kernelbench/>`_ accepts a candidate if its results are
close to the reference's for a few random inputs of one shape. This page goes further in three points:

- opwright infers which other sizes the reference accepts, and tries these, too.
- Each element has its own tolerance, which follows from the rounding of the reference's steps.
- A finding has the smallest input that shows it, and for a wrong access the line of the kernel.

It needs no GPU: Triton kernels run in a simulator. In a clone of the repository, ``pip install -e '.[triton]'``. Its
files are in a temporary folder. Two functions stand for your editor and your terminal.
"""

# sphinx_gallery_thumbnail_path = 'pictures/check.svg'

import subprocess
import tempfile
from pathlib import Path

temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)


def write(name, text):
    """Write a file of the folder."""
    (folder / name).write_text(text)


def run(command, code=0):
    """Run a command in the folder, and print its output. Its exit code must be this one."""
    print(f"$ {command}")
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == code, done.stdout + done.stderr


# %%
# The task
# --------
# A task of KernelBench is a file with a module ``Model`` and the functions that make its inputs.

write(
    "softmax.py",
    """
import torch
import torch.nn as nn

batch_size = 16
dim = 1024


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.randn(batch_size, dim)]


def get_init_inputs():
    return []
""",
)

# %%
# A candidate is a file with a module ``ModelNew``. A model would write something like this. It looks right: one program
# computes one row.

candidate = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    powers = tl.exp(values)
    tl.store(out + row * columns + at, powers / tl.sum(powers, 0), mask=at < columns)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=1024)
        return out
"""
write("first.py", candidate)

# %%
# Judge it
# --------
# Pass the task and the candidate.

run("opwright judge softmax.py first.py --device cpu-sim", code=1)

# %%
# The column *kernelbench* says what KernelBench's own rule gives: the candidate is correct for the task's inputs. It
# fails all the same: ``exp`` overflows for large values. ``--verbose`` shows a second fault: rows of more than 1024
# columns are wrong, because the block has 1024.
#
# A right candidate
# -----------------
# The block follows the size, and the largest value of the row is subtracted.

second = candidate.replace("BLOCK=1024", "BLOCK=triton.next_power_of_2(x.shape[1])")
write("second.py", second.replace("tl.exp(values)", "tl.exp(values - tl.max(values, 0))"))
run("opwright judge softmax.py second.py --device cpu-sim")

# %%
# Keep the contract
# -----------------
# ``--write-contract`` writes what was inferred as a file with an operator. You can edit it, add kernels of your own,
# and check it as in the other tutorials.

run("opwright judge softmax.py second.py --device cpu-sim --write-contract contracts")
contract = next((folder / "contracts").rglob("*.py")).read_text()
print(contract[contract.index("@ow.op") : contract.index("@softmax.samples")])

temporary.cleanup()

# %%
# Next
# ----
# - :doc:`/guides/judge`: the other formats, times, result files, and the cheats that have names
# - :doc:`/judged`: what was found in published kernels
# - :doc:`/guides/verdicts`: what a verdict does not tell
