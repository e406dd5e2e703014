"""Public Triton kernels in the simulator: a table of what agrees with a reference in torch, and of findings.

    python -m tests.corpus.triton.table CHECKOUT... [-o RECORD.json] [--only NAME...] [--gpu] [--left-out] [--jobs N]

CHECKOUT: a clone of Liger-Kernel, attorch, flash-linear-attention (which needs einops), triton (for its tutorials),
tritonbench or unsloth (which needs transformers), known by its folder's name.
Each case runs in a process of its own, so that a kernel that breaks a GPU's context ends no other case. A finding of
the simulator is printed whole, to be read by hand. With ``--gpu``, a GPU makes each launch from the same bits as well:
the table says after how many all bits are the same, how far the others are apart, and what the GPU raised. With
``--left-out``, what masks leave out of loads without ``other=`` is NaN or -1, so that a case that needs zeros differs.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import importlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

# The modules of cases, by the name of a library's repository; and where the library is in it.
LIBRARIES = {
    "Liger-Kernel": ("liger", "src"),
    "attorch": ("attorch", "."),
    "flash-linear-attention": ("fla", "."),
    "triton": ("tutorials", "python/tutorials"),
    "tritonbench": ("tritonbench", "."),
    "unsloth": ("unsloth", "."),
}
HERE = "tests.corpus.triton"


def run_here(name: str, seed: int, capability: tuple[int, int] | None, left_out_byte: int = 0) -> dict[str, Any]:
    """One case, in this process; with a GPU's compute capability, there as well."""
    import torch

    import kernelsim
    from kernelsim.errors import NotSimulatedError
    from kernelsim.triton_sim.simulate import with_left_out
    from tests.corpus.triton.comparison import CASES
    from tests.corpus.triton.gpu import Launches, on_a_gpu_as_well

    torch.manual_seed(0)
    case = CASES[name]
    left_out = "" if capability is None else case.why_not_on(capability)
    with_gpu = capability is not None and not left_out
    started, launches = time.perf_counter(), Launches()
    try:
        where = on_a_gpu_as_well() if with_gpu else contextlib.nullcontext(launches)
        how = kernelsim.options(seed=seed)
        with where as launches, how, kernelsim.triton_launches(), with_left_out(left_out_byte):
            found = case.run()
        record: dict[str, Any] = {"outcome": "same" if found <= case.tolerance else "differs", "difference": found}
    except kernelsim.FindingError as error:
        record = {"outcome": "finding", "message": str(error)}
    except NotSimulatedError as error:
        record = {"outcome": "refused", "message": str(error)}
    except Exception as error:  # of the library, or of the case
        record = {"outcome": "error", "message": f"{type(error).__name__}: {error}"}
    if case.faulty:
        is_found = record["outcome"] in ("finding", "differs")
        record |= {"outcome": "fault found" if is_found else "fault missed", "fault": case.faulty}
    if left_out:
        record["gpu"] = {"left_out": left_out}
    elif with_gpu:
        record["gpu"] = {"launches": launches.count, "same_bits": launches.same, "difference": launches.largest}
        record["gpu"] |= {"failed": launches.failed} if launches.failed else {}
    return {**record, "seconds": round(time.perf_counter() - started, 2)}


def in_a_process(name: str, checkouts: list[Path], limit: float, flags: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", f"{HERE}.table", *map(str, checkouts), "--here", name]
    command += flags
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"outcome": "error", "message": f"no result within {limit:g} s"}
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if last.startswith("{"):  # also of a process that a broken context ends with an error, after its record
        return json.loads(last)  # type: ignore[no-any-return]
    said = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return {"outcome": "error", "message": f"the process ended with {done.returncode}: {said}"}


