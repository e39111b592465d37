"""The floor for reading a trace: a bare typed decode, and nothing else.

    python benchmarks/bare_decode.py FILE

Reads the whole file into memory and has msgspec decode it in one call into typed structs with just
the fields hostgap's reader needs: `ph`, `cat`, `name`, `pid`, `tid`, `ts`, `dur`, and of `args`
the correlation, device, stream, bytes, kind, graph node, name and labels. Other fields are skipped
unread. `ts` and `dur` stay undecoded text (`msgspec.Raw`), as in hostgap's reader, which turns them
into exact integers afterwards: a float would round them. The garbage collector is off. No tables,
no times, no interning, no analysis; the structs are counted and dropped.

Its CPU time is that of the whole process: start of the interpreter, import of msgspec, reading,
decoding, freeing. Holding all events at once costs memory, and the kernel time to get it, which
a reader that decodes block by block does not pay.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import msgspec

Scalar = int | float | str | None


class Args(msgspec.Struct, gc=False):
    correlation: Scalar = None
    device: Scalar = None
    stream: Scalar = None
    bytes: Scalar = None
    kind: Scalar = None
    graph_node: Scalar = msgspec.field(default=None, name="graph node id")
    name: Scalar = None
    labels: Scalar = None


class Event(msgspec.Struct, gc=False):
    ph: str
    cat: str | None = None
    name: str = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    args: Args | None = None


class Document(msgspec.Struct, gc=False):
    events: list[Event] = msgspec.field(name="traceEvents")


def main() -> None:
    gc.disable()
    document = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Document)
    print(len(document.events))


if __name__ == "__main__":
    main()
