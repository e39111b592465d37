"""The torch.profiler (Kineto) reader: Chrome trace JSON of torch 1.8 to 2.14, NVIDIA, AMD, CPU.

`Document` yields blocks of typed events; here each block is sorted by category and appended to the
columns of its table. What a category or name means stands in `vocabulary`.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostgap.errors import TraceError
from hostgap.trace import lookalikes
from hostgap.trace import vocabulary as vocab
from hostgap.trace.columns import MAX_NAME, Columns, Interner, Names, by_start
from hostgap.trace.document import Document
from hostgap.trace.events import Args, Event, Text
from hostgap.trace.ids import MAX_ROW, Threads, int64, int64s, row, row_id, row_text, stream_id
from hostgap.trace.join import match_calls
from hostgap.trace.model import (
    ApiCalls,
    CopyKind,
    Device,
    Frames,
    GpuKind,
    GpuOps,
    HostKind,
    HostOps,
    Int64,
    Memory,
    ReadReport,
    Thread,
    Trace,
)
from hostgap.trace.part import Keep, Table, chosen, wanted_events
from hostgap.trace.source import Source
from hostgap.trace.times import LONGEST, microseconds_to_ns

_HOST = {"start": np.int64, "end": np.int64, "thread": np.int32, "name": np.int32}
_GPU = {
    "start": np.int64,
    "end": np.int64,
    "device": np.int32,
    "stream": np.int32,
    "kind": np.int8,
    "name": np.int32,
    "correlation": np.int64,
    "graph_node": np.int64,
    "bytes": np.int64,
    "copy": np.int32,
}
_FLOW = frozenset("stf")  # arrows between events: correlation ids say the same
_NONE = -1
_NO_ARGS = Args()
_BATCH = 4096  # events handled at once: enough for numpy, few enough for the cache
_BATCH_TEXT = 8 << 20  # bytes of their text after which fewer are
MOST_ROWS = 200_000_000  # events that are kept, of all tables: some 8 GB
_MAX_SAMPLE = 200  # characters of what is only kept for a refusal


def read_kineto(
    source: Source, progress: Callable[[int], None] | None = None, keep: Keep | None = None
) -> Trace:
    """Read a torch.profiler trace.

    Args:
        source: the opened file.
        progress: called now and then with the compressed bytes read so far.
        keep: which of its events to keep; all by default.

    Raises:
        TraceError: not JSON, not such a trace, or too damaged; the message says which and where.
    """
    reader = _Reader(source, keep)
    batch: list[Event] = []
    begin = 0  # where the batch's text begins
    for block in reader.document.blocks():
        if block is None:
            reader.restart()
            batch = []
            continue
        batch += block
        if len(batch) >= _BATCH or reader.document.offset - begin > _BATCH_TEXT:
            reader.add(batch)
            batch = []
            begin = reader.document.offset
            if progress is not None:
                progress(source.consumed)
    reader.add(batch)
    return reader.trace()


class _Reader:
    """The tables while they are being filled."""

    def __init__(self, source: Source, keep: Keep | None = None) -> None:
        self.source = source
        self.keep = keep
        self.document = Document(source)
        self.restart()

    def restart(self) -> None:
        self.names = Names(MAX_NAME)
        self.threads = Threads()
        self.devices: Interner[int | str] = Interner()
        self.streams: Interner[int | str] = Interner()
        self.copies = Names(MAX_NAME)
        self.gpu = Columns(_GPU)
        self.api = Columns({**_HOST, "correlation": np.int64})
        self.host = Columns({**_HOST, "kind": np.int8})
        self.frames = Columns(_HOST)
        self.categories: Counter[str] = Counter()
        self.phases: Counter[str] = Counter()
        self.first_names: list[str] = []
        self.thread_names: dict[tuple[Any, Any], str] = {}
        self.groups: dict[int, str] = {}
        self.process_names: dict[Any, str] = {}
        self.process_labels: dict[Any, str] = {}
        self.seen_processes: list[str] = []
        self.cut_rows = 0  # names of threads and processes
        self.unreadable = 0
        self.negative_host = 0
        self.windows = 0  # profiler spans, and ends of recording, whichever are more
        self.window_ends = 0

    # --- blocks of events --------------------------------------------------------------------

    def add(self, events: list[Event]) -> None:
        """Append one block to the tables."""
        if sum(map(len, (self.gpu, self.api, self.host, self.frames))) > MOST_ROWS:
            raise TraceError(
                f"{self.source.name}: more than {MOST_ROWS:,} events",
                "read a part of it (--steps A:B), or record fewer steps",
            )
        buckets: defaultdict[str | None, list[Event]] = defaultdict(list)
        for event in events:
            phase = event.ph
            if phase == "X":
                buckets[event.cat].append(event)
            elif phase not in _FLOW:
                self._other(event)
        for category, bucket in buckets.items():
            self.phases["X"] += len(bucket)
            self.categories[(category or "")[:_MAX_SAMPLE]] += len(bucket)
            if self.keep is not None:
                bucket = wanted_events(self.keep, category or "", bucket)
                if not bucket:
                    continue
            if category in vocab.FRAME_CATEGORIES:
                self._host(bucket, self.frames)
            elif (kind := vocab.HOST_CATEGORIES.get(category or "")) is not None:
                self._host(bucket, self.host, kind=int(kind))
            elif category in vocab.API_CATEGORIES:
                ids = int64s([(e.args or _NO_ARGS).correlation for e in bucket], _NONE)
                self._host(bucket, self.api, correlation=ids)
            elif (gpu_kind := vocab.GPU_CATEGORIES.get(category or "")) is not None:
                self._gpu(bucket, gpu_kind)
            elif category == "Trace":
                self.windows += 1
            elif len(self.first_names) < 50:
                self.first_names += [event.name[:_MAX_SAMPLE] for event in bucket[:10]]
                self.seen_processes += [str(event.pid)[:_MAX_SAMPLE] for event in bucket[:10]]

    def _times(self, events: list[Event]) -> tuple[Int64, Int64, NDArray[np.bool_]]:
        n = len(events)
        tokens = [event.ts for event in events] + [event.dur for event in events]
        times, good = microseconds_to_ns(tokens)
        good = good[:n] & good[n:] & (times[n:] < LONGEST)
        return times[:n], times[:n] + times[n:], good

    def _thread(self, events: list[Event]) -> NDArray[np.int32]:
        pids, tids = [event.pid for event in events], [event.tid for event in events]
        if pids.count(pids[0]) == tids.count(tids[0]) == len(events):  # as good as always
            return np.full(len(events), self.threads[pids[0], tids[0]], np.int32)
        threads = self.threads
        return np.array([threads[pair] for pair in zip(pids, tids, strict=True)], np.int32)

    def _host(self, events: list[Event], table: Columns, **extra: Any) -> None:
        start, end, good = self._times(events)
        if self.keep is not None:
            which: Table = (
                "api" if table is self.api else "frames" if table is self.frames else "host"
            )
            wanted = self.keep.host(which, start, np.maximum(start, end)) | ~good
            if not wanted.all():
                events = [event for event, ok in zip(events, wanted.tolist(), strict=True) if ok]
                start, end, good = start[wanted], end[wanted], good[wanted]
                extra = chosen(extra, wanted)
                if not events:
                    return
        names = self.names
        name = np.array([names[event.name] for event in events], np.int32)
        thread = self._thread(events)
        keep = good & (end >= start)
        if not keep.all():
            # an API call counts even when its times are broken; nothing else does
            if table is self.api:
                end = np.maximum(start, end)
                keep = good
            self.unreadable += int(np.count_nonzero(~good))
            self.negative_host += int(np.count_nonzero(good & ~keep))
            start, end, name, thread = start[keep], end[keep], name[keep], thread[keep]
            extra = chosen(extra, keep)
        table.append(start=start, end=end, thread=thread, name=name, **extra)

    def _gpu(self, events: list[Event], kind: GpuKind) -> None:
        start, end, good = self._times(events)
        if not good.all():
            self.unreadable += int(np.count_nonzero(~good))
            events = [event for event, ok in zip(events, good, strict=True) if ok]
            start, end = start[good], end[good]
        if self.keep is not None:
            ids = np.zeros(len(events), np.int64)
            ids[:] = int64s([(e.args or _NO_ARGS).correlation for e in events], _NONE)
            wanted = self.keep.gpu(start, end, ids)
            events = [event for event, ok in zip(events, wanted.tolist(), strict=True) if ok]
            start, end = start[wanted], end[wanted]
        names, copies = self.names, self.copies
        args = [event.args or _NO_ARGS for event in events]
        copy: list[int] | int = _NONE
        if kind is GpuKind.COPY:
            copy = [copies[f"{e.name} {a.kind}"] for e, a in zip(events, args, strict=True)]
        for arg in args:
            if arg.group is not None:
                self.groups[int64(arg.correlation, _NONE)] = sys.intern(row_text(arg.group))
        self.gpu.append(
            start=start,
            end=end,
            device=self._interned(
                self.devices, [a.device for a in args], [e.pid for e in events], row_id
            ),
            stream=self._interned(
                self.streams, [a.stream for a in args], [e.tid for e in events], stream_id
            ),
            kind=int(kind),
            name=[names[e.name] for e in events],
            correlation=int64s([a.correlation for a in args], _NONE),
            graph_node=int64s([a.graph_node for a in args], 0),
            bytes=int64s([a.bytes for a in args], _NONE),
            copy=copy,
        )

    def _interned(
        self,
        codes: Interner[int | str],
        values: list[Text],
        rows: list[Text],
        normal: Callable[[Text], int | str],
    ) -> list[int]:
        """Codes of devices or streams; where no argument tells, the row (pid or tid) does."""
        told = [row if value is None else value for value, row in zip(values, rows, strict=True)]
        known = {value: codes[normal(value)] for value in dict.fromkeys(told)}
        return [known[value] for value in told]

    def _other(self, event: Event) -> None:
        """Metadata, instants, and the phases only other tools write."""
        self.phases[event.ph[:_MAX_SAMPLE]] += 1
        args = event.args
        if event.ph == "M" and args is not None:
            if event.name == "thread_name" and args.name is not None:
                self.thread_names[row(event.pid), row(event.tid)] = self._row_name(args.name)
            elif event.name == "process_name" and args.name is not None:
                self.process_names[row(event.pid)] = self._row_name(args.name)
            elif event.name == "process_labels" and args.labels is not None:
                self.process_labels[row(event.pid)] = str(args.labels)[:MAX_ROW]
        elif event.ph == "i" and event.name == "Record Window End":
            self.window_ends += 1
        elif len(self.first_names) < 50:
            self.first_names.append(event.name[:_MAX_SAMPLE])
            self.seen_processes.append(str(event.pid)[:_MAX_SAMPLE])
            self.categories[(event.cat or "")[:_MAX_SAMPLE]] += 1

    def _row_name(self, name: Text) -> str:
        text = str(name)
        self.cut_rows += len(text) > MAX_ROW
        return text[:MAX_ROW]

    # --- the finished trace ------------------------------------------------------------------

    def trace(self) -> Trace:
        """Sort, join and freeze the tables."""
        self._refuse_what_is_no_trace()
        names, roles = self._api_names()
        api = _sorted(
            ApiCalls(
                start=self.api.pop("start"),
                end=self.api.pop("end"),
                thread=self.api.pop("thread"),
                name=self.api.pop("name"),
                role=np.zeros(0, np.int8),
                correlation=self.api.pop("correlation"),
            ),
            roles,
        )
        gpu, negative, unset, ambiguous = self._gpu_ops(api)
        backends = [vocab.UNREAD_BACKENDS[c] for c in self.categories if c in vocab.UNREAD_BACKENDS]
        document = self.document
        return Trace(
            source="kineto",
            file=self.source.name,
            gpu_ops=gpu,
            api_calls=api,
            host_ops=self._host_ops(names),
            frames=Frames(*by_start([self.frames.pop(c) for c in _HOST])),
            names=names,
            threads=tuple(
                Thread(
                    row_id(pid),
                    row_id(tid),
                    self.thread_names.get((pid, tid), ""),
                    self.process_names.get(pid, ""),
                )
                for pid, tid in self.threads
            ),
            devices=self._device_names(),
            streams=tuple(self.streams),
            metadata=document.metadata,
            groups=self.groups,
            report=ReadReport(
                events=document.events,
                truncated=document.truncated,
                damaged=document.damaged,
                first_damage=document.first_damage,
                repaired=self._repairs(),
                negative=negative,
                negative_host=self.negative_host,
                unset=unset,
                unreadable_times=self.unreadable,
                ambiguous_correlations=ambiguous,
                profiler_cycles=max(self.windows, self.window_ends),
                unread_backend=backends[0] if backends else "",
            ),
        )

    def _repairs(self) -> dict[str, int]:
        """What was repaired or cut -> in how many events."""
        cut = {
            "names over 64 KiB": self.names.cut,
            "names of threads or processes over 1 KiB": self.cut_rows,
        }
        return {**self.document.repaired, **{what: n for what, n in cut.items() if n}}

    def _host_ops(self, names: tuple[str, ...]) -> HostOps:
        start, end, thread, name, kind = by_start([self.host.pop(c) for c in (*_HOST, "kind")])
        marks = np.array([vocab.ANNOTATION_NAMES.match(text) is not None for text in names])
        if len(name):
            kind = np.where(marks[name], HostKind.ANNOTATION, kind).astype(np.int8)
        return HostOps(start, end, thread, name, kind)

    def _refuse_what_is_no_trace(self) -> None:
        document = self.document
        if not document.has_events:
            refusal = lookalikes.document(document.keys, document.metadata)
        elif any(
            self.categories[category]
            for category in (
                *vocab.GPU_CATEGORIES,
                *vocab.API_CATEGORIES,
                *vocab.HOST_CATEGORIES,
                *vocab.FRAME_CATEGORIES,
            )
        ):
            return
        else:
            refusal = lookalikes.events(
                lookalikes.Sample(
                    keys=document.keys,
                    is_list=document.is_list,
                    events=document.events,
                    categories=self.categories,
                    phases=self.phases,
                    process_names=list(self.process_names.values()),
                    processes=self.seen_processes,
                    names=[*self.first_names, *list(self.thread_names.values())[:50]],
                    without_phase=document.not_events,
                    shape=document.shape,
                )
            )
        what = refusal.what
        if not document.truncated and not document.first_damage:
            raise lookalikes.OtherDocument(f"{self.source.name}: {what}", refusal.hint)
        if document.truncated:
            what += f" ({document.truncated})"
        else:
            what += f" (and broken at {document.first_damage})"
        raise TraceError(f"{self.source.name}: {what}", refusal.hint)

    def _api_names(self) -> tuple[tuple[str, ...], NDArray[np.int8]]:
        """All names, and the API role of each of them."""
        names = tuple(
            vocab.api_name(name) if name[:2] in ("cu", "hi") else name for name in self.names
        )
        return names, np.array([vocab.api_role(name) for name in names], np.int8)

    def _gpu_ops(self, api: ApiCalls) -> tuple[GpuOps, int, int, int]:
        start, end = self.gpu["start"], self.gpu["end"]
        unset = (start == 0) & (end == 0)
        negative = end < start
        order = np.lexsort((end, start))
        order = order[~(unset | negative)[order]]
        del start, end
        gpu = {name: self.gpu.pop(name)[order] for name in _GPU}  # so that none stands twice
        copies = [vocab.copy_of(text) for text in self.copies]
        copies.append((CopyKind.NONE, Memory.UNKNOWN, Memory.UNKNOWN))  # code -1
        table = np.array(copies, np.int8).reshape(-1, 3)[gpu.pop("copy")]
        call, ambiguous = match_calls(gpu["correlation"], api.correlation, api.role)
        ops = GpuOps(
            call=call,
            copy_kind=table[:, 0].copy(),
            src_mem=table[:, 1].copy(),
            dst_mem=table[:, 2].copy(),
            **gpu,
        )
        return ops, int(negative.sum()), int(unset.sum()), ambiguous

    def _device_names(self) -> tuple[Device, ...]:
        properties = self.document.metadata.get("deviceProperties")
        known: dict[Any, str] = {}
        if isinstance(properties, list):
            for entry in properties:
                if isinstance(entry, dict) and isinstance(entry.get("id"), int):
                    known[entry["id"]] = str(entry.get("name") or "")
        return tuple(Device(device, known.get(device, "")) for device in self.devices)


def _sorted(api: ApiCalls, roles: NDArray[np.int8]) -> ApiCalls:
    start, end, thread, name, correlation = by_start(
        [api.start, api.end, api.thread, api.name, api.correlation]
    )
    return ApiCalls(start, end, thread, name, roles[name], correlation)
