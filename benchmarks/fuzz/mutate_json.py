"""Mutations of a trace document, then of the text that it is written as."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import values

Events = list[dict[str, Any]]
_MARK = "\x02token:"  # before what is written as it stands, and not as a string
_TOKEN = re.compile(rb'"(?:\\u0002|\x02)token:((?:[^"\\]|\\.)*)"', re.S)
_KEYS = (
    "ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args", "bp", "s",
    "args.correlation", "args.device", "args.stream", "args.bytes", "args.graph node id",
    "args.graph id", "args.External id", "args.kind", "args.name", "args.labels",
    "args.Python id", "args.Python parent id", "args.External id", "args.cbid",
    "args.est. achieved occupancy %", "args.grid", "args.block",
)  # fmt: skip


def mutate(document: Any, rng: random.Random, others: list[Any]) -> Any:
    """The document with one structured change, in place where that is possible."""
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list) or rng.random() < 0.04:
        return _document(document, rng)
    usable = [event for event in events if isinstance(event, dict)]
    if not usable:
        return _document(document, rng)
    other = rng.choice(others)
    more = other.get("traceEvents") if isinstance(other, dict) else other
    rng.choice(_CHANGES)(events, usable, rng, more if isinstance(more, list) else [])
    return document


def _document(document: Any, rng: random.Random) -> Any:
    if not isinstance(document, dict) or rng.random() < 0.1:
        return values.value(rng)
    key = rng.choice((*document, "deviceProperties", "traceEvents", "distributedInfo", "x"))
    kind = rng.randrange(5)
    if kind == 0:
        document.pop(key, None)
    elif kind == 1 and isinstance(document.get("traceEvents"), list):
        return document["traceEvents"]
    elif kind == 2:
        device = {"id": values.value(rng), "name": values.value(rng)}
        document["deviceProperties"] = [device, values.value(rng)]
    elif kind == 3:
        items = list(document.items())
        rng.shuffle(items)
        return dict(items)
    else:
        document[key] = values.value(rng)
    return document


# --- one change each ---------------------------------------------------------------------------


def _put(event: dict[str, Any], path: str, value: Any) -> None:
    if path.startswith("args."):
        args = event.get("args")
        if not isinstance(args, dict):
            args = event["args"] = {}
        args[path[5:]] = value
    else:
        event[path] = value


def _get(event: dict[str, Any], path: str) -> Any:
    if path.startswith("args."):
        args = event.get("args")
        return args.get(path[5:]) if isinstance(args, dict) else None
    return event.get(path)


def _set(events: list[Any], usable: Events, rng: random.Random, more: list[Any]) -> None:
    value = values.value(rng) if rng.random() < 0.7 else _MARK + rng.choice(values.TOKENS)
    _put(rng.choice(usable), rng.choice(_KEYS), value)


def _set_all(events: list[Any], usable: Events, rng: random.Random, more: list[Any]) -> None:
    """One value in every event of a category."""
    category = rng.choice(usable).get("cat")
    path, value, share = rng.choice(_KEYS), values.value(rng), rng.choice((0.3, 1.0))
    for event in usable:
        if event.get("cat") == category and rng.random() < share:
            _put(event, path, value)


def _rename(events: list[Any], usable: Events, rng: random.Random, more: list[Any]) -> None:
    """Names that mean something, in events that are otherwise as they were."""
    category = rng.choice(usable).get("cat")
    names = [values.text(rng) for _ in range(rng.choice((1, 1, 3)))]
    for event in usable:
        if event.get("cat") == category and rng.random() < 0.6:
            event["name"] = rng.choice(names)


def _swap(events: list[Any], usable: Events, rng: random.Random, more: list[Any]) -> None:
    path, one, two = rng.choice(_KEYS), rng.choice(usable), rng.choice(usable)
    first, second = _get(one, path), _get(two, path)
    _put(one, path, second)
    _put(two, path, first)


def _drop_key(events: list[Any], usable: Events, rng: random.Random, more: list[Any]) -> None:
    event, path = rng.choice(usable), rng.choice(_KEYS)
    if path.startswith("args.") and isinstance(event.get("args"), dict):
        event["args"].pop(path[5:], None)
    else:
        event.pop(path, None)


def _drop(events: list[Any], usable: Events, rng: random.Random, more: list[Any]) -> None:
    kind = rng.randrange(3)
    if kind == 0:
        category = rng.choice(usable).get("cat")
        events[:] = [e for e in events if not isinstance(e, dict) or e.get("cat") != category]
    elif kind == 1:
        low = rng.randrange(len(events))
        del events[low : low + rng.choice((1, 5, 40))]
    else:
        events[:] = [e for e in events if rng.random() < 0.7]


def _repeat(events: list[Any], usable: Events, rng: random.Random, more: list[Any]) -> None:
    """An event again and again, at its time or ever later."""
    event = rng.choice(usable)
    step = rng.choice((0, 0, 1, 0.001, 50, 1e6))
    for i in range(rng.choice((1, 2, 9, 60))):
        copy = {**event, "args": dict(_args(event))}
        if step and isinstance(copy.get("ts"), int | float):
            copy["ts"] = copy["ts"] + step * (i + 1)
        events.insert(rng.randrange(len(events) + 1), copy)


def _args(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _shuffle(events: list[Any], usable: Events, rng: random.Random, more: list[Any]) -> None:
    if rng.random() < 0.5:
        rng.shuffle(events)
    else:
        events.reverse()


def _shift(events: list[Any], usable: Events, rng: random.Random, more: list[Any]) -> None:
    """Times of one kind of event moved, stretched, or made equal."""
    category = rng.choice(usable).get("cat") if rng.random() < 0.7 else None
    by = rng.choice((-1e9, -5000, -10, -0.001, 0.001, 10, 5000, 1e9, 1e15, -1e15))
    scale = rng.choice((1, 1, 1, 0, -1, 1e-6, 1000))
    key = rng.choice(("ts", "ts", "dur"))
    for event in usable:
        time = event.get(key)
        mine = category is None or event.get("cat") == category
        if mine and isinstance(time, int | float) and not isinstance(time, bool):
            event[key] = time * scale + by


def _steps(events: list[Any], usable: Events, rng: random.Random, more: list[Any]) -> None:
    """Annotations that overlap, repeat, nest, count oddly or lie on another row."""
    kind = rng.randrange(5)
    name = rng.choice(("ProfilerStep#{}", "execute_context_1({})_generation_2(2)", "step {}", "{}"))
    base = rng.choice(usable)
    start = base.get("ts") if isinstance(base.get("ts"), int | float) else 0.0
    number = rng.choice((0, 3, -5, 10**20))
    for i in range(rng.choice((1, 2, 5, 30))):
        event = {
            "ph": "X",
            "cat": rng.choice(("user_annotation", "gpu_user_annotation", "cpu_op")),
            "name": name.format(number + (i if kind != 2 else 0)),
            "pid": base.get("pid"),
            "tid": base.get("tid"),
            "ts": start + i * rng.choice((0, 1, 100, 2000.5)),
            "dur": rng.choice((0, 1, 50, 2000, 1e7, -1)),
            "args": {},
        }
        events.insert(0 if kind == 1 else len(events), event)


def _ids(events: list[Any], usable: Events, rng: random.Random, more: list[Any]) -> None:
    """Ids of launches, streams, devices, threads: all alike, all different, or exchanged."""
    path = rng.choice(
        ("args.correlation", "args.stream", "args.device", "tid", "pid", "args.graph node id")
    )
    kind, base = rng.randrange(3), rng.choice((0, 1, -3, 2**31, 2**62))
    known = [_get(event, path) for event in usable]
    for i, event in enumerate(usable):
        if kind == 0:
            _put(event, path, base)
        elif kind == 1:
            _put(event, path, base + i)
        else:
            _put(event, path, rng.choice(known))


def _foreign(events: list[Any], usable: Events, rng: random.Random, more: list[Any]) -> None:
    """Events of another trace, or things that are none, among these."""
    if more and rng.random() < 0.8:
        low = rng.randrange(len(more))
        chosen = json.loads(json.dumps(more[low : low + rng.choice((1, 10, 80))]))
        at = rng.randrange(len(events) + 1)
        events[at:at] = chosen
    else:
        events.insert(rng.randrange(len(events) + 1), values.value(rng))


def _category(events: list[Any], usable: Events, rng: random.Random, more: list[Any]) -> None:
    """One kind of event turned into another."""
    category, name = rng.choice(usable).get("cat"), rng.choice(values.words())
    if rng.random() < 0.6:
        name = rng.choice(usable).get("cat") or name
    for event in usable:
        if event.get("cat") == category and rng.random() < 0.7:
            event["cat"] = name


_CHANGES: tuple[Callable[[list[Any], Events, random.Random, list[Any]], None], ...] = (
    _set, _set, _set, _set_all, _set_all, _rename, _rename, _swap, _drop_key, _drop, _repeat,
    _shuffle, _shift, _shift, _shift, _steps, _steps, _ids, _ids, _foreign, _category,
)  # fmt: skip


# --- as text -----------------------------------------------------------------------------------


def written(document: Any, rng: random.Random) -> bytes:
    """The document as text, in one of the ways in which tools write it."""
    encoded = values.dumped(document, ascii_only=rng.random() < 0.5)
    if rng.random() < 0.25:
        encoded = encoded.replace(b"}, {", b"},\n  {").replace(b": ", b":")
    encoded = _TOKEN.sub(lambda found: json.loads(b'"' + found[1] + b'"').encode(), encoded)
    kind = rng.randrange(12)
    if kind == 0:
        return b"\xef\xbb\xbf" + encoded
    if kind == 1 and isinstance(document, dict):
        key = rng.choice((b"traceEvents", b"schemaVersion", b"deviceProperties"))
        also = values.dumped(values.value(rng))
        return encoded.rstrip()[:-1] + b', "' + key + b'": ' + also + b"}"
    if kind == 2:
        return encoded + rng.choice((b"\n", b"\0\0", b"x", encoded[:200], encoded))
    return encoded
