"""Score hostgap on the labelled suite: what its rules find, where, how often, and what not.

    python benchmarks/suite/score.py out            # the folder that record.py wrote
    python benchmarks/suite/score.py out -o report.md

Scored are pairs of a variant and a format that holds evidence of its fault. A pair counts as found
when a finding has the label's code, at whatever severity; the severity, the site (the function in
variants.py, where the trace has stacks) and the count per step are shown beside it. A finding
above `info` whose code is neither the label's nor among its companions (`also`) is a false alarm,
and so is one of the label's code at a second place; in a control every finding above `info` is.

Writes report.md and score.json into the folder.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np

from hostgap.analysis.analyze import analyze
from hostgap.analysis.examine import Options, examine
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.model import Finding
from hostgap.diagnosis.registry import Registry, load_rules
from hostgap.errors import HostgapError
from hostgap.trace.load import load_trace

FORMATS = ("kineto_stack", "kineto", "nsys")
BLOCKING = tuple(f"HG10{i}" for i in range(1, 9))
MAY_BLOCK = "HG109"
COUNT_TOLERANCE = 0.05  # of the label's count
ORDER = {"error": 0, "warning": 1, "info": 2}

Status = Literal["found", "missed", "no evidence", "bonus", "control", "unreadable", "no rule"]


@dataclass
class Alarm:
    """A finding that no label expects, or a companion."""

    code: str
    severity: str
    site: str
    saving_share: float | None
    title: str


@dataclass
class Score:
    """One trace of the suite.

    Attributes:
        variant, format, code: what it is of, and the rule expected.
        status: "bonus" is found where the label says there is no evidence.
        severity: of the finding, "" without.
        site: found in the label's function; None where the trace or the label has none.
        per_step: how often, as found; `count` whether that is the label's, None without a label.
        alarms: findings above info that are none of the label's.
        companions: findings above info that the label allows.
        note: why a trace could not be read or a rule not look.
    """

    variant: str
    format: str
    code: str | None
    status: Status
    severity: str = ""
    site: bool | None = None
    where: str = ""
    per_step: float | None = None
    count: bool | None = None
    alarms: list[Alarm] = field(default_factory=list)
    companions: list[Alarm] = field(default_factory=list)
    verdict: str = ""
    note: str = ""


@dataclass
class ProbeRow:
    """One call of the sync probe, as measured and as found."""

    row: str
    format: str
    blocks: bool
    code: str | None
    found: list[str]

    @property
    def right(self) -> bool:
        """Whether it is said to block exactly when it does, and (with ops) by the right rule."""
        if self.blocks != any(code in BLOCKING for code in self.found):
            return False
        if self.format == "nsys":
            return True
        return self.found == ([self.code] if self.code else [])


def trace_file(folder: Path, name: str, kind: str) -> Path | None:
    """The trace of a variant in a format, None without one."""
    for end in ("json.gz", "sqlite", "json"):
        path = folder / f"{name}.{kind}.{end}"
        if path.exists():
            return path
    return None


def score_trace(path: Path, name: str, kind: str, label: dict[str, Any]) -> Score:
    """Run all rules on one trace and compare with its label."""
    code = label["code"]
    try:
        found = analyze(load_trace(path))
    except HostgapError as error:
        return Score(name, kind, code, "unreadable", note=str(error))
    score = Score(name, kind, code, "control", verdict=found.verdict or "")
    if found.problems:
        score.note = "; ".join(found.problems)
    allowed = allowed_codes(label, kind)
    for finding in found.findings:
        if finding.severity == "info" or finding.code == code:
            continue
        (score.companions if finding.code in allowed else score.alarms).append(alarm(finding))
    if code is None:
        return score
    if code not in load_rules().rules:
        score.status = "no rule"
        return score
    evidence = kind in label["formats"]
    mine = [finding for finding in found.findings if finding.code == code]
    if not mine:
        reasons = [entry.reason for entry in found.not_applicable if entry.code == code]
        score.status = "missed" if evidence else "no evidence"
        score.note = "; ".join([*reasons, *([score.note] if score.note else [])])
        return score
    score.status = "found" if evidence else "bonus"
    there = [finding for finding in mine if at_site(finding, label)]
    best = min(there or mine, key=lambda f: (ORDER[f.severity], -(f.predicted_saving_ns or 0)))
    score.severity = best.severity
    score.where = where(best)
    if kind == "kineto_stack" and label["site"]:
        score.site = bool(there)
        strays = [f for f in mine if there and f not in there and f.severity != "info"]
        if code not in allowed:  # a storm has several chains; one fault has one place
            score.alarms += [alarm(finding) for finding in strays]
    score.per_step = sum(finding.count_per_step for finding in there or mine)
    if label["per_step"] is not None:
        score.count = bool(
            abs(score.per_step - label["per_step"]) <= COUNT_TOLERANCE * label["per_step"]
        )
    return score


def allowed_codes(label: dict[str, Any], kind: str) -> set[str]:
    """Codes of companions in a format: `nsys:HG101` holds for nsys alone."""
    codes = set()
    for key in label["also"]:
        scope, _, code = key.rpartition(":")
        if scope in ("", kind):
            codes.add(code)
    return codes


def at_site(finding: Finding, label: dict[str, Any]) -> bool:
    """Whether a finding names the label's function in the label's file."""
    site = finding.site
    if site is None or site.file is None:
        return False
    return Path(site.file).name == label["file"] and site.function == label["site"]


def where(finding: Finding) -> str:
    """A finding's place in a few words."""
    site = finding.site
    if site is None:
        return ""
    if site.file is None:
        return site.op or ""
    return f"{Path(site.file).name}: {site.function}"


