"""Score hostgap on the labelled suite: what its rules find, where, how often, and what not.

    python benchmarks/suite/score.py out            # the folder that record.py wrote
    python benchmarks/suite/score.py out -o report.md

Scored are pairs of a variant and a format that holds evidence of its fault; the others stand in a
table of their own. A pair counts as found when a finding has the label's code, at whatever
severity. The site (the function, where the trace has stacks) and the count per step
are compared, too; the count may be off by 5 %, or by the occurrences in the window that the label
allows (`slack`). A finding above `info` whose code is neither the label's nor among its companions
(`also`) is a false alarm, and so is one of the label's code at a second place; in a control every
finding above `info` is.

Writes report.md and score.json into the folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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

# A trace with evidence, read or not: what rates are over.
PAIR = ("found", "missed", "no rule", "unreadable")

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
        per_step: how often, as found, and `expected` by the label, None where a count means little.
        count: whether the two agree, None without a label.
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
    expected: float | None = None
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
    score.expected = label["per_step"]
    if score.expected is not None:
        steps = found.steps.count if found.steps is not None else 1
        allowance = max(COUNT_TOLERANCE * score.expected, label.get("slack", 0) / steps)
        score.count = abs(score.per_step - score.expected) <= allowance + 1e-9
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


def report(
    scores: Sequence[Score],
    probe: Sequence[ProbeRow],
    registry: Registry,
    labels: Mapping[str, dict[str, Any]],
) -> str:
    """Everything as markdown."""
    parts = ["# The labelled suite", INTRODUCTION]
    if scores:
        parts += [
            totals(scores),
            rules_table(scores, registry),
            disagreements(scores, probe),
            not_visible(labels, registry),
        ]
    if probe:
        parts.append(probe_table(probe))
    return "\n\n".join(part for part in parts if part) + "\n"


INTRODUCTION = """\
`benchmarks/suite` makes small decode steps with one fault each, whose place and count are known,
and controls without a fault. They are recorded by torch.profiler with Python stacks
(`kineto_stack`) and without (`kineto`), and by Nsight Systems (`nsys`). Rates are over the pairs of
a variant and a format that holds evidence of its fault. A finding above `info` that is neither the
fault nor true beside it is a false alarm."""


def share(part: int, whole: int) -> str:
    """`9 of 10 (90 %)`."""
    return f"{part} of {whole} ({part / whole:.0%})" if whole else "none"


def kinds_of(scores: Sequence[Score]) -> list[str]:
    """The formats of which there are traces."""
    return [kind for kind in FORMATS if any(score.format == kind for score in scores)]


def totals(scores: Sequence[Score]) -> str:
    """Recall, sites, counts and false alarms of each format."""
    kinds = kinds_of(scores)
    lines = ["| | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    columns = []
    for kind in kinds:
        mine = [score for score in scores if score.format == kind]
        pairs = [s for s in mine if s.status in PAIR]
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
        "found above info",
        "at the right site",
        "with the right count",
        "false alarms beside a fault",
        "false alarms in controls",
        "true findings beside a fault",
    )
    for i, name in enumerate(names):
        lines.append("| " + " | ".join([name, *(column[i] for column in columns)]) + " |")
    return "\n".join(lines)


def rules_table(scores: Sequence[Score], registry: Registry) -> str:
    """A row per rule: the variants it should find, what of them it found, and false alarms."""
    kinds = kinds_of(scores)
    lines = [
        "## By rule",
        "",
        "Found of the variants with evidence (of them as info); `-` where no trace holds any.",
        "",
        "| rule | variants | " + " | ".join(kinds) + " | false alarms |",
        "|---" * (len(kinds) + 3) + "|",
    ]
    codes = {score.code for score in scores if score.code}
    codes |= {one.code for score in scores for one in score.alarms}
    for code in sorted(codes):
        mine = [score for score in scores if score.code == code]
        cells = [cell([s for s in mine if s.format == kind]) for kind in kinds]
        alarms = sum(one.code == code for score in scores for one in score.alarms)
        names = ", ".join(dict.fromkeys(score.variant for score in mine))
        lines.append(
            "| " + " | ".join([rule_name(code, registry), names, *cells, str(alarms or "")]) + " |"
        )
    return "\n".join(lines)


def rule_name(code: str, registry: Registry) -> str:
    """`HG101 scalar-read`."""
    rule = registry.rules.get(code)
    return f"{code} {rule.name}" if rule is not None else f"{code} (no such rule)"


def cell(scores: Sequence[Score]) -> str:
    """`2/2 (1 info)`: a rule's variants in one format."""
    pairs = [score for score in scores if score.status in PAIR]
    if not pairs:
        return "-"
    found = [score for score in pairs if score.status == "found"]
    info = sum(score.severity == "info" for score in found)
    return f"{len(found)}/{len(pairs)}" + (f" ({info} info)" if info else "")


