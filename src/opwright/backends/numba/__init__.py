"""Kernels in Numba: functions for a CPU, launchers of ``numba.cuda`` kernels for a GPU."""