def alarm(finding: Finding) -> Alarm:
    """What is kept of a finding that no label expects."""
    return Alarm(
        finding.code,
        finding.severity,
        where(finding),
        finding.predicted_saving_share,
        finding.title,
    )


def score_probe(path: Path, kind: str, rows: Sequence[dict[str, Any]]) -> list[ProbeRow]:
    """Which rules of waits claim which row of the sync probe."""
    registry = load_rules()
    analysis = examine(load_trace(path), Options(window="trace"))
    context = Context(analysis, registry.wait_rules())
    steps = analysis.steps
    by_step: dict[int, set[str]] = {}
    for code in (*BLOCKING, MAY_BLOCK):
        rule = registry.rules.get(code)
        if rule is None or context.lacks(rule.needs) is not None:
            continue
        for match in rule.find(context, rule.options()):
            for step in np.unique(steps.call_step[match.calls]).tolist():
                by_step.setdefault(step, set()).add(code)
    return [
        ProbeRow(row["row"], kind, row["blocks"], row["code"], sorted(by_step.get(row["step"], ())))
        for row in rows
    ]


# --- the report ------------------------------------------------------------------------------


def report(scores: Sequence[Score], probe: Sequence[ProbeRow], registry: Registry) -> str:
    """Everything as markdown."""
    parts = ["# The labelled suite", totals(scores)]
    if scores:
        parts += [variants_table(scores), rules_table(scores, registry), details(scores)]
    if probe:
        parts.append(probe_table(probe))
    return "\n\n".join(part for part in parts if part) + "\n"


def share(part: int, whole: int) -> str:
    """`9 of 10 (90 %)`."""
    return f"{part} of {whole} ({part / whole:.0%})" if whole else "none"


