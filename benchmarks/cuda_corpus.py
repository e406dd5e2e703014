"""Published CUDA kernels: which ones compile in the simulator and in NVRTC, and why the others do not.

``python benchmarks/cuda_corpus.py FOLDER --json FILE`` takes a folder of checkouts, one for each repository. Nothing of
them is kept here, and nothing but the kernels' names and the outcome is in the record. Each ``__global__`` function of
each ``.cu`` and ``.cuh`` file is a case; templates are instantiated as their own file launches them, else with plain
arguments (``float``, 16). ``--only TEXT`` selects by repository, file or kernel; ``--again FILE`` repeats what
failed in an earlier record.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import records

from kernelsim.cuda_sim import compilation
from kernelsim.cuda_sim.compilation import compile_kernel
from kernelsim.text.c_text import closing_bracket, split_commas
from kernelsim.text.includes import source_text
from kernelsim.text.library_headers import with_cutlass
from kernelsim.text.parsed_source import parsed
from kernelsim.text.source import CudaSource
from opwright.backends.build_tools import build_tools
from opwright.backends.compiler_inputs import BuildWatch
from opwright.backends.cuda.module import CudaModule
from opwright.backends.simulation import host
from opwright.errors import OpwrightError

ARCH = "sm_90"
# Folders of headers that the repositories' own builds pass to the compiler.
HEADER_FOLDERS = ("include", "includes", "csrc", "src", "Common", "kernels", "llmc", "dev/cuda")
# What the repositories' own builds define.
DEFINED = ("WITH_CUDA", "MMCV_WITH_CUDA")
BUILD_OPTIONS = {"nerfstudio-project+gsplat": ("-std=c++20", "-DGSPLAT_BUILD_CAMERA_WRAPPERS=1")}
TYPES = {"half", "__half", "float", "double", "int", "unsigned", "bool", "char", "int8_t", "uint8_t", "short", "float4"}
TYPES |= {"long", "int64_t", "uint32_t", "size_t", "float2", "half2", "__nv_bfloat16", "int32_t", "float3", "double2"}
# Template arguments that are made by macros and functions between the launch and the kernel.
_SOFTMAX = "DirectLoad<float, float>, DirectStore<float, float>, float, 1"
_SCAN = "true, true, true, true, float, float"
_SOFTMAX_GRAD = f"DirectLoad<float, float>, {_SOFTMAX}"
INSTANCES = {
    "SoftmaxWarpImpl": f"{_SOFTMAX}, 4, 32, 1, false, Algorithm::kSoftmax",
    "SoftmaxBlockSMemImpl": f"{_SOFTMAX}, 128, Algorithm::kSoftmax",
    "SoftmaxBlockUncachedImpl": f"{_SOFTMAX}, 128, Algorithm::kSoftmax",
    "SoftmaxGradWarpImpl": f"{_SOFTMAX_GRAD}, 4, 32, 1, false, Algorithm::kSoftmax",
    "SoftmaxGradBlockSMemImpl": f"{_SOFTMAX_GRAD}, 128, Algorithm::kSoftmax",
    "SoftmaxGradBlockUncachedImpl": f"{_SOFTMAX_GRAD}, 128, Algorithm::kSoftmax",
    "selective_scan_fwd_kernel": f"Selective_Scan_fwd_kernel_traits<128, 4, 1, {_SCAN}>",
    "selective_scan_bwd_kernel": f"Selective_Scan_bwd_kernel_traits<128, 4, false, {_SCAN}>",
    "gemm_4bit_sm80_m16n8k16": "half",
}

NUMBER = re.compile(
    r"(?:std::)?(?:u?int(?:\d+_t)?|unsigned|long|short|char|size_t|uint|int64|bool|auto|[A-Z]\w?|\w*[Ii]nd(?:e)?x\w*)"
)


@dataclass
class Outcome:
    """``ok``, ``refused`` (with the feature) or ``error`` (with the compiler's first message)."""

    status: str
    reason: str = ""
    line: int = 0


@dataclass
class Case:
    """One kernel of one file, with the template arguments that it is compiled with."""

    repository: str
    file: str
    kernel: str
    instance: str
    simulator: Outcome = field(default_factory=lambda: Outcome("not run"))
    nvrtc: Outcome = field(default_factory=lambda: Outcome("not run"))

    @property
    def key(self) -> tuple[str, str, str]:
        return self.repository, self.file, self.kernel


# --- the kernels of a checkout ---


def cases_of(checkout: Path, most: int) -> list[Case]:
    """The kernels of a repository, from files spread evenly over it if there are more than ``most``."""
    by_file: list[list[Case]] = []
    launches = "\n".join(p.read_text(errors="replace") for p in sorted(checkout.rglob("*.cu")))
    for path in sorted(p for p in checkout.rglob("*") if p.suffix in (".cu", ".cuh")):
        source = parsed(path.read_text(errors="replace"))
        if "__global__" not in source.text or re.search(r"\bFIXME\b", source.code):  # an exercise with gaps
            continue
        kernels = [kernel for kernel in source.kernels if is_defined(kernel, source.code)]
        name = str(path.relative_to(checkout))
        by_file.append([Case(checkout.name, name, k, "") for k in kernels])
    total = sum(map(len, by_file))
    step = max(1.0, total / most)
    chosen, seen, taken = [], 0, 0
    for cases in by_file:
        if taken * step <= seen:
            chosen += cases
            taken += len(cases)
        seen += len(cases)
    for case in chosen:
        case.instance = instance_of(
            parsed((checkout / case.file).read_text(errors="replace")).code, case.kernel, launches
        )
    return chosen


def is_defined(kernel: str, code: str) -> bool:
    """Whether a kernel has a body: in a header there may be its declaration only."""
    return any(
        (closing := closing_bracket(code, found.end() - 1)) is not None and code[closing + 1 :].lstrip()[:1] == "{"
        for found in re.finditer(rf"\b{kernel}\s*\(", code)
    )


def source_of(path: Path, checkout: Path) -> CudaSource:
    folders = [checkout, *(checkout / name for name in HEADER_FOLDERS), *_folders_above(path, checkout)]
    options = [part for folder in folders if folder.is_dir() for part in ("-I", str(folder))]
    options += [f"-D{name}" for name in DEFINED] + list(BUILD_OPTIONS.get(checkout.name, ()))
    return with_cutlass(CudaSource(source_text(path), path, tuple(options)))


def _folders_above(path: Path, checkout: Path) -> list[Path]:
    """The folders above the file, and those called ``include`` and the like beside it or above."""
    above = [folder for folder in path.parents if folder.is_relative_to(checkout)]
    return [
        f
        for folder in above
        for name in ("", "include", "common/cuda", "common", "utils", "third_party/glm")
        if (f := folder / name).is_dir()
    ]


def instance_of(code: str, kernel: str, elsewhere: str) -> str:
    """The kernel's name with template arguments of a launch, if it is a template."""
    parameters = template_parameters(code, kernel)
    if parameters is None:
        return kernel
    if kernel in INSTANCES:
        return f"{kernel}<{INSTANCES[kernel]}>"
    pattern = re.compile(rf"\b{kernel}\s*<(?!<)([^;{{}}()]*?)>\s*<<<")
    here = pattern.search(code)
    launched = here or (pattern.search(elsewhere) if f"{kernel}<" in elsewhere else None)
    written = split_commas(launched[1]) if launched else []
    code = code if here else (elsewhere[max(0, launched.start() - 4000) : launched.start()] if launched else code)
    arguments = []
    for i, parameter in enumerate(parameters):
        given = plain_argument(written[i], code) if i < len(written) else None
        default = parameter.partition("=")[2].strip()
        if given is None and default:
            break  # and so have those after it
        arguments.append(given or guessed_argument(parameter))
    return f"{kernel}<{', '.join(arguments)}>" if arguments else f"{kernel}<>"


def template_parameters(code: str, kernel: str) -> list[str] | None:
    """The template parameters of a kernel's definition as they are written; None if it is no template."""
    bounds = r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)\s*"
    found = re.search(
        rf"\btemplate\s*<([^;{{}}]*?)>\s*(?:static\s+|inline\s+|{bounds})*__global__\b[^;{{}}]*?\b{kernel}\s*\(", code
    )
    return split_commas(found[1]) if found else None


