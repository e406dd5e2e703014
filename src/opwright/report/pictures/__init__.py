"""Plots of benchmarks, drawn with matplotlib."""