def totals(scores: Sequence[Score]) -> str:
    """Recall, sites, counts and false alarms of each format."""
    lines = [
        "| | " + " | ".join(FORMATS) + " |",
        "|---" * (len(FORMATS) + 1) + "|",
    ]
    columns = []
    for kind in FORMATS:
        mine = [score for score in scores if score.format == kind]
        pairs = [s for s in mine if s.status in ("found", "missed", "no rule")]
        found = [s for s in pairs if s.status == "found"]
        sited = [s for s in found if s.site is not None]
        counted = [s for s in found if s.count is not None]
        faults = [s for s in mine if s.code is not None and s.status != "unreadable"]
        controls = [s for s in mine if s.status == "control"]
        columns.append(
            [
                share(len(found), len(pairs)),
                share(sum(s.severity != "info" for s in found), len(pairs)),
                share(sum(bool(s.site) for s in sited), len(sited)),
                share(sum(bool(s.count) for s in counted), len(counted)),
                f"{sum(len(s.alarms) for s in faults)} in {len(faults)} traces",
                f"{sum(len(s.alarms) for s in controls)} in {len(controls)} traces",
                str(sum(len(s.companions) for s in faults)),
            ]
        )
    names = (
        "faults found",
        "of them above info",
        "at the right site",
        "with the right count",
        "false alarms above info, traces with a fault",
        "false alarms above info, controls",
        "companions above info (as true as the fault)",
    )
    for i, name in enumerate(names):
        lines.append("| " + " | ".join([name, *(column[i] for column in columns)]) + " |")
    return "\n".join(lines)


def variants_table(scores: Sequence[Score]) -> str:
    """A row per variant, a column per format."""
    lines = [
        "## By variant",
        "",
        "Cells: severity; `site` with stacks (ok, or where it was found instead); count per step "
        "where it is labelled. Then the false alarms above info.",
        "",
        "| variant | expected | " + " | ".join(FORMATS) + " | false alarms |",
        "|---" * (len(FORMATS) + 3) + "|",
    ]
    by_variant: dict[str, dict[str, Score]] = {}
    for score in scores:
        by_variant.setdefault(score.variant, {})[score.format] = score
    for name, by_format in by_variant.items():
        expected = next(iter(by_format.values())).code or "nothing"
        cells = [cell(by_format.get(kind)) for kind in FORMATS]
        alarms = "; ".join(
            f"{kind}: {alarms_text(by_format[kind].alarms)}"
            for kind in FORMATS
            if kind in by_format and by_format[kind].alarms
        )
        lines.append("| " + " | ".join([name, expected, *cells, alarms]) + " |")
    return "\n".join(lines)


def cell(score: Score | None) -> str:
    """One trace in a few words."""
    if score is None:
        return "not recorded"
    if score.status == "control":
        return "ALARM" if score.alarms else "silent"
    if score.status in ("found", "bonus"):
        words = [score.severity if score.status == "found" else f"({score.severity})"]
        if score.site is not None:
            words.append("site ok" if score.site else f"SITE {score.where or 'none'}")
        if score.per_step is not None and score.count is not None:
            words.append(f"{score.per_step:g}" if score.count else f"COUNT {score.per_step:g}")
        return ", ".join(words)
    return score.status.upper() if score.status in ("missed", "unreadable") else score.status


def alarms_text(alarms: Sequence[Alarm]) -> str:
    """`HG201 error, HG502 warning x2`."""
    counted = Counter((one.code, one.severity) for one in alarms)
    return ", ".join(
        f"{code} {severity}{f' x{n}' if n > 1 else ''}" for (code, severity), n in counted.items()
    )


def rules_table(scores: Sequence[Score], registry: Registry) -> str:
    """A row per rule: what it should have found, and what it said wrongly."""
    lines = [
        "## By rule",
        "",
        "| rule | pairs | found | above info | false alarms above info |",
        "|---|---|---|---|---|",
    ]
    codes = {score.code for score in scores if score.code}
    codes |= {one.code for score in scores for one in score.alarms}
    for code in sorted(codes):
        pairs = [s for s in scores if s.code == code and s.status in ("found", "missed", "no rule")]
        found = [s for s in pairs if s.status == "found"]
        above = sum(s.severity != "info" for s in found)
        alarms = Counter(s.variant for s in scores for one in s.alarms if one.code == code)
        rule = registry.rules.get(code)
        name = f"{code} {rule.name}" if rule is not None else f"{code} (no such rule)"
        said = ", ".join(f"{variant}{f' x{n}' if n > 1 else ''}" for variant, n in alarms.items())
        lines.append(f"| {name} | {len(pairs)} | {len(found)} | {above} | {said} |")
    return "\n".join(lines)


