"""Seconds of ``opwright check`` for each operator of the gallery, of this opwright and optionally of an earlier one: by
the clock, and of the processor, of all processes together, which other work on the machine changes less.

Usage: op_times.py FILE [--before TREE] [--daemon] [--device cpu] [--only add:add …]

Each is a whole command with all kernels that run here, its start included, with what an earlier one has compiled in the
cache: the first of all, or in the folder OPWRIGHT_CACHE_DIR. The versions take turns at each operator. With
``--daemon``, one of them is this opwright's command again, started from ``opwright daemon``, whose processor time is
not known: its processes are the daemon's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import opwright as ow
from opwright.gallery import llm
from opwright.machine import this_machine
from opwright.workers.relatives import adopt_orphans, children

HERE = Path(__file__).resolve().parent
TARGETS = (
    "add:add", "conv1d:conv1d", "conv1d:conv1d_taps", "kmeans:kmeans_assign", "kmeans:kmeans_sums",
    "lltm:lltm", "lltm:lltm_backward", "lltm:lltm_backward_pointwise", "outer_sum:outer_sum", "trig:sin", "trig:cos",
    *(f"llm:{name}" for name, value in vars(llm).items() if isinstance(value, ow.Op)),
)  # fmt: skip


def environment_with(cache: str, tree: Path, **others: str) -> dict[str, str]:
    path = os.pathsep.join([str(tree / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OPWRIGHT_CACHE_DIR": cache, **others}


def processor_seconds() -> float:
    """Those of the processes that this one has waited for, and that these have."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def wait_for_orphans(others: set[int]) -> None:
    """Wait for what a command leaves behind, such as the process that its workers were forked from."""
    end = time.monotonic() + 10
    while True:
        left = set(children()) - others
        with contextlib.suppress(ChildProcessError):  # also of what has ended already
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left or time.monotonic() > end:
            return
        time.sleep(0.05)


def check(environment: dict[str, str], target: str, device: str) -> dict[str, Any]:
    """The seconds of one command, and how many kernels ran and passed."""
    others, before = set(children()), processor_seconds()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "verdicts.json"
        command = [sys.executable, "-m", "opwright", "check", f"opwright.gallery.{target}"]
        started = time.monotonic()
        done = subprocess.run(
            [*command, "--device", device, "--json", str(file)], env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        seconds = time.monotonic() - started
        wait_for_orphans(others)
        used = processor_seconds() - before
        if not file.exists():
            sys.exit(f"{target}: {done.stdout}{done.stderr}")
        ran = [v for v in json.loads(file.read_text())["verdicts"] if v["status"] != "refused"]
    passed = sum(v["status"] in ("pass", "warning") for v in ran)
    return {"seconds": round(seconds, 1), "processor_s": round(used, 1), "kernels": len(ran), "passed": passed}


@contextlib.contextmanager
def daemon(environment: dict[str, str]) -> Iterator[None]:
    """Keep ``opwright daemon`` for commands with these variables."""
    command = [sys.executable, "-m", "opwright", "daemon"]
    subprocess.run([*command, "start"], env=environment, check=True, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        subprocess.run([*command, "stop"], env=environment, check=True, stdout=subprocess.DEVNULL)


def shown(version: str, one: dict[str, Any]) -> str:
    used = f" ({one['processor_s']:6.1f} s of the processor)" if "processor_s" in one else ""
    return f"{version:>8} {one['seconds']:6.1f} s{used}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--daemon", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="+", choices=TARGETS, default=TARGETS)
    options = parser.parse_args()
    rows = {}
    adopt_orphans()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        cache = os.environ.get("OPWRIGHT_CACHE_DIR", folder)
        after = environment_with(cache, HERE.parent)
        versions = {"before": environment_with(cache, options.before)} if options.before else {}
        versions["after"] = after
        if options.daemon:  # a variable of its own, so that no other command starts from it
            versions["daemon"] = environment_with(cache, HERE.parent, OF_THE_DAEMON="1")
            running.enter_context(daemon(versions["daemon"]))
        for target in options.only:
            row = {"cold": check(after, target, options.device)} if cache == folder else {}
            row |= {name: check(environment, target, options.device) for name, environment in versions.items()}
            row.get("daemon", {}).pop("processor_s", None)
            print(f"{target:32}" + "".join(map(shown, row, row.values())), flush=True)
            rows[target] = row
            record = {"machine": this_machine().to_json(), "device": options.device, "operators": rows}
            options.file.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
