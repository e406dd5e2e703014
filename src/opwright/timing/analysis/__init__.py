"""What measured times say: statistics, crossovers between kernels, regressions. Pure functions of records."""
