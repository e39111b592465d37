"""Places in the user's source, as a gate compares them: by function and op chain, never by line."""

from __future__ import annotations

import hashlib

from hostgap.diagnosis.model import Site
from hostgap.gate.model import Allow

ARROW = " > "


def file_parts(path: str) -> list[str]:
    """The parts of a path of any system."""
    return [part for part in path.replace("\\", "/").split("/") if part not in ("", ".")]


def same_file(one: str, other: str) -> bool:
    """Whether two paths may be one file's, of which a trace may have only the end."""
    short, long = sorted((file_parts(one), file_parts(other)), key=len)
    return bool(short) and long[-len(short) :] == short


def in_chain(part: str, chain: str) -> bool:
    """Whether the ops of `part` stand one after the other in `chain`."""
    wanted, ops = part.split(ARROW), chain.split(ARROW)
    n = len(wanted)
    return any(ops[i : i + n] == wanted for i in range(len(ops) - n + 1))


def allows(entry: Allow, site: Site | None) -> bool:
    """Whether an entry of the allow list means this place.

    What the entry says must not contradict what the trace knows, and one of function and op must
    be known: a trace with stacks names functions, one without names ops.
    """
    if site is None:
        return False
    agree = 0
    if entry.function is not None and site.function is not None:
        if entry.function != site.function:
            return False
        agree += 1
    if entry.op is not None and site.op is not None:
        if not in_chain(entry.op, site.op):
            return False
        agree += 1
    if entry.file is not None and site.file is not None and not same_file(entry.file, site.file):
        return False
    return agree > 0


def same_place(one: Site | None, other: Site | None) -> bool:
    """Whether two places are one, lines aside: the same function, or where one of them has none,
    the same ops."""
    if one is None or other is None:
        return one is other
    if one.function is not None and other.function is not None:
        known = one.file is not None and other.file is not None
        return one.function == other.function and (
            not known or same_file(one.file or "", other.file or "")
        )
    return one.op is not None and one.op == other.op


def fingerprint(
    what: str, file: str | None = None, function: str | None = None, op: str | None = None
) -> str:
    """A name of a problem that stays the same when lines and folders move."""
    name = file_parts(file)[-1] if file else ""
    text = "\0".join((what, name, function or "", op or ""))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