def plain_argument(written: str, code: str) -> str | None:
    """A template argument of a launch, if it means something outside of the function that launches."""
    if re.fullmatch(r"[\w\s*]+", written) and set(written.replace("*", " ").split()) <= TYPES | {
        "const",
        "true",
        "false",
    }:
        return written
    if re.fullmatch(r"\d+", written):
        return written
    constants = re.findall(
        rf"^[ \t]*#[ \t]*define[ \t]+{re.escape(written)}[ \t]+\(?(\d+)\)?[ \t]*$"
        rf"|\bconst(?:expr)?\s+[\w ]*\b{re.escape(written)}\s*=\s*(\d+)\s*;",
        code,
        re.MULTILINE,
    )
    return next((a or b for a, b in reversed(constants)), None)


def guessed_argument(parameter: str) -> str:
    """``float`` for a type; false, 16 for a number, or the first of an enumeration."""
    if re.match(r"(?:typename|class)\b", parameter):
        return "int" if re.search(r"[Ii](?:nd|d)x|[Ii]ndex|Int", parameter) else "float"
    if parameter.startswith("bool"):
        return "false"
    kind = re.match(r"(?:const\s+)?([\w:]+)\s+\w+\s*$", parameter)
    return "16" if kind is None or NUMBER.fullmatch(kind[1]) else f"static_cast<{kind[1]}>(0)"


