"""Contracts that a task states, in JSON: definitions, workloads and solutions."""
