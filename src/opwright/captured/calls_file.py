"""The file of recorded calls: JSON lines. The first names the format, the last says that the file is whole.

{"opwright": "calls", "version": 1}
{"target": "mylib::scale", "args": [{"shape": [8, 4], "strides": [4, 1], "dtype": "float32", ...}, 2.0], "kwargs": {}}
{"end": true, "lines": 1, "counts": [17]}
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opwright.contract.dtypes import element_bytes, short
from opwright.contract.inputs.layouts import strided_like
from opwright.errors import CheckError

__all__ = ["HEADER", "RecordedCall", "RecordedTensor", "read_calls", "record_of", "tensor_of"]

HEADER = {"opwright": "calls", "version": 1}


@dataclass(frozen=True)
class RecordedTensor:
    """A tensor of a call: its metadata, and its values if they were asked for."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str = "cpu"
    requires_grad: bool = False
    data: str = ""


@dataclass(frozen=True)
class RecordedCall:
    """One call.

    Attributes:
        target: the operator or the function.
        args, kwargs: with ``RecordedTensor`` in the place of tensors.
        count: how many calls were like it.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    count: int = 1


def record_of(value: Any, *, values: bool) -> Any:
    """An argument as JSON. Raises TypeError if it cannot be recorded."""
    if isinstance(value, torch.Tensor):
        record = {
            "shape": list(map(int, value.shape)), "strides": list(map(int, value.stride())),
            "dtype": short(value.dtype), "device": value.device.type, "requires_grad": value.requires_grad,
        }  # fmt: skip
        return {**record, "data": _packed(value)} if values else record
    if isinstance(value, list | tuple):
        return [record_of(each, values=values) for each in value]
    if isinstance(value, torch.dtype | torch.device):
        return {"torch": str(value).removeprefix("torch.")}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} cannot be recorded")


def _packed(tensor: torch.Tensor) -> str:
    return base64.b64encode(zlib.compress(element_bytes(tensor).cpu().numpy().tobytes())).decode()


def tensor_of(recorded: RecordedTensor, values: torch.Tensor | None = None) -> torch.Tensor:
    """A tensor on the CPU of the recorded layout.

    Args:
        values: what it holds, of the recorded shape; those of the file are used if it has any.
    """
    dtype = getattr(torch, recorded.dtype)
    if recorded.data:
        data = bytearray(zlib.decompress(base64.b64decode(recorded.data)))
        values = torch.frombuffer(data, dtype=dtype).reshape(recorded.shape) if data else torch.empty(recorded.shape)
    if values is None:
        values = torch.zeros(recorded.shape, dtype=dtype)
    return strided_like(values.to(dtype), recorded.strides)


def read_calls(path: str | Path) -> list[RecordedCall]:
    """The calls of a file.

    Raises:
        CheckError: there is no such file, it is of another format or version, or it was cut off; with the line.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise CheckError(
            f"inputs must be a file that ow.capture wrote, got {str(path)!r}: {error.strerror}", fix="correct the path"
        ) from None
    except UnicodeDecodeError:
        lines = [""]
    entries = [_parsed(path, number, line) for number, line in enumerate(lines, 1)]
    if not entries or entries[0].get("opwright") != "calls":
        raise CheckError(
            f"inputs must be a file that ow.capture wrote, got {str(path)!r}, whose line 1 is another",
            fix="record calls: with ow.capture(path): ...",
        )
    if entries[0].get("version") != HEADER["version"]:
        raise CheckError(
            f"{path}, line 1: the version must be {HEADER['version']}, got {entries[0].get('version')}",
            fix="record the calls again with this version of opwright",
        )
    end, calls = entries[-1], entries[1:-1]
    if not end.get("end") or end.get("lines") != len(calls) or len(end.get("counts", ())) != len(calls):
        raise _cut_off(path, len(lines))
    return [
        _call(path, number, e, count) for number, (e, count) in enumerate(zip(calls, end["counts"], strict=True), 2)
    ]


def _parsed(path: str | Path, number: int, line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        if number == 1:
            return {}
        raise _cut_off(path, number) from None
    return entry if isinstance(entry, dict) else {}


def _cut_off(path: str | Path, number: int) -> CheckError:
    return CheckError(
        f"{path} must end with the line that counts its calls, got a file that was cut off in line {number}",
        fix="record the calls again; leave the block of ow.capture before you copy the file",
    )


def _call(path: str | Path, number: int, entry: dict[str, Any], count: int) -> RecordedCall:
    try:
        args, kwargs = tuple(map(_value, entry["args"])), {n: _value(v) for n, v in entry["kwargs"].items()}
        return RecordedCall(str(entry["target"]), args, kwargs, count)
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        raise CheckError(
            f"{path}, line {number}: must be a call with a target, args and kwargs, got {error}", fix="record it again"
        ) from None


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [_value(each) for each in value]
    if isinstance(value, dict) and "torch" in value:
        found = getattr(torch, name := str(value["torch"]), None)
        return found if isinstance(found, torch.dtype) else torch.device(name)  # torch.cpu is a module
    if isinstance(value, dict):
        if not isinstance(getattr(torch, str(value.get("dtype")), None), torch.dtype):
            raise TypeError(f"a tensor with the dtype {value.get('dtype')!r}")
        return RecordedTensor(**{**value, "shape": tuple(value["shape"]), "strides": tuple(value["strides"])})
    return value
