"""What the simulator's compiler refuses: an error of the source, or a limit of the simulator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from opwright.backends.build_tools import build_tools
from opwright.backends.cuda.nvrtc import compile_device_code
from opwright.backends.simulation import CudaSource
from opwright.errors import CompileError, KernelError, KernelRefusedError, NotSimulatedError

__all__ = ["telling_limits_from_errors"]

_ARCH = "sm_90"  # unless the source's options have another


@contextlib.contextmanager
def telling_limits_from_errors(source: CudaSource, kernel: str) -> Iterator[None]:
    """A block that compiles a kernel for the simulator. If that fails, NVRTC decides whether the source is wrong.

    Raises:
        CompileError: NVRTC does not compile it, or is not installed.
        NotSimulatedError: NVRTC compiles it, so that the simulator lacks something, such as a part of CUB; or the
            simulator knows what it lacks, such as an instruction of PTX.
    """
    try:
        yield
    except NotSimulatedError:
        raise
    except KernelRefusedError as error:
        raise NotSimulatedError(error.message, fix=error.fix) from error
    except CompileError as error:
        try:
            compile_device_code(source, [kernel] if "<" in kernel else [], _ARCH, build_tools())
        except KernelError:
            raise error from None
        first = error.message.partition("\n")[2].strip().partition("\n")[0]
        raise NotSimulatedError(
            f"{source.name}: the simulator cannot compile {kernel}, which NVRTC compiles: {first}", fix="use a GPU"
        ) from error
