"""From a `Trace` to numbers: steps, utilization, and a cause for every idle nanosecond."""
