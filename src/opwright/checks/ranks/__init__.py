"""The check of operators that communicate: every rank of a group, in a process of its own."""
