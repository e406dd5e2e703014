"""Analyses measured times: statistics, crossovers between kernels, regressions. Pure functions of records."""
