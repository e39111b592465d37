"""Tracing a running serving engine: its endpoints, its metrics, and the files that it writes.

One module per engine behind the `Engine` protocol (`engine.py`); `attach.py` puts them together.
What the engines' endpoints take and give is said in `docs/serving.md`, with the versions of their
sources that it was read from.
"""
