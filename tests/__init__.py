"""The tests, one folder for each package of opwright."""

from pathlib import Path

# The checkout: documents and examples that tests read.
REPOSITORY = Path(__file__).parents[1]