def details(scores: Sequence[Score]) -> str:
    """What to look into: misses with their reasons, and every false alarm."""
    lines = ["## To look into", ""]
    for score in scores:
        where_from = f"{score.variant}, {score.format}"
        if score.status in ("missed", "unreadable", "no rule"):
            note = f": {score.note}" if score.note else ""
            lines.append(f"- {where_from}: {score.code} {score.status}{note}")
        elif score.note:
            lines.append(f"- {where_from}: {score.note}")
        for one in score.alarms:
            saved = "" if one.saving_share is None else f", saves {one.saving_share:.1%}"
            place = f" at {one.site}" if one.site else ""
            lines.append(f"- {where_from}: {one.code} {one.severity}{saved}{place}: {one.title}")
    return "\n".join(lines) if len(lines) > 2 else ""


def probe_table(probe: Sequence[ProbeRow]) -> str:
    """The sync probe, row by row."""
    kinds = [kind for kind in FORMATS if any(row.format == kind for row in probe)]
    lines = ["## Sync probe", ""]
    for kind in kinds:
        mine = [row for row in probe if row.format == kind]
        blocked = [row for row in mine if row.blocks]
        free = [row for row in mine if not row.blocks]
        seen = sum(any(code in BLOCKING for code in row.found) for row in blocked)
        wrong = sum(any(code in BLOCKING for code in row.found) for row in free)
        lines.append(
            f"- {kind}: {share(sum(row.right for row in mine), len(mine))} rows right; "
            f"{seen} of {len(blocked)} calls that block found, {wrong} of {len(free)} that do not "
            "said to block"
        )
    lines += [
        "",
        "| call | blocks | expected | " + " | ".join(kinds) + " |",
        "|---" * (len(kinds) + 3) + "|",
    ]
    by_row: dict[str, dict[str, ProbeRow]] = {}
    for row in probe:
        by_row.setdefault(row.row, {})[row.format] = row
    for name, by_format in by_row.items():
        first = next(iter(by_format.values()))
        cells = []
        for kind in kinds:
            here = by_format[kind]
            said = ", ".join(here.found) or "nothing"
            cells.append(said if here.right else f"WRONG {said}")
        line = [name, "yes" if first.blocks else "no", first.code or "nothing", *cells]
        lines.append("| " + " | ".join(line) + " |")
    return "\n".join(lines)


def score_folder(folder: Path) -> tuple[list[Score], list[ProbeRow]]:
    """Every trace of a folder, and its probe."""
    labels = json.loads((folder / "labels.json").read_text(encoding="utf-8"))
    scores = []
    for name, label in labels.items():
        for kind in FORMATS:
            path = trace_file(folder, name, kind)
            if path is not None:
                scores.append(score_trace(path, name, kind, label))
    probe: list[ProbeRow] = []
    rows = folder / "probe.json"
    if rows.exists():
        for kind in FORMATS:
            path = trace_file(folder, "probe", kind)
            if path is not None:
                probe += score_probe(path, kind, json.loads(rows.read_text(encoding="utf-8")))
    return scores, probe


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="By default report.md there.")
def main(folder: Path, output: Path | None) -> None:
    """Score hostgap on the traces in FOLDER (see the head of this file)."""
    scores, probe = score_folder(folder)
    text = report(scores, probe, load_rules())
    click.echo(text)
    (output or folder / "report.md").write_text(text, encoding="utf-8")
    rows = [{**asdict(row), "right": row.right} for row in probe]
    result = {"scores": [asdict(score) for score in scores], "probe": rows}
    (folder / "score.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
