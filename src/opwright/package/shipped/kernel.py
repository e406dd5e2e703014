"""A kernel of a shipped operator: a native library, a Triton launcher in a module, or the attached function."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from opwright.backends.triton.tracing import traceable_launcher
from opwright.contract.contract import Contract
from opwright.contract.fingerprint import digest, fingerprint
from opwright.errors import KernelError
from opwright.internals.registration import call_directly, schema_differs
from opwright.package.shipped.manifest import read_manifest
from opwright.runtime.call.argument_utils import dtypes_that_count, of_open_dtype
from opwright.runtime.call.launch import prepare_launch

__all__ = ["ShippedKernel"]

Launch = Callable[..., Any]


class ShippedKernel:
    """One implementation. It is loaded by the first call that needs it, so that a package for GPUs imports anywhere."""

    def __init__(
        self,
        contract: Contract,
        name: str,
        record: Mapping[str, Any],
        source: Any,
        dtypes: Sequence[torch.dtype] | None,
        when: Callable[..., bool] | None,
    ) -> None:
        self.contract = contract
        self.name = name
        self.when = contract.signature.flat(when) if when is not None else None
        self._record = record
        self._source = source
        self._dtypes = frozenset(dtypes) if dtypes is not None else None
        self._launch: Launch | None = None
        self._lock = threading.Lock()

    def applies_to(self, device: str, arguments: Sequence[Any]) -> bool:
        """Whether the kernel takes arguments of this device and these dtypes."""
        if device not in self._record["devices"]:
            return False
        if self._dtypes is None:
            return True
        return dtypes_that_count(of_open_dtype(self.contract.signature, arguments)) <= self._dtypes

    def launch(self, arguments: Sequence[Any], device: int | None) -> Any:
        """Run the kernel on checked arguments, with their GPU as the current one (None: not on a GPU)."""
        return prepare_launch(self._launch or self._load(), device, self.contract.signature)(*arguments)

    @property
    def is_loaded(self) -> bool:
        """Whether the kernel is loaded."""
        return self._launch is not None

    def traceable(self) -> Launch | None:
        """A form that torch.compile may trace into, if it launches Triton kernels."""
        if self._record["backend"] != "triton":
            return None
        found = traceable_launcher(self._python_function())
        return self.contract.signature.flat(found) if found is not None else None

    @property
    def fingerprint(self) -> str:
        """A digest of the shipped kernel."""
        return digest(self.name, repr(sorted(self._record.items())), fingerprint(self._source))

    def _load(self) -> Launch:
        with self._lock:
            if self._launch is None:
                native = "library" in self._record
                self._launch = (
                    self._native_function() if native else self.contract.signature.flat(self._python_function())
                )
        return self._launch

    def _python_function(self) -> Launch:
        if "module" not in self._record:
            function: Launch = self._source
            return function
        module = importlib.import_module(self._record["module"])
        found: Launch = getattr(module, self._record["entry"])
        return found

    def _native_function(self) -> Launch:
        """The function of a library, after verifying that the library was built for this operator.

        Raises:
            KernelError: the library does not match.
        """
        manifest, symbol = read_manifest(), self._record["symbol"]
        file = manifest.folder / self._record["library"]
        where = f"{self.contract.qualname}: kernel {self.name!r} of {manifest.package}"
        if not hasattr(torch.ops.opwright_shipped, symbol):
            try:
                torch.ops.load_library(str(file))
            except OSError as error:
                raise KernelError(f"{where} cannot be loaded: {error}", fix=_AGAIN) from None
        if not hasattr(torch.ops.opwright_shipped, symbol):
            raise KernelError(f"{where}: {file.name} is not the library that was built for it", fix=_AGAIN)
        overload = getattr(torch.ops.opwright_shipped, symbol).default
        if schema_differs(overload, f"opwright_shipped::{symbol}{self._record['schema']}"):
            raise KernelError(
                f"{where}: {file.name} was built for another schema than {self._record['schema']}", fix=_AGAIN
            )
        return self.contract.signature.flat(call_directly(overload))

    def __repr__(self) -> str:
        return f"<{self._record['backend']} kernel {self.name!r} of {self.contract.qualname}>"


_AGAIN = "install the package again"
