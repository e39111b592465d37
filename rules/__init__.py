"""The rules: one file each, named after its code (`hg101_scalar_read.py`).

Stands at the top of the repository because rules are what a contributor touches most, and is
installed as the package `hostgap.rules`.
"""