# --- compiling ---


def run(case: Case, folder: Path, quick: bool, known: dict[Any, Outcome]) -> Case:
    """Compile a case. ``known`` has what NVRTC said of a file, all of whose plain kernels it compiles at once."""
    checkout = folder / case.repository
    source = source_of(checkout / case.file, checkout)
    case.simulator = outcome(lambda: in_simulator(source, case.instance, quick))
    key = case.repository, case.file, case.instance if "<" in case.instance else ""
    if key not in known or known[key].status == "ok":
        instances = (case.instance,) if "<" in case.instance else ()  # named from the start: it may have variables
        known[key] = outcome(lambda: CudaModule(source, instances).entry(ARCH, case.instance))
    case.nvrtc = known[key]
    return case


def in_simulator(source: CudaSource, instance: str, quick: bool) -> None:
    name = CudaModule(source)[instance].name  # with its namespace
    if quick:
        parse(source, name)
    else:
        compile_kernel(source, name, host(build_tools()), checked=True)


def parse(source: CudaSource, instance: str) -> None:
    """What decides whether the simulator takes a kernel, without the code."""
    build = compilation._Build(source, instance, host(build_tools()), checked=False)
    build.precompiled = build.precompiled_header()
    build.watch = BuildWatch(build.compiler)
    with tempfile.TemporaryDirectory() as folder:
        build.write_sources(Path(folder))
        build.refuse_unsupported(Path(folder))
        build.compile(Path(folder), ["-fsyntax-only", "kernel.cpp"])


def outcome(compiled: Any) -> Outcome:
    try:
        compiled()
    except OpwrightError as error:
        text = str(error)
        place = re.search(r":(\d+)[:(]", text.partition("\n")[0])
        line = int(place[1]) if place else 0
        if type(error).__name__ == "KernelRefusedError":
            return Outcome("refused", reason_of_refusal(text), line)
        return Outcome("error", reason_of_error(text, getattr(error, "log", "") or ""), line)
    return Outcome("ok")


def reason_of_refusal(text: str) -> str:
    """The feature's name, without file and line."""
    return re.sub(r"^[^:]*:\d+: ", "", text.partition("\n")[0])


