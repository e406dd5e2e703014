"""Records and views on a terminal: a file for each command; plain text where there is none."""