def disagreements(scores: Sequence[Score], probe: Sequence[ProbeRow]) -> str:
    """What hostgap says otherwise than the labels; the same in several formats is one row."""
    said: dict[tuple[str, str, str], list[str]] = {}
    for score in scores:
        for word, text in differences(score):
            said.setdefault((score.variant, word, text), []).append(score.format)
    for row in probe:
        if not row.right:
            text = f"{listed(row.found)} instead of {row.code or 'nothing'}"
            said.setdefault((f"probe: {row.row}", "probe", text), []).append(row.format)
    if not said:
        return "## Disagreements\n\nNone."
    lines = ["## Disagreements", "", "| variant | | what is said | in |", "|---|---|---|---|"]
    for (variant, word, text), kinds in said.items():
        lines.append(f"| {variant} | {word} | {text} | {', '.join(kinds)} |")
    return "\n".join(lines)


def differences(score: Score) -> list[tuple[str, str]]:
    """What is wrong with a trace's findings: a word and a text each."""
    wrong = []
    if score.status in ("missed", "unreadable", "no rule"):
        wrong.append((score.status, f"{score.code}{f': {score.note}' if score.note else ''}"))
    if score.site is False:
        wrong.append(("site", f"{score.code} at {score.where or 'no place'}"))
    if score.count is False:
        wrong.append(("count", f"{score.code} {score.per_step:g}, not {score.expected:g} a step"))
    alarms: dict[tuple[str, str], list[float]] = {}
    for one in score.alarms:
        alarms.setdefault((one.code, one.site), []).append(one.saving_share or 0.0)
    for (code, site), shares in alarms.items():
        wrong.append(("false alarm", f"{code}{f' at {site}' if site else ''} ({sum(shares):.1%})"))
    return wrong


def not_visible(labels: Mapping[str, dict[str, Any]], registry: Registry) -> str:
    """The pairs without evidence, why there is none, and how to record it."""
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for name, label in labels.items():
        for kind, why in label["missing"].items():
            key = rule_name(label["code"], registry), kind, why, how(label["formats"])
            rows.setdefault(key, []).append(name)
    if not rows:
        return ""
    lines = ["## Not visible, and how to see it", ""]
    lines += ["| rule | variants | format | why | record |", "|---|---|---|---|---|"]
    for (rule, kind, why, record), names in sorted(rows.items()):
        lines.append(f"| {rule} | {', '.join(names)} | {kind} | {why} | {record} |")
    return "\n".join(lines)


def how(formats: Sequence[str]) -> str:
    """What to record to see a fault that some format does not show."""
    if "kineto" in formats:
        return "torch.profiler"
    if "kineto_stack" in formats:
        return "torch.profiler, `with_stack=True`"
    return "Nsight Systems"


def probe_table(probe: Sequence[ProbeRow]) -> str:
    """The sync probe, row by row."""
    kinds = [kind for kind in FORMATS if any(row.format == kind for row in probe)]
    lines = [
        "## Sync probe",
        "",
        "PyTorch calls behind a busy GPU: whether each was measured to block the host, and the "
        "rule that claims it.",
        "",
    ]
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
    lines += ["", "| call | blocks | expected | rule found | agrees |", "|---|---|---|---|---|"]
    by_row: dict[str, list[ProbeRow]] = {}
    for row in probe:
        by_row.setdefault(row.row, []).append(row)
    for name, rows in by_row.items():
        first, said = rows[0], {listed(row.found) for row in rows}
        found = (
            said.pop()
            if len(said) == 1
            else "; ".join(f"{row.format}: {listed(row.found)}" for row in rows)
        )
        wrong_in = [row.format for row in rows if not row.right]
        agrees = f"NO: {', '.join(wrong_in)}" if wrong_in else "yes"
        blocks = "yes" if first.blocks else "no"
        lines.append(f"| {name} | {blocks} | {first.code or 'nothing'} | {found} | {agrees} |")
    return "\n".join(lines)


def listed(codes: Sequence[str]) -> str:
    """`HG101, HG102`, or `nothing`."""
    return ", ".join(codes) or "nothing"


def score_folder(folder: Path) -> tuple[list[Score], list[ProbeRow]]:
    """Every trace of a folder, and its probe."""
    scores = []
    for name, label in read_labels(folder).items():
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


def read_labels(folder: Path) -> dict[str, dict[str, Any]]:
    """The labels of a folder's traces, of those that were not recorded, too."""
    labels: dict[str, dict[str, Any]] = json.loads(
        (folder / "labels.json").read_text(encoding="utf-8")
    )
    return labels


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="By default report.md there.")
def main(folder: Path, output: Path | None) -> None:
    """Score hostgap on the traces in FOLDER (see the head of this file)."""
    scores, probe = score_folder(folder)
    text = report(scores, probe, load_rules(), read_labels(folder))
    click.echo(text)
    (output or folder / "report.md").write_text(text, encoding="utf-8")
    rows = [{**asdict(row), "right": row.right} for row in probe]
    result = {"scores": [asdict(score) for score in scores], "probe": rows}
    (folder / "score.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
