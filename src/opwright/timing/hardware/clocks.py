"""Detects throttling of the GPU with NVML, around samples. It needs no root, and changes no settings."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ClockWatch"]

# NVML's event reasons for lower clocks because of heat or power delivery.
# (The software power cap is not one: a busy card normally runs at it, and samples are kept.)
_THROTTLED = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_POWER_CAP = 0x04


@dataclass
class ClockWatch:
    """Watches the clocks of the current CUDA device. Without NVML, ``notes`` has one note about it."""

    notes: list[str] = field(default_factory=list)
    discarded: int = 0
    _handle: Any = None
    _nvml: Any = None

    def start(self, device_index: int) -> None:
        """Open NVML for a device. A missing NVML is a note, not an error."""
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(device_index)
            self._nvml = pynvml
        except ImportError:
            self.notes.append("clocks were not watched: nvidia-ml-py is not installed")
        except Exception as error:  # NVML raises its own classes, which are not importable without it
            self.notes.append(f"clocks were not watched: {error}")

    def throttled(self) -> str | None:
        """Why the device runs slower right now, or None."""
        if self._nvml is None:
            return None
        with contextlib.suppress(self._nvml.NVMLError):
            reasons = self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
            for bit, name in _THROTTLED.items():
                if reasons & bit:
                    return name
        return None

    def state(self) -> dict[str, float]:
        """Clock (MHz), power (W) and temperature (°C), as far as NVML has them."""
        if self._nvml is None:
            return {}
        nvml, found = self._nvml, {}
        with contextlib.suppress(nvml.NVMLError):
            found["sm_clock_mhz"] = float(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM))
        with contextlib.suppress(nvml.NVMLError):
            found["power_w"] = nvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3
        with contextlib.suppress(nvml.NVMLError):
            found["temperature_c"] = float(nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU))
        return found
