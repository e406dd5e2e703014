"""Kills processes of a check on a cluster at random moments, and compares the verdicts with undisturbed ones.

``python benchmarks/cluster_faults.py FILE --trials 20 --seed 1`` writes the record. Each trial starts
``opwright check --ray --resume JOURNAL`` on a cluster of this machine, and sends SIGKILL to one of its processes. If
the command does not finish by itself, it is started again with the same journal, as a supervisor would do. The
processes of a kernel and its checker, and the one that they are forked from, are left alone: a check reports their
death. With ``--sliced``, there are fewer kernels with longer checks, which are cut into slices.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
import records

from opwright.machine import this_machine

_SOURCE = """
import time

from jaxtyping import Float
from torch import Tensor
import opwright as ow

@ow.op("faults::double")
def double(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    return 2 * x

def after_a_while(x):
    time.sleep({seconds})
    return x + x

for number in range({kernels}):
    wrong = number < {wrong}
    double.python((lambda x: x.clone()) if wrong else after_a_while, name=f"kernel{{number}}")
"""
_MARK = "OPWRIGHT_FAULTS_TRIAL"
# What the command line of a process contains, by its part in the sweep; the first that fits.
_ROLES = {
    "gcs_server": "Ray's control process",
    "raylet/raylet": "Ray's process of the machine",
    "ray::do": "a worker that runs a unit",
    "ray::Board": "the actor with the notes",
    "ray::ArtifactStore": "the actor with what is built",
    "ray::IDLE": "a worker that waits",
    "ray::": "Ray's agents",
    "opwright.workers": "",
    "opwright check": "the command",
    "-m opwright": "the command",
    "dashboard": "Ray's agents",
    "log_monitor": "Ray's agents",
    "runtime_env": "Ray's agents",
}
_FINISHED = (0, 1, 3, 4)
_NOTHING = "nothing: it had ended"


@dataclass(frozen=True)
class Sweep:
    """What is checked, and how: so many kernels, of which some are wrong; a call of a right one takes some seconds."""

    kernels: int
    wrong: int
    seconds: float
    options: tuple[str, ...]


_WHOLE = Sweep(8, 2, 0.0, ("--check", "values", "--check", "metadata", "--level", "smoke"))
_SLICED = Sweep(3, 1, 0.03, ("--level", "quick"))


@dataclass
class Trial:
    """One killed process, and what became of the sweep."""

    number: int
    role: str
    at_s: float
    finished_before: int = 0
    exit_codes: tuple[int, ...] = ()
    taken_up: int = 0
    seconds: float = 0.0
    equal: bool = False
    differences: str = ""


def main() -> None:
    """Run the trials, print a line for each, and write the record."""
    options = argparse.ArgumentParser()
    options.add_argument("file", type=Path)
    options.add_argument("--trials", type=int, default=20)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--within", type=float, help="the last moment, in seconds; else that of an undisturbed sweep")
    options.add_argument("--sliced", action="store_true", help="fewer kernels, whose checks are cut into slices")
    chosen = options.parse_args()
    sweep = _SLICED if chosen.sliced else _WHOLE
    draw = random.Random(chosen.seed)
    with tempfile.TemporaryDirectory(prefix="cluster-faults-") as name:
        folder = Path(name)
        (folder / "faults_op.py").write_text(
            _SOURCE.format(kernels=sweep.kernels, wrong=sweep.wrong, seconds=sweep.seconds)
        )
        started = time.monotonic()
        undisturbed = _run(folder, 0, sweep)
        undisturbed.wait()
        seconds, expected = time.monotonic() - started, _verdicts(folder)
        last = chosen.within or 0.95 * seconds
        trials = []
        for number in range(1, chosen.trials + 1):
            (folder / "journal").unlink(missing_ok=True)
            trials.append(_trial(folder, number, sweep, draw, last, expected))
            print(json.dumps(asdict(trials[-1])), flush=True)
            head = {"machine": this_machine().to_json(), "ray": ray.__version__, "seed": chosen.seed, **asdict(sweep)}
            found = {**head, **_summary(trials, seconds), "trial": [asdict(t) for t in trials]}
            records.write(chosen.file, found)


def _summary(trials: list[Trial], seconds: float) -> dict[str, Any]:
    return {
        "undisturbed_s": seconds,
        "trials": len(trials),
        "killed": sum(t.role != _NOTHING for t in trials),
        "verdicts equal": sum(t.equal for t in trials),
        "commands started again": sum(len(t.exit_codes) - 1 for t in trials),
        "finished verdicts lost": sum(max(0, t.finished_before - t.taken_up) for t in trials if len(t.exit_codes) > 1),
    }


def _run(folder: Path, number: int, sweep: Sweep) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "opwright", "check", "faults_op.py", *sweep.options, "--json", "out.json"]
    command += ["--ray", "local", "--jobs", "2", "--resume", "journal"]
    (folder / "out.json").unlink(missing_ok=True)
    # Ray's driver gives up a control process that is gone after a minute; a restart is quicker.
    environment = {**os.environ, _MARK: str(number), "RAY_gcs_rpc_server_reconnect_timeout_s": "10"}
    with (folder / "output.txt").open("wb") as output:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)


def _trial(folder: Path, number: int, sweep: Sweep, draw: random.Random, last: float, expected: Any) -> Trial:
    started = time.monotonic()
    process = _run(folder, number, sweep)
    at = draw.uniform(0.1, 1.0) * last
    time.sleep(at)
    victims = _processes(number)
    role = draw.choice(sorted({r for _, r in victims})) if victims else _NOTHING
    trial = Trial(number, role, round(at, 1))
    if victims:
        os.kill(draw.choice([pid for pid, r in victims if r == role]), signal.SIGKILL)
    codes = [_wait(process, number)]
    trial.finished_before = _finished(folder / "journal")
    while not (codes[-1] in _FINISHED and (folder / "out.json").exists()) and len(codes) < 4:
        codes.append(_wait(_run(folder, number, sweep), number))
        trial.taken_up = max(trial.taken_up, _taken_up(folder))
    trial.exit_codes = tuple(codes)
    got = _verdicts(folder)
    trial.equal = got == expected
    if not trial.equal:
        trial.differences = _differences(got, expected)
    trial.seconds = round(time.monotonic() - started, 1)
    return trial


def _wait(process: subprocess.Popen[bytes], number: int) -> int:
    """The exit code of a command, which has ended with everything that it had started; 124 after three minutes."""
    try:
        code = process.wait(180)
    except subprocess.TimeoutExpired:
        code = 124
    for _ in range(20):  # what is left ends by itself; what does not, would disturb the next trial
        if not (left := _processes(number, all_roles=True)):
            break
        time.sleep(0.5)
    for pid, _ in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return code


def _processes(number: int, *, all_roles: bool = False) -> list[tuple[int, str]]:
    """The processes of a trial with their roles, by the mark in their environment."""
    mark = f"{_MARK}={number}\0".encode()
    found, own = [], set()
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda f: int(f.name)):
        try:
            environment = (folder / "environ").read_bytes()
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        # Ray's workers write their title over their environment; their parent is known before them.
        if mark not in environment + b"\0" and not (line.startswith("ray::") and _parent(folder) in own):
            continue
        own.add(int(folder.name))
        role = next((role for words, role in _ROLES.items() if words in line), "")
        if role or all_roles:
            found.append((int(folder.name), role))
    return found


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _finished(journal: Path) -> int:
    """How many results there are to take up: not slices of a kernel whose verdict is there."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    units = {json.loads(line)["unit"] for line in lines if '"result"' in line and line.endswith("}")}
    return sum(unit.rpartition(": ")[0] not in units for unit in units)


