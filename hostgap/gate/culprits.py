"""Which places a failed check is about: waits by their site, everything else by its findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from hostgap.diagnosis.model import Diagnosis, Finding, Site, SyncSite
from hostgap.gate.baseline import Entry
from hostgap.gate.metrics import Metric, is_sync
from hostgap.gate.model import Allow, Culprit
from hostgap.gate.places import allows, fingerprint, same_place

MOST = 50  # places of one check

# The rules whose findings explain a metric, by the beginnings of their codes.
_RULES: dict[str, tuple[str, ...]] = {
    "sync_calls_per_step": ("HG10", "HG11"),
    "blocking_syncs_per_step": ("HG10", "HG11"),
    "launches_per_step": ("HG2", "HG30"),
    "graph_launches_per_step": ("HG302", "HG303"),
    "copies_per_step": ("HG10", "HG110", "HG206", "HG305", "HG60"),
    "pageable_copies_per_step": ("HG104", "HG109", "HG602"),
    "allocs_per_step": ("HG4",),
    "gpu_ops_in_graphs": ("HG3",),
}
_ANY = ("HG1", "HG2", "HG3", "HG4", "HG5", "HG6")
_SYNC_RULES = ("HG101", "HG102", "HG103", "HG104", "HG105", "HG106", "HG107", "HG108")


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of a diagnosis, with the allow list taken off.

    Attributes:
        left: share of the calls that are not allowed; 1 where nothing is.
        allowed: calls a step that are.
        allowed_copies: copies a step that these wait for.
        culprits: places whose calls are not all allowed, the most frequent first.
        copies: those of them that are new and wait for a copy.
        stale: entries that matched nothing.
    """

    left: float
    allowed: float
    allowed_copies: float
    culprits: list[Culprit]
    copies: list[Culprit]
    stale: list[Allow]


def waits_of(diagnosis: Diagnosis, allow: Sequence[Allow], entry: Entry | None) -> Waits:
    """Hold the waits of a diagnosis against the allow list.

    Args:
        diagnosis: of the trace.
        allow: what is meant.
        entry: of the baseline, which says what was there before.
    """
    n = max(1, diagnosis.steps.count)
    syncs = [sync for sync in diagnosis.syncs if sync.count and is_sync(sync)]
    room = [each.per_step * n for each in allow]
    matched = [False] * len(allow)
    total = left = copies = 0.0
    culprits, for_copy = [], []
    for sync in syncs:
        finding = _finding_of(diagnosis, sync)
        # A finding's site may hold more than the call's own: the line that the site pass saw.
        site = _fuller(sync.site, finding)
        count = float(sync.count)
        total += count
        for i, each in enumerate(allow):
            if allows(each, site) or allows(each, sync.site):
                matched[i] = True
                taken = min(room[i], count)
                room[i] -= taken
                count -= taken
                copies += taken if sync.copy is not None else 0.0
        left += count
        if count > 1e-9:
            culprits.append(_of_sync(sync, site, finding, count / n, entry))
            for_copy.append(sync.copy is not None)
    culprits = _numbered(culprits)
    new_copies = [c for c, copied in zip(culprits, for_copy, strict=True) if copied and c.new]
    culprits.sort(key=lambda c: (c.new is False, -c.per_step))
    stale = [each for each, seen in zip(allow, matched, strict=True) if not seen]
    share = left / total if total else 1.0
    allowed = (total - left) / n
    return Waits(share, allowed, copies / n, culprits[:MOST], new_copies[:MOST], stale)


def culprits_of(metric: Metric, diagnosis: Diagnosis) -> list[Culprit]:
    """Findings that explain a metric, the costliest first: each place once."""
    codes = _RULES.get(metric.name, _ANY)
    worth = metric.name not in _RULES  # of shares and times only what costs something
    found: dict[tuple[object, ...], Culprit] = {}
    for finding in diagnosis.findings:
        if finding.code.startswith(codes) and not (worth and finding.severity == "info"):
            site = finding.site
            made = _culprit(
                finding.code,
                finding.title,
                site,
                finding.count_per_step,
                None,
                finding.advice,
            )
            found.setdefault((made.code, made.file, made.line, made.function, made.op), made)
    return _numbered(list(found.values())[:MOST])


def _numbered(culprits: list[Culprit]) -> list[Culprit]:
    """With fingerprints of their own: alike ones in one function are told apart by their order."""
    seen: Counter[str] = Counter()
    result = {}
    for i, one in sorted(enumerate(culprits), key=lambda pair: pair[1].line or 0):
        seen[one.fingerprint] += 1
        n = seen[one.fingerprint]
        name = one.fingerprint if n == 1 else fingerprint(f"{one.fingerprint} {n}")
        result[i] = msgspec.structs.replace(one, fingerprint=name)
    return [result[i] for i in range(len(culprits))]


def _of_sync(
    sync: SyncSite,
    site: Site | None,
    finding: Finding | None,
    per_step: float,
    entry: Entry | None,
) -> Culprit:
    new = None
    if entry is not None and _comparable(entry, sync.site):
        known = [k for k in entry.syncs if same_place(k.site, sync.site) and k.call == sync.call]
        new = per_step > sum(k.per_step for k in known) + 1e-6
    return _culprit(
        finding.code if finding else "sync",
        finding.title if finding else f"{sync.call} waits for the GPU",
        site,
        per_step,
        new,
        finding.advice if finding else "See where it is called, and whether it must be.",
    )


def _comparable(entry: Entry, site: Site | None) -> bool:
    """Whether both know functions, or neither: else no place of one is a place of the other."""
    framed = any(known.function is not None for known in entry.syncs)
    return not entry.syncs or framed == (site is not None and site.function is not None)


def _culprit(
    code: str, title: str, site: Site | None, per_step: float, new: bool | None, advice: str
) -> Culprit:
    file, line, function, op, precision = None, None, None, None, "none"
    if site is not None:
        file, line, function, op = site.file, site.line, site.function, site.op
        precision = site.precision
        if len(site.candidates) == 1:
            line, precision = site.candidates[0], "call"
    return Culprit(
        code=code,
        title=title,
        file=file,
        line=line,
        function=function,
        op=op,
        precision=precision,  # type: ignore[arg-type]  # a site's own
        per_step=round(per_step, 6),
        new=new,
        advice=advice,
        fingerprint=fingerprint(code, file, function, op),
    )


def _finding_of(diagnosis: Diagnosis, sync: SyncSite) -> Finding | None:
    """The finding about a blocking call: at its place, and as often."""
    at = [
        finding
        for finding in diagnosis.findings
        if finding.code in _SYNC_RULES and _about(finding.site, sync.site)
    ]
    return min(at, key=lambda finding: abs(finding.count - sync.count), default=None)


def _about(found: Site | None, site: Site | None) -> bool:
    if found is None or site is None:
        return found is site
    if site.op is not None and found.op is not None:
        return site.op == found.op
    return same_place(found, site)


def _fuller(site: Site | None, finding: Finding | None) -> Site | None:
    if finding is None or finding.site is None:
        return site
    return finding.site
