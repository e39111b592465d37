"""The `Diagnosis`: the one object every output format is a view of."""