def _taken_up(folder: Path) -> int:
    lines = (folder / "output.txt").read_text(errors="replace").splitlines()
    said = [line for line in lines if "finished before are taken from" in line]
    return int(said[-1].split(" finished before")[0].split()[-1]) if said else 0


def _differences(got: Any, expected: Any) -> str:
    """What differs, a line for each verdict."""
    if got is None or len(got) != len(expected):
        return f"{len(got or ())} verdicts in place of {len(expected)}"
    pairs = [
        (json.dumps(a, indent=1).splitlines(), json.dumps(b, indent=1).splitlines())
        for a, b in zip(got, expected, strict=True)
    ]
    return "\n".join(line for a, b in pairs for line in difflib.unified_diff(b, a, lineterm="", n=1))[:1500]


def _verdicts(folder: Path) -> Any:
    """The verdicts of a record without times, and what depends on them."""
    try:
        record = json.loads((folder / "out.json").read_text())
    except (OSError, ValueError):
        return None
    for verdict in record["verdicts"]:
        verdict["seconds"] = verdict["step_seconds"] = None
        for finding in verdict["findings"]:
            if finding["peak_memory"]:  # bytes, which are measured
                finding["message"], finding["peak_memory"] = "", len(finding["peak_memory"])
            finding["message"] = re.sub(r"^\d+ calls( in each)?", "calls", finding["message"])  # as many as time allows
    return record["verdicts"]


if __name__ == "__main__":
    main()
