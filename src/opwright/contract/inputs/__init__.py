"""Test inputs, derived from a contract: which cases there are, and the arguments of a case."""
