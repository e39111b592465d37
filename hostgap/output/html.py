"""The HTML report: one file that loads nothing, sends nothing, and shows every name as text.

Names come from traces and are hostile until shown otherwise. In markup Jinja2's autoescape makes
text of them, in data blocks `<`, `>` and `&` are escaped, in script they only ever become
textContent or canvas text. The content security policy names the one script by its hash, so that
nothing else could run even if a name got through.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from hostgap import __version__
from hostgap.diagnosis.registry import load_rules
from hostgap.output import fix_summary, summary
from hostgap.output.encoded import encoded
from hostgap.output.printable import printable
from hostgap.ranks import view as ranks_view
from hostgap.report import view
from hostgap.report.comparison import compare
from hostgap.report.run import Page, Run, name_of

SCRIPTS = (
    "timeline_data.js",
    "timeline_draw.js",
    "timeline_input.js",
    "timeline.js",
    "report.js",
)
_EXPLAINED = ("What it sees", "Why it costs", "Example", "Use instead")
_ESCAPES = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}
_TO_ESCAPE = re.compile("[<>&\u2028\u2029]")

Block = list[tuple[str, list[tuple[bool, str]]]]


def render_html(page: Page) -> bytes:
    """The whole page, UTF-8."""
    script = "\n".join(_asset(name) for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{script}}})();\n'
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    base = page.base.diagnosis if page.base is not None else None
    compared = compare(base, page.runs[0].diagnosis) if base is not None and page.runs else None
    html = (
        _environment()
        .get_template("report.html.j2")
        .render(
            page=page,
            comparison=compared,
            title=_title(page),
            sections=_sections(page),
            version=__version__,
            policy=policy,
            style=Markup(_asset("report.css")),
            script=Markup(script),
            s=summary,
            f=fix_summary,
            v=view,
            r=ranks_view,
            show=printable,
            name_of=name_of,
            explained=_explanations(page),
            data={
                "diagnoses": [_diagnosis(run) for run in page.runs],
                "events": [_events(run) for run in page.runs],
                "ladder": _block(page.ladder) if page.ladder is not None else "",
            },
        )
    )
    return html.encode("utf-8", "replace")


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {"units": _units, "sentence": _sentence}
    return environment


def _units(text: str) -> str:
    """A number and its unit stay on one line."""
    return re.sub(r"(\d) (%|s|ms|us|ns)\b", "\\1\u00a0\\2", re.sub(r"(\d) %", "\\1\u00a0%", text))


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else text + "."


def _asset(name: str) -> str:
    """A file of the package `hostgap.reports`."""
    return resources.files("hostgap.reports").joinpath(name).read_text(encoding="utf-8")


def _block(value: Any) -> Markup:
    """JSON that can stand in a script element, whatever is in it."""
    text = encoded(value).decode("utf-8")
    return Markup(_TO_ESCAPE.sub(lambda match: _ESCAPES[match[0]], text))


def _diagnosis(run: Run) -> Markup:
    """The JSON of a run. Reports are mailed: the folder of the trace stays at home."""
    trace = msgspec.structs.replace(run.diagnosis.trace, file=name_of(run.diagnosis))
    return _block(msgspec.structs.replace(run.diagnosis, trace=trace))


def _events(run: Run) -> Markup | None:
    if run.events is None:
        return None
    causes = [{**cause, "look": view.LOOKS[cause["name"]]} for cause in run.events["causes"]]
    return _block({**run.events, "causes": causes})


def _title(page: Page) -> str:
    if page.runs:
        return f"{printable(page.runs[0].label, 80)}: {summary.headline(page.runs[0].diagnosis)}"
    if page.ladder is not None:
        return fix_summary.headline(page.ladder)
    return "hostgap"


def _sections(page: Page) -> list[tuple[str, str]]:
    """Name and text of what the head of the page links to."""
    shown = []
    if page.base is not None:
        shown.append(("comparison", "Comparison"))
    if page.runs:
        shown += [("where", "Where"), ("timeline", "Timeline"), ("findings", "Findings")]
    if page.ladder is not None:
        shown.append(("fixes", "Before and after"))
    if page.runs:
        shown += [("kernels", "Kernels"), ("trust", "Trust")]
    return [*shown, ("glossary", "Glossary")]


def _explanations(page: Page) -> dict[str, Block]:
    """Code of a rule that found something -> the parts of its page that say why and what to do."""
    codes = {finding.code for run in page.runs for finding in summary.defects(run.diagnosis)}
    docs = load_rules().docs
    return {code: _page(docs[code]) for code in sorted(codes) if code in docs}


def _page(text: str) -> Block:
    """Headings with their paragraphs; (True, text) is code."""
    blocks: Block = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        if heading.strip() not in _EXPLAINED:
            continue
        lines: list[tuple[bool, str]] = []
        for line in body.rstrip().splitlines():
            code = line.startswith("    ")
            if not line.strip():
                if lines:
                    lines.append((lines[-1][0], ""))
            elif lines and lines[-1][0] == code and (code or lines[-1][1]):
                joined = lines[-1][1] + ("\n" if code else " ") + (line[4:] if code else line)
                lines[-1] = (code, joined)
            else:
                lines.append((code, line[4:] if code else line))
        blocks.append((heading.strip(), [(code, said) for code, said in lines if said.strip()]))
    return blocks
