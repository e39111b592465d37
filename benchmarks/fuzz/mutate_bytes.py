"""Mutations of a file's bytes: flips, cuts, copies, and the compressions around it."""

from __future__ import annotations

import gzip
import io
import random
import zlib

_BYTES = (0, 0xFF, 0x7F, 0x80, 0x22, 0x5C, 0x7B, 0x7D, 0x5B, 0x5D, 0x2C, 0x0A, 0x1B, 0xC0, 0xED)


def damage(data: bytes, rng: random.Random) -> bytes:
    """The bytes with one kind of damage."""
    if not data:
        return bytes(rng.choice(_BYTES) for _ in range(rng.randrange(40)))
    kind, at = rng.randrange(9), rng.randrange(len(data))
    length = rng.choice((1, 2, 8, 60, 700, 4096))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + data[at + length :]
    if kind == 2:
        return data[:at] + data[at : at + length] * rng.choice((2, 3, 20)) + data[at + length :]
    if kind == 3:
        return data[:at] + bytes(rng.choice(_BYTES) for _ in range(length % 61)) + data[at:]
    if kind == 4:
        other = rng.randrange(len(data))
        return data[:at] + data[other : other + length] + data[at:]
    if kind == 5:
        return data[at:] + data[:at]
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 40))):
        spot = rng.randrange(len(changed))
        changed[spot] = rng.choice(_BYTES) if kind < 8 else changed[spot] ^ 1 << rng.randrange(8)
    return bytes(changed)


def compressed(data: bytes, rng: random.Random) -> bytes:
    """The bytes in gzip or zstd, whole or not."""
    kind = rng.randrange(8)
    if kind == 0:
        half = len(data) // 2
        packed = gzip.compress(data[:half], 1) + gzip.compress(data[half:], 1)
    elif kind == 1:
        import zstandard

        packed = zstandard.compress(data, 1)
    elif kind == 2:
        packed = zlib.compress(data, 1)
    elif kind == 3:
        stream = io.BytesIO()
        with gzip.GzipFile(filename="../" * 9 + "etc\x1b[2J", mode="wb", fileobj=stream) as out:
            out.write(data)
        packed = stream.getvalue()
    else:
        packed = gzip.compress(data, rng.choice((0, 1)))
    if rng.random() < 0.4:
        packed = damage(packed, rng)
    return packed + (b"\0" * 100 if rng.random() < 0.1 else b"")
