"""Two traces, results or sets of runs side by side."""
