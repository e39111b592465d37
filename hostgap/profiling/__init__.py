"""Running a target: what is run, how it is measured without and with a profiler, what is kept."""
