"""Findings on the lines that they are about: SARIF, and annotations of GitHub."""
