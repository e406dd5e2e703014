"""The process in which NVRTC runs: it reads compilations from its input and writes their results. A script of its own,
which imports nothing of opwright, so that it starts in a tenth of a second.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any, BinaryIO

__all__: list[str] = []


def main() -> None:
    from cuda.bindings import nvrtc

    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what NVRTC prints is no result
    while (request := read(sys.stdin.buffer)) is not None:
        os.chdir(request["folder"])
        write(results, compiled(nvrtc, request))


def read(stream: BinaryIO) -> Any:
    """The next message; None at the end."""
    size = stream.read(8)
    return pickle.loads(stream.read(int.from_bytes(size, "little"))) if len(size) == 8 else None


def write(stream: BinaryIO, message: Any) -> None:
    data = pickle.dumps(message)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def compiled(nvrtc: Any, request: dict[str, Any]) -> dict[str, Any]:
    """The log of a compilation, and if it succeeded its binary, its PTX and the symbols of the expressions."""
    headers = {name.encode(): text.encode() for name, text in request["headers"].items()}
    text, name, flags = request["text"].encode(), request["name"].encode(), [f.encode() for f in request["flags"]]
    _, program = nvrtc.nvrtcCreateProgram(text, name, len(headers), list(headers.values()), list(headers))

    def text_of(size: Any, read_into: Any) -> bytes:
        buffer = bytearray(size(program)[1])
        read_into(program, buffer)
        return bytes(buffer)

    try:
        for expression in request["expressions"]:
            nvrtc.nvrtcAddNameExpression(program, expression.encode())
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        log = text_of(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).rstrip(b"\0 \n")
        result: dict[str, Any] = {
            "log": log.decode(errors="replace"),
            "status": str(status),
            "succeeded": int(status) == 0,
        }
        if result["succeeded"]:
            result["symbols"] = {
                e: nvrtc.nvrtcGetLoweredName(program, e.encode())[1].decode() for e in request["expressions"]
            }
            result["ptx"] = text_of(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).rstrip(b"\0").decode()
            result["cubin"] = text_of(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        return result
    finally:
        nvrtc.nvrtcDestroyProgram(program)


if __name__ == "__main__":
    main()
