"""Many traces at once: the ranks of one job, analysed side by side and held against each other."""
