"""From a `Trace` to numbers: intervals, steps, utilization, and a cause for every idle nanosecond."""
