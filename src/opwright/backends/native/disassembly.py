"""The instructions of a shared object, as the system's disassembler writes them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from opwright.errors import KernelRefusedError

__all__ = ["disassemble_host"]


def disassemble_host(library: Path, source: str) -> str:
    """The functions that a source defines, including lambdas and template instances.

    Raises:
        KernelRefusedError: objdump is not installed.
    """
    objdump = shutil.which("objdump")
    if objdump is None:
        raise KernelRefusedError("objdump is not installed", fix="apt install binutils")
    command = [objdump, "-d", "-C", "--no-show-raw-insn", "-M", "intel", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise KernelRefusedError(f"objdump cannot read {library.name}: {done.stderr.strip()}", fix="update binutils")
    blocks = re.split(r"(?m)^(?=[0-9a-f]+ <.*>:$)", done.stdout)
    names = set(re.findall(r"(?m)^(?:[\w:<>,&*\s]+\s)?[*&]?(\w+)\((?:[^;]*?)\)\s*\{", source))
    blocks = [b for b in blocks if not re.match(r".*@plt>:", b)]
    own = [b for b in blocks if re.match(rf"[0-9a-f]+ <(?:.*[\s:])?(?:{'|'.join(names) or '$'})[<(]", b)]
    return "\n".join(b.strip() for b in own or blocks[1:])
