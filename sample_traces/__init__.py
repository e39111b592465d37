"""Small real traces from an H200; installed as the package `hostgap.sample_traces`."""
