"""The gate: budgets and a committed baseline against a new trace, result or run."""
