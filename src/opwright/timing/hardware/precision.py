"""torch's precision flags: the same for all candidates, recorded, and restored if a candidate changes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["PrecisionFlags"]

_Get = Callable[[], Any]
_Set = Callable[[Any], Any]


def _attribute(holder: Any, name: str) -> tuple[_Get, _Set]:
    return lambda: getattr(holder, name), lambda value: setattr(holder, name, value)


def _known() -> dict[str, tuple[_Get, _Set]]:
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    return {
        "float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        "TF32 in cuBLAS": _attribute(matmul, "allow_tf32"),
        "TF32 in cuDNN": _attribute(cudnn, "allow_tf32"),
        "reduced-precision sums in float16": _attribute(matmul, "allow_fp16_reduced_precision_reduction"),
        "reduced-precision sums in bfloat16": _attribute(matmul, "allow_bf16_reduced_precision_reduction"),
        "cuDNN benchmark": _attribute(cudnn, "benchmark"),
        "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        # torch 2.9's new names: a program that uses them cannot read the older ones above.
        "float32 in cuBLAS": _attribute(matmul, "fp32_precision"),
        "float32 in cuDNN convolutions": _attribute(cudnn.conv, "fp32_precision"),
        "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    }


class PrecisionFlags:
    """The flags at the time of creation; every candidate is timed with them."""

    def __init__(self) -> None:
        self._flags = _known()
        self._values = {name: _read(get) for name, (get, _) in self._flags.items()}

    def changes(self) -> list[str]:
        """Descriptions of the flags that have changed."""
        now = {name: _read(get) for name, (get, _) in self._flags.items()}
        return [f"{name}: {was} → {now[name]}" for name, was in self._values.items() if now[name] != was]

    def restore(self) -> None:
        """Restore changed flags."""
        for name, (get, put) in self._flags.items():
            if _read(get) != self._values[name] and not isinstance(self._values[name], _Unreadable):
                put(self._values[name])

    def to_json(self) -> dict[str, str]:
        return {name: _flag_text(value) for name, value in self._values.items()}


class _Unreadable(str):
    """The reason why a flag cannot be read: a program that mixes torch's old and new names for TF32."""


def _read(get: _Get) -> Any:
    try:
        return get()
    except (RuntimeError, AttributeError, TypeError) as error:
        return _Unreadable(f"unknown ({str(error).splitlines()[0][:80]})")


def _flag_text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple | list):  # torch 2.9 made pairs of the reduced-precision flags
        return ", ".join(map(_flag_text, value))
    return str(value).removeprefix("torch.")
