"""A package whose entry points name what is missing, or something else."""

NUMBER = 3