def reason_of_error(text: str, log: str) -> str:
    """The first error of the compiler, without its place."""
    for pattern in (r"(?:fatal )?error: (.+)", r"error\s*(?:#\w+)?: (.+)"):
        found = re.search(pattern, log) or re.search(pattern, text)
        if found:
            return found[1].strip()
    return text.partition("\n")[0]


# --- the record ---


def grouped(cases: list[Case], compiler: str) -> list[list[Any]]:
    """Reasons with how many kernels and which repositories they stop, most frequent first."""
    counts: dict[str, list[Case]] = collections.defaultdict(list)
    for case in cases:
        result: Outcome = getattr(case, compiler)
        if result.status != "ok":
            counts[f"{result.status}: {result.reason}"].append(case)
    rows = [[len(v), len({c.repository for c in v}), k, f"{v[0].repository}/{v[0].file}"] for k, v in counts.items()]
    return sorted(rows, key=lambda row: (-row[0], row[2]))


def record_of(cases: list[Case], commits: dict[str, str], seconds: float) -> dict[str, Any]:
    def share(of: list[Case], compiler: str) -> dict[str, int]:
        return dict(collections.Counter(getattr(c, compiler).status for c in of))

    by_repository = {
        name: {
            "commit": commits.get(name, ""),
            "kernels": len(of),
            "simulator": share(of, "simulator"),
            "nvrtc": share(of, "nvrtc"),
        }
        for name in sorted({c.repository for c in cases})
        if (of := [c for c in cases if c.repository == name])
    }
    return {
        "kernels": len(cases),
        "simulator": share(cases, "simulator"),
        "nvrtc": share(cases, "nvrtc"),
        "seconds": seconds,
        "repositories": by_repository,
        "reasons simulator": grouped(cases, "simulator"),
        "reasons nvrtc": grouped(cases, "nvrtc"),
        "cases that fail": [asdict(c) for c in cases if c.simulator.status != "ok" or c.nvrtc.status != "ok"],
    }


def commit_of(checkout: Path) -> str:
    given = checkout / "COMMIT"  # for a checkout without its history
    if given.is_file():
        return given.read_text().strip()
    done = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--most", type=int, default=80, help="kernels of one repository")
    parser.add_argument("--only", default="")
    parser.add_argument("--again", type=Path)
    parser.add_argument("--quick", action="store_true", help="parse for the simulator, make no code")
    parser.add_argument("--one", action="store_true", help="one kernel of each file")
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    began = time.monotonic()
    checkouts = sorted(p for p in chosen.folder.iterdir() if p.is_dir())
    cases = [case for checkout in checkouts for case in cases_of(checkout, chosen.most)]
    cases = [c for c in cases if chosen.only in "/".join(c.key)]
    if chosen.again:
        earlier = json.loads(chosen.again.read_text())["cases that fail"]
        failed = {(c["repository"], c["file"], c["kernel"]) for c in earlier}
        cases = [c for c in cases if c.key in failed]
    if chosen.one:
        cases = list({(c.repository, c.file): c for c in reversed(cases)}.values())[::-1]
    print(f"{len(cases)} kernels of {len({c.repository for c in cases})} repositories", flush=True)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        known: dict[Any, Outcome] = {}
        for i, case in enumerate(pool.map(lambda case: run(case, chosen.folder, chosen.quick, known), cases)):
            print(
                f"{i + 1}/{len(cases)} {'/'.join(case.key)}: {case.simulator.status}, {case.nvrtc.status}", flush=True
            )
    record = record_of(cases, {c.name: commit_of(c) for c in checkouts}, time.monotonic() - began)
    if chosen.json:
        records.write(chosen.json, record)
    show(record)


def show(record: dict[str, Any]) -> None:
    for compiler in ("simulator", "nvrtc"):
        print(f"\n{compiler}: {record[compiler]} of {record['kernels']}")
        for count, repositories, reason, example in record[f"reasons {compiler}"]:
            print(f"{count:5} {repositories:3}  {reason[:150]}   [{example}]")
    print(f"\n{record['seconds']:.0f} s")


if __name__ == "__main__":
    main()
