"""The properties of known GPUs, compared with those of the GPU of this machine."""

from __future__ import annotations

import pytest
import torch

from opwright.backends.inductor.target_gpus import _KNOWN, target_gpu
from opwright.errors import KernelRefusedError


def test_an_unknown_architecture_is_refused_with_those_that_are_known() -> None:
    for arch in ("sm_91", "sm_90a", "gfx942", ""):
        with pytest.raises(KernelRefusedError, match=f"the properties of '{arch}' are not known") as refused:
            target_gpu(arch)
        assert "sm_80, sm_86, sm_89, sm_90, sm_100, sm_120" in str(refused.value)


def test_an_architecture_is_called_by_its_capability() -> None:
    assert all(gpu.arch == "sm_{}{}".format(*gpu.capability) for gpu in _KNOWN)
    assert target_gpu("sm_90").name.startswith("NVIDIA H100")


@pytest.mark.gpu
def test_the_figures_are_those_of_the_gpu_that_is_here() -> None:
    device = torch.cuda.get_device_properties(0)
    try:
        gpu = target_gpu(f"sm_{device.major}{device.minor}")
    except KernelRefusedError as error:
        pytest.skip(str(error))
    assert gpu.threads == device.max_threads_per_multi_processor
    assert gpu.registers == device.regs_per_multiprocessor
    assert gpu.warp_size == device.warp_size
    assert gpu.shared_memory == device.shared_memory_per_block_optin
    if device.name == gpu.name:
        assert gpu.multiprocessors == device.multi_processor_count