def load_cases(checkouts: list[Path]) -> list[str]:
    """The names of the cases of some checkouts, whose folders can then be imported from."""
    from tests.corpus.triton.comparison import CASES

    for checkout in checkouts:
        if checkout.name not in LIBRARIES:
            sys.exit(f"{checkout}: no library is known by this name; there are {', '.join(LIBRARIES)}")
        module, folder = LIBRARIES[checkout.name]
        sys.path.insert(0, str((checkout / folder).resolve()))
        importlib.import_module(f"{HERE}.{module}")
    return list(CASES)


def revision(checkout: Path) -> str:
    if (stated := checkout / ".revision").exists():  # of a copy without its history
        return stated.read_text().strip()
    done = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def row(name: str, record: dict[str, Any]) -> str:
    figure = f"{record['difference']:.1e}" if "difference" in record else ""
    text = f"{name:<40} {record['outcome']:<12}{figure:<10}{record.get('seconds', 0):6.1f} s"
    if gpu := record.get("gpu"):
        text += f"   not on the GPU: {gpu['left_out']}" if "left_out" in gpu else f"   {compared(gpu)}"
    return "\n".join([text, *(f"    {line}" for line in record.get("message", "").splitlines())])


def compared(gpu: dict[str, Any]) -> str:
    apart = ", ".join(f"{kernel} {found:.1e}" for kernel, found in gpu["difference"].items())
    failed = "".join(f"\n    on the GPU, {kernel}: {error}" for kernel, error in gpu.get("failed", {}).items())
    return f"{gpu['same_bits']} of {gpu['launches']} launches the same bits; {apart}{failed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, nargs="+")
    parser.add_argument("--only", nargs="+", default=[], help="cases whose names begin so")
    parser.add_argument("--limit", type=float, default=180, help="seconds for one case")
    parser.add_argument("--gpu", action="store_true", help="make each launch on a GPU as well")
    parser.add_argument("--left-out", action="store_true", help="what masks leave out is NaN or -1")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--here", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = load_cases(options.checkouts)
    import torch

    if options.here:
        from tests.corpus.triton.stand_ins import as_if_on_a_gpu

        capability = torch.cuda.get_device_capability() if options.gpu else None  # of the GPU itself
        with as_if_on_a_gpu(has_gpu=options.gpu), contextlib.redirect_stdout(sys.stderr):
            record = run_here(options.here, 0, capability, 0xFF if options.left_out else 0)
        print(json.dumps(record), flush=True)
        return
    import triton

    chosen = [n for n in names if not options.only or n.startswith(tuple(options.only))]
    revisions = {checkout.name: revision(checkout) for checkout in options.checkouts}
    facts = {"gpu": torch.cuda.get_device_name() if options.gpu else "", "torch": torch.__version__,
             "triton": triton.__version__, "cores": os.cpu_count(), "revisions": revisions}  # fmt: skip
    records: dict[str, Any] = {}
    flags = ["--gpu"] * options.gpu + ["--left-out"] * options.left_out
    run = functools.partial(in_a_process, checkouts=options.checkouts, limit=options.limit, flags=flags)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for name, found in zip(chosen, pool.map(run, chosen), strict=True):
            records[name] = found
            print(row(name, found), flush=True)
            if options.output:  # after each case, as a run may be cut short
                whole = {**facts, "outcomes": count(records), "cases": records}
                options.output.write_text(json.dumps(whole, indent=1) + "\n")
    print(count(records), flush=True)
    if options.gpu:
        print(on_the_gpu(records))


def on_the_gpu(records: dict[str, Any]) -> str:
    known = [record["gpu"] for record in records.values() if "gpu" in record]
    made, same = (sum(gpu.get(key, 0) for gpu in known) for key in ("launches", "same_bits"))
    failed = sum("failed" in gpu for gpu in known)
    why = dict(Counter(gpu["left_out"] for gpu in known if "left_out" in gpu))
    return f"on the GPU: {made} launches, {same} with the same bits; {failed} cases with errors; left out: {why}"


def count(records: dict[str, Any]) -> dict[str, int]:
    return dict(Counter(record["outcome"] for record in records.values()))


if __name__ == "__main__":
    main()
