from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat

import pytest

from hostgap.errors import TraceError
from hostgap.trace.document import Document
from hostgap.trace.events import Event


class Blocks:
    """A source that hands out `data` in blocks of the given sizes, the last size over and over."""

    name = "t.json"
    truncated = ""

    def __init__(self, data: bytes, sizes: Iterable[int]) -> None:
        self.data = data
        self.at = 0
        self.sizes: Iterator[int] = iter(sizes)

    def read(self) -> bytes:
        start = self.at
        self.at += next(self.sizes)
        return self.data[start : self.at]


@dataclass
class Reading:
    """What came of a document: its events, and what it says of itself."""

    events: list[Event]
    document: Document

    @property
    def report(self) -> tuple[object, ...]:
        d = self.document
        return (d.truncated, d.damaged, dict(d.repaired), d.not_events, d.keys, d.metadata)

    @property
    def clean(self) -> bool:
        d = self.document
        return not (d.truncated or d.damaged or d.repaired or d.not_events)


ReadDocument = Callable[..., Reading]


@pytest.fixture(scope="session")
def read_document() -> ReadDocument:
    def read(data: bytes, sizes: Iterable[int] = (1 << 16,)) -> Reading:
        sizes = list(sizes)
        document = Document(Blocks(data, chain(sizes, repeat(sizes[-1]))))  # type: ignore[arg-type]
        events: list[Event] = []
        for block in document.blocks():
            if block is None:
                events.clear()
            else:
                events += block
        return Reading(events, document)

    return read


@pytest.fixture(scope="session")
def refusal(read_document: ReadDocument) -> Callable[..., TraceError]:
    """Reads what must be refused; the error, checked to be one line that names the file."""

    def read(data: bytes, sizes: Iterable[int] = (1 << 16,)) -> TraceError:
        with pytest.raises(TraceError) as caught:
            read_document(data, sizes)
        assert caught.value.message.startswith("t.json: ")
        assert "\n" not in caught.value.message + (caught.value.hint or "")
        return caught.value

    return read
