"""The names that a timeline shows, each once, short, and safe to show anywhere."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from hostgap.output.printable import printable

LONGEST = 240  # characters of a name
MOST = 30_000  # distinct names; the rarest beyond it share one entry
MOST_CHARACTERS = 1_500_000  # of all names together, before they are cut to SHORT
SHORT = 60
LEFT_OUT = "(name left out: too many)"
_ADDRESS = re.compile(r" (?:object )?at 0x[0-9a-fA-F]+")


class Names:
    """Codes of `Trace.names` -> indices of the page's list, of which 0 is "" (none).

    Args:
        names: all names of the trace.
        used: for each, how many events carry it. Frequent names get small indices, which pack well.
    """

    def __init__(self, names: tuple[str, ...], used: NDArray[np.int64]) -> None:
        codes = np.argsort(-used, kind="stable")
        codes = codes[used[codes] > 0]
        self.left_out = max(0, len(codes) - MOST)
        texts = [_shown(names[code], LONGEST) for code in codes[:MOST].tolist()]
        if sum(map(len, texts)) > MOST_CHARACTERS:
            texts = [_shown(text, SHORT) for text in texts]
        # objects of one type have one name once their addresses are gone
        index: dict[str, int] = {"": 0}
        self._index = np.zeros(len(names) + 1, np.int64)  # the last is that of code -1
        for code, text in zip(codes[:MOST].tolist(), texts, strict=True):
            self._index[code] = index.setdefault(text, len(index))
        if self.left_out:
            self._index[codes[MOST:]] = index.setdefault(LEFT_OUT, len(index))
        self.texts = list(index)

    def of(self, codes: NDArray[np.signedinteger]) -> NDArray[np.int64]:
        """Indices of n codes; 0 for -1."""
        return np.asarray(self._index[codes])


def _shown(name: str, longest: int) -> str:
    return printable(_ADDRESS.sub("", name), longest) or "(empty)"
