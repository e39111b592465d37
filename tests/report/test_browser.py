"""The report in a real browser: it works, explains itself, loads nothing and runs no name."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import traces

from hostgap.output import summary as s
from hostgap.report.sources import read_page

Maker = Callable[..., Path]


def fragment(browser: Any) -> str:
    return str(browser.run("return location.hash"))


# --- findings, address, theme --------------------------------------------------------------------


def test_a_finding_zooms_to_its_events_and_outlines_them(browser: Any, sample: Path) -> None:
    browser.open(sample)
    before = browser.one(".where").text
    assert browser.pixels("--mark") == 0
    browser.click(".go[data-finding='HG202-1']")
    assert browser.one(".where").text != before
    assert browser.pixels("--mark") > 100
    assert fragment(browser).startswith("#HG202-1&t=")
    assert browser.one(".spots").is_displayed()
    assert "place 1 of" in browser.one(".spot-number").text
    assert browser.run("return document.activeElement.className") == "lanes"
    browser.press("n")
    assert "place 2 of" in browser.one(".spot-number").text
    browser.press("ESCAPE")
    assert browser.pixels("--mark") == 0
    assert not browser.one(".spots").is_displayed()
    assert browser.complaints() == []


def test_every_finding_zooms_somewhere(browser: Any, sample: Path) -> None:
    browser.open(sample)
    buttons = browser.all(".go")
    assert len(buttons) > 10
    for button in buttons:
        browser.run("arguments[0].click()", button)
    browser.settle()
    assert browser.complaints() == []


def test_an_address_opens_the_same_view(browser: Any, sample: Path) -> None:
    browser.open(sample)
    browser.click(".go[data-finding='HG203-1']")
    browser.press("w", "w", "d")
    browser.press(".", ".")
    address, where = fragment(browser), browser.one(".where").text
    marked, chosen = browser.pixels("--mark"), browser.one(".chosen").text
    assert re.fullmatch(r"#HG203-1&t=\d+-\d+&e=\w+\.\d+", address)
    browser.open(sample, address)
    assert browser.one(".where").text == where
    assert browser.pixels("--mark") == marked > 0
    assert browser.one(".chosen").text == chosen
    assert browser.one(".spot-name").text == "HG203-1"
    assert fragment(browser) == address


@pytest.mark.parametrize(
    "address",
    [
        "#HG999-1",
        "#t=5-1",
        "#t=0-99999999999999999999",
        "#e=calls.99999999",
        "#run=77",
        "#%3Cimg%3E",
    ],
)
def test_a_wrong_address_harms_nothing(browser: Any, sample: Path, address: str) -> None:
    browser.open(sample, address)
    assert browser.one("h1").text.startswith("GPU idle")
    browser.press("TAB")
    assert browser.complaints() == []


def test_the_theme_follows_the_system_and_the_button(browser: Any, sample: Path) -> None:
    def colours() -> tuple[str, bool]:
        page = browser.run("return getComputedStyle(document.body).backgroundColor")
        return page, browser.pixels("--card") > 1000  # the canvas has the theme's own colour

    browser.open(sample)
    light = colours()
    browser.click("#theme")
    dark = colours()
    assert light != dark
    assert light[1]
    assert dark[1]
    browser.click("#theme")
    assert colours() == light
    browser.media("dark")
    browser.open(sample)
    assert colours() == dark


# --- the timeline --------------------------------------------------------------------------------


def test_keys_move_and_zoom(browser: Any, sample: Path) -> None:
    browser.open(sample)
    browser.run("document.querySelector('canvas.lanes').focus()")
    views = [browser.one(".where").text]
    for key in ("w", "d", "s", "a", "0"):
        browser.press(key)
        views.append(browser.one(".where").text)
    assert len(set(views)) == len(views)
    assert "from 0 ns" in views[-1]
    browser.press("]", ".")
    assert browser.one(".chosen").text
    assert "Click an event" not in browser.one(".chosen").text


def test_hovering_says_what_lies_there(browser: Any, made: Maker, tmp_path: Path) -> None:
    page = made("long", traces.long_kernel().write(tmp_path / "long.json"))
    browser.open(page)
    canvas = browser.one("canvas.lanes")
    browser.run("arguments[0].scrollIntoView({block: 'center'})", canvas)
    browser.hover(canvas, 600, 90)
    assert browser.one(".tip").is_displayed()
    assert browser.one(".tip").text.startswith("spin\n")
    assert "10.0 s (10,000,000,000 ns)" in browser.one(".tip").text
    assert "launched by cudaLaunchKernel, 20.0 us before" in browser.one(".tip").text
    canvas.click()


def test_dragging_and_the_wheel(browser: Any, sample: Path) -> None:
    browser.open(sample)
    canvas = browser.one("canvas.lanes")
    browser.run("arguments[0].scrollIntoView({block: 'center'})", canvas)
    before = browser.one(".where").text
    wheel = (
        "return arguments[0].dispatchEvent(new WheelEvent('wheel',"
        " {deltaY: -100, ctrlKey: true, cancelable: true}))"
    )
    assert browser.run(wheel, canvas) is False  # the page does not zoom with it
    browser.settle()
    zoomed = browser.one(".where").text
    assert zoomed != before
    plain = wheel.replace(", ctrlKey: true", "")
    assert browser.run(plain, canvas) is True  # not clicked yet: the page scrolls
    from selenium.webdriver import ActionChains

    ActionChains(browser.driver).drag_and_drop_by_offset(canvas, -200, 0).perform()
    browser.settle()
    assert browser.one(".where").text != zoomed
    assert "Click an event" in browser.one(".chosen").text  # a drag chooses nothing


def test_lanes_can_be_hidden(browser: Any, sample: Path) -> None:
    browser.open(sample)
    height = browser.run("return document.querySelector('.lanes-view').scrollHeight")
    browser.click(".lanes button:last-child")
    assert browser.one(".lanes button:last-child").get_attribute("aria-pressed") == "false"
    assert browser.run("return document.querySelector('.lanes-view').scrollHeight") < height


# --- the numbers ---------------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_json(browser: Any, sample: Path) -> None:
    browser.open(sample)
    shown = json.loads(browser.run("return document.getElementById('diagnosis-0').textContent"))
    root = Path(__file__).parents[2]
    diagnosis = read_page([root / "sample_traces" / "eager_item.json.gz"]).runs[0].diagnosis
    device, n = shown["devices"][0], shown["steps"]["count"]
    assert device["idle_by_cause"] == diagnosis.devices[0].idle_by_cause
    cells = {cell.get_attribute("data-cause"): cell for cell in browser.all("[data-cause]")}
    expected = {"kernels": device["kernel_busy_ns"], "copies": device["copy_only_ns"]}
    expected |= device["idle_by_cause"]
    assert set(cells) == set(expected)
    for cause, ns in expected.items():
        assert cells[cause].get_attribute("data-ns") == str(ns)
        assert cells[cause].text == s.duration(ns / n)
    assert sum(expected.values()) == device["window_ns"]
    assert browser.one("h1").text.replace("\xa0", " ") == s.headline(diagnosis)
    launches = browser.one("[data-tile='Launches']")
    assert float(launches.get_attribute("data-raw")) == shown["steps"]["per_step"]["launches"]
    savings = [
        one.get_attribute("data-finding-saves") for one in browser.all("[data-finding-saves]")
    ]
    costly = [f["predicted_saving_ns"] for f in shown["findings"] if f["severity"] != "info"]
    assert sorted(savings) == sorted(map(str, costly))
    # and the waterfall is drawn to scale
    bars = browser.run(
        "const wide = (e) => e.getBoundingClientRect().width;"
        "return [...document.querySelectorAll('.waterfall .bar')]"
        ".map((bar) => wide(bar) / wide(bar.parentElement))"
    )
    shares = [float(c.get_attribute("data-ns")) / device["window_ns"] for c in cells.values()]
    assert bars == pytest.approx(shares, abs=0.006)


# --- safety --------------------------------------------------------------------------------------


@pytest.fixture
def hostile(made: Maker, tmp_path: Path) -> Path:
    return made("hostile", traces.hostile().write(tmp_path / "hostile.json"))


def test_nothing_is_requested_and_nothing_complains(browser: Any, sample: Path) -> None:
    browser.open(sample)
    browser.click(".go[data-finding='HG201-1']")
    asked = [url for url in browser.requests() if url != "about:blank"]
    assert {url.split("#")[0] for url in asked} <= {sample.as_uri(), "data:,"}
    assert browser.complaints() == []


def test_the_policy_is_in_force(browser: Any, sample: Path) -> None:
    browser.open(sample)
    browser.run(
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        "document.body.append(s);"
        'const html = \'<img src="https://example.com/x.png" onerror="window.ran = 2">\';'
        "document.body.insertAdjacentHTML('beforeend', html);"
        "fetch('https://example.com/').catch(() => { window.refused = true; })"
    )
    browser.until("window.refused")
    assert browser.run("return window.ran") is None
    assert [url for url in browser.requests() if "example.com" in url] == []
    assert sum("Content Security Policy" in text for text in browser.complaints()) >= 3


def test_hostile_names_are_text(browser: Any, hostile: Path) -> None:
    browser.open(hostile)
    assert browser.driver.title != "pwned"
    assert browser.all("img, iframe, object, embed") == []
    assert len(browser.all("script:not([type])")) == 1
    assert browser.all("a[href^='javascript']") == []
    text = browser.run("return document.body.innerText")
    assert traces.HOSTILE["script"] in text
    assert traces.HOSTILE["image"] in text
    assert "{{ 7 * 7 }}" in text
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x07\x1b]", text)
    assert r"safe\u202egnp.exe" in text
    # every button, every event of every lane, every tooltip
    for button in browser.all(".go"):
        browser.run("arguments[0].click()", button)
    seen = set()
    browser.run("document.querySelector('canvas.lanes').focus()")
    browser.run("document.querySelector('[data-do=\"all\"]').click()")
    key = (
        "document.querySelector('canvas.lanes').dispatchEvent("
        "new KeyboardEvent('keydown', {key: '%s'}))"
    )
    for _ in range(6):
        browser.run(key % "]")
        for _ in range(30):
            browser.run(key % ".")
            seen.add(browser.one(".chosen p").text)
    assert any("<img src=x onerror=" in line for line in seen)
    canvas = browser.one("canvas.lanes")
    for y in range(30, canvas.size["height"], 12):
        browser.run(
            "const [canvas, y] = arguments, top = canvas.getBoundingClientRect().top;"
            "const at = {clientX: 300 + y, clientY: top + y};"
            "canvas.dispatchEvent(new PointerEvent('pointermove', at));",
            canvas,
            y,
        )
    browser.settle()
    assert browser.driver.title != "pwned"
    assert len(browser.all("script:not([type])")) == 1
    assert browser.all("img") == []
    assert browser.complaints() == []


# --- everyone can read it ------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, sample: Path, scheme: str) -> None:
    browser.media(scheme)
    browser.open(sample)
    found = browser.violations()
    assert [one for one in found if one[0] in ("serious", "critical")] == []
    background = "return getComputedStyle(document.body).backgroundColor"
    assert (
        browser.run(background)
        == {"light": "rgb(246, 247, 249)", "dark": "rgb(16, 20, 24)"}[scheme]
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_a_comparison_and_a_ladder(
    browser: Any, made: Maker, tmp_path: Path, scheme: str
) -> None:
    two = traces.two_devices().write(tmp_path / "two.json")
    other = traces.steps().write(tmp_path / "steps.json")
    published = Path(__file__).parents[2] / "reports" / "h200" / "fix-small.json"
    fixes = [published] if published.is_file() else []
    browser.media(scheme)
    browser.open(made("many", two, other, *fixes, against=other))
    assert [one for one in browser.violations() if one[0] in ("serious", "critical")] == []


def test_the_keyboard_reaches_every_finding_and_the_timeline(browser: Any, sample: Path) -> None:
    browser.open(sample)
    browser.run("for (const one of document.querySelectorAll('details')) one.open = true")
    wanted = {b.get_attribute("data-finding") for b in browser.all(".go")}
    reached, canvas = set(), False
    for _ in range(200):
        browser.driver.switch_to.active_element.send_keys("\ue004")
        name, kind = browser.run(
            "const e = document.activeElement; return [e.dataset.finding || '', e.className]"
        )
        reached.add(name)
        canvas = canvas or kind == "lanes"
    assert wanted <= reached
    assert canvas
    browser.run("document.querySelector('.go').focus()")
    browser.press("ENTER")
    assert browser.pixels("--mark") > 0


def test_it_is_readable_on_a_telephone(browser: Any, sample: Path) -> None:
    browser.size(400, 800)
    browser.open(sample)
    assert browser.run("return document.documentElement.scrollWidth") <= 400
    assert browser.run("return document.querySelector('canvas.lanes').clientWidth") > 300
    small = browser.run(
        "return [...document.querySelectorAll('p, td, dd, li')].filter(e => e.offsetParent"
        " && parseFloat(getComputedStyle(e).fontSize) < 11).length"
    )
    assert small == 0


def test_it_prints(browser: Any, sample: Path) -> None:
    browser.media("dark")
    browser.open(sample)
    pdf = base64.b64decode(browser.driver.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert pdf.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 30
    assert browser.run("return document.documentElement.dataset.theme") is None  # as it was
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run("return document.documentElement.dataset.theme") == "light"
    assert browser.pixels("--card") > 1000  # the canvas is light too
    browser.run("dispatchEvent(new Event('afterprint'))")
    browser.media("light", "print")
    assert not browser.one(".top").is_displayed()
    assert not browser.one(".go").is_displayed()
    assert browser.one("h1").is_displayed()


def test_without_a_script_all_but_the_timeline_is_there(sample: Path) -> None:
    text = sample.read_text(encoding="utf-8")
    assert "The timeline needs JavaScript" in text
    assert "GPU idle 93" in re.search(r"<h1>(.*?)</h1>", text, re.DOTALL)[1]  # type: ignore[index]


# --- every kind of page --------------------------------------------------------------------------

EDGE: dict[str, Callable[[], traces.Trace]] = {
    "one": traces.one_kernel,
    "streams": traces.streams,
    "long": traces.long_kernel,
    "no_stacks": traces.steps,
}


@pytest.mark.parametrize("name", EDGE)
def test_odd_traces(browser: Any, made: Maker, tmp_path: Path, name: str) -> None:
    browser.open(made(f"odd_{name}", EDGE[name]().write(tmp_path / f"{name}.json")))
    assert browser.one("h1").text.startswith("GPU idle")
    assert browser.pixels("--kernels") > 0
    for action in ("in", "step", "out", "all"):
        browser.click(f"[data-do='{action}']")
    assert browser.complaints() == []


def test_a_trace_without_gpu_work_says_so(browser: Any, made: Maker, tmp_path: Path) -> None:
    trace = traces.Trace()
    trace.event("cpu_op", "aten::mm", 0, 10)
    browser.open(made("host_only", trace.write(tmp_path / "host.json")))
    assert browser.one("h1").text.startswith("Nothing can be measured")
    assert browser.complaints() == []


def test_runs_and_devices_are_picked(browser: Any, made: Maker, tmp_path: Path) -> None:
    two = traces.two_devices().write(tmp_path / "two.json")
    other = traces.steps().write(tmp_path / "steps.json")
    browser.open(made("picker", two, other))
    assert browser.all(".run")[0].is_displayed()
    assert not browser.all(".run")[1].is_displayed()
    panels = browser.all("#run-0 .device")
    assert [panel.is_displayed() for panel in panels] == [True, False]
    browser.choose("#device-0", "1")
    assert [panel.is_displayed() for panel in panels] == [False, True]
    browser.choose("#run-choice", "1")
    browser.settle()
    assert browser.all(".run")[1].is_displayed()
    button = browser.one("#run-1 .go")
    browser.run("arguments[0].click()", button)
    browser.settle()
    address = fragment(browser)
    assert address.endswith("&run=1")
    assert browser.pixels("--mark") > 0
    browser.open(made("picker", two, other), address)
    assert browser.all(".run")[1].is_displayed()
    assert browser.pixels("--mark") > 0
    assert browser.complaints() == []


def test_a_page_of_a_bare_diagnosis_says_what_it_lacks(
    browser: Any, made: Maker, tmp_path: Path
) -> None:
    from hostgap.output.json import render_json

    trace = traces.steps().write(tmp_path / "steps.json")
    bare = tmp_path / "bare.json"
    bare.write_bytes(render_json(read_page([trace]).runs[0].diagnosis))
    browser.open(made("bare", bare))
    assert "made from a diagnosis alone" in browser.one("#timeline").text
    assert browser.all("canvas") == []
    assert browser.all(".go") == []
    assert browser.complaints() == []
