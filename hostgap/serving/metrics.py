"""What a server's Prometheus page says of its load: how long a token takes without a profiler."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from hostgap.serving.server import Server

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(\{.*\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?")

_MOST = 10**15  # of tokens, steps, requests or seconds: more are a fault of the server's
_LONGEST_NS = 86_400 * 10**9  # between two tokens

Samples = Mapping[str, Mapping[str, float]]  # name -> labels, as written -> value


def parse(text: str) -> Samples:
    """The samples of a page in Prometheus's text format; what is none is passed over.

    So is what is no count and no time: negative, not finite, or absurdly large.

    Source: https://prometheus.io/docs/instrumenting/exposition_formats/
    """
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.fullmatch(line.strip())
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if 0 <= value <= _MOST:  # nan is not
            found[match[1]][match[2] or ""] = value
    return found


def scrape(server: Server) -> Samples | None:
    """The samples of a server's /metrics; None where it has no such page.

    Raises:
        HostgapError: it cannot be reached.
    """
    answer = server.get("/metrics")
    return parse(answer.body) if answer.status == 200 else None


def total(samples: Samples, name: str) -> float | None:
    """A metric summed over its labels (engines, models); None without it."""
    values = samples.get(name)
    if not values:
        return None
    summed = sum(values.values())
    return summed if summed <= _MOST else None


def whole(value: object) -> int | None:
    """A count in a server's JSON; None where it is none, or an absurd one."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _MOST else None


class TokenLatency(msgspec.Struct, frozen=True):
    """The time between a request's tokens, over an interval in which nothing was profiled.

    Attributes:
        metric: the histogram that it comes from.
        mean_ns: its mean over all tokens of the interval, ns.
        tokens: how many intervals between tokens were counted.
        interval_s: for how long, s.
    """

    metric: str
    mean_ns: int
    tokens: int
    interval_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """A server's load before it was profiled.

    Attributes:
        latency: the time between tokens; None where the server does not say.
        why_not: why it is None.
        tokens: tokens counted in the interval, None where the server does not count them.
    """

    latency: TokenLatency | None
    why_not: str | None
    tokens: int | None


def load_between(
    before: Samples | None, after: Samples | None, names: Sequence[str], interval_s: float
) -> Load:
    """The mean of a histogram's observations between two scrapes.

    Args:
        before: the first scrape.
        after: the second, `interval_s` seconds later.
        names: histograms to look for, the best first.
        interval_s: seconds.
    """
    if before is None or after is None:
        return Load(None, "the server has no /metrics", None)
    for name in names:
        seconds, count = total(after, f"{name}_sum"), total(after, f"{name}_count")
        if seconds is None or count is None:
            continue
        # a histogram appears with its first observation
        seconds -= total(before, f"{name}_sum") or 0.0
        count -= total(before, f"{name}_count") or 0.0
        if count < 1 or seconds <= 0:  # negative: the server began anew in between
            return Load(None, f"{name} counted no token in {interval_s:.1f} s", 0)
        mean_ns = round(seconds / count * 1e9)
        if not 0 < mean_ns <= _LONGEST_NS:
            said = f"{name} says {seconds:.3g} s for {count:,.0f} tokens"
            return Load(None, said, round(count))
        return Load(TokenLatency(name, mean_ns, round(count), interval_s), None, round(count))
    return Load(None, f"/metrics has no {names[0]}", None)
