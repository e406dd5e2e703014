"""Records and views on a terminal, one file for each command; plain text without a terminal."""
