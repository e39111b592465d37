"""From a file to a `Trace`: readers, the tables they fill, integrity, redaction."""
