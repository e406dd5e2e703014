"""What a step of a program gives, as plain tuples that compare by ``==``: bits and types, not objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from opwright.errors import OpwrightError

__all__ = ["Bits", "described", "described_error", "described_thread"]

# As they were imported: programs replace functions of torch.
_view, _reshape = torch.Tensor.view, torch.Tensor.reshape


class Bits(str):
    """The values of a tensor in words, which equal others only if each bit does."""

    def __new__(cls, tensor: torch.Tensor) -> Bits:
        plain = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
        text = super().__new__(cls, str(plain.tolist()))
        text.bits = _view(_reshape(plain, (-1,)), torch.uint8).numpy().tobytes() if plain.numel() else b""
        return text

    bits: bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bits) and self.bits == other.bits

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def described(value: Any, arguments: Sequence[Any] = ()) -> Any:
    """A value by type and value; a tensor also by what it shares with tensors among ``arguments``."""
    if isinstance(value, torch.Tensor):
        return _described_tensor(value, arguments)
    if isinstance(value, list | tuple):
        return (type(value).__name__, *(described(item, arguments) for item in value))
    return type(value).__name__, repr(value)


def _described_tensor(tensor: torch.Tensor, arguments: Sequence[Any]) -> Any:
    kind, dtype, shape = type(tensor).__name__, str(tensor.dtype), tuple(tensor.shape)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or _has_no_values(tensor):
        return kind, dtype, shape
    if tensor.layout is not torch.strided:
        return kind, dtype, shape, str(tensor.layout), Bits(tensor.to_dense())
    tracked = (f"requires_grad={tensor.requires_grad}", f"leaf={tensor.is_leaf}", f"inference={tensor.is_inference()}")
    same = tuple(i for i, a in enumerate(arguments) if a is tensor)
    shared = tuple(i for i, a in enumerate(arguments) if _share(a, tensor))
    return kind, dtype, shape, tensor.stride(), *tracked, f"is={same}", f"shares={shared}", Bits(tensor)


def _has_no_values(tensor: torch.Tensor) -> bool:
    in_transform = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return tensor.is_meta or in_transform or is_traceable_wrapper_subclass(tensor)


def _share(argument: Any, tensor: torch.Tensor) -> bool:
    if type(argument) not in (torch.Tensor, torch.nn.Parameter) or not tensor.numel():
        return False
    return argument.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


def described_error(error: BaseException, names: dict[str, str]) -> Any:
    """An exception by its type, and one of ours by its message, too, in which ``names`` are replaced."""
    if not isinstance(error, OpwrightError):
        return "raised", type(error).__name__
    text = str(error)
    for name, other in names.items():
        text = text.replace(name, other)
    return "raised", type(error).__name__, text


def described_thread() -> Any:
    """What a kernel can see of the thread that calls it."""
    return (
        f"grad={torch.is_grad_enabled()}", f"inference={torch.is_inference_mode_enabled()}",
        f"default={torch.get_default_dtype()}", f"autocast={torch.is_autocast_enabled('cpu')}",
    )  # fmt: skip
