"""Fixes: one file each; the ladder that applies, re-measures and proves them."""
