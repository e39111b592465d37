"""How large the HTML report is, how soon it is drawn, and how fast it zooms and pans, in Chromium.

    python benchmarks/bench_report.py [--rounds 5]

Traces of about 100,000 and 1,000,000 GPU and host events are made from the bundled ones. The first
drawing is counted from the start of navigation, the file being read from disk; a frame from a key
press to the end of its frame, key after key, so that painting one delays the next.

Needs selenium and Debian's chromium and chromium-driver. Without a GPU the browser paints in
software, as here.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from make_trace import make
from measure import machine, script
from selenium import webdriver

SIZES = {
    "100k": {"eager_item": 2, "compile_graphs": 1},
    "1M": {"eager_item": 21},
}
TARGETS = {"100k": (3.0, 1.0, 0.100), "1M": (None, 3.0, None)}  # MB, s, s a frame
VIEWS = {"one step": "One step", "everything": "Everything"}
KEYS = "wwddaassddwwaassdddwwwaaasss"

# Presses keys one by one; each is timed to the end of the frame that shows it.
_FRAMES = """
const [label, keys, done] = arguments;
const canvas = document.querySelector("canvas.lanes");
const button = [...document.querySelectorAll(".tools button")].find((b) => b.textContent === label);
const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 0)));
(async () => {
  canvas.scrollIntoView();
  button.click();
  await frame(); await frame();
  const times = [];
  for (const key of keys) {
    const begun = performance.now();
    canvas.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
    await frame();
    times.push((performance.now() - begun) / 1000);
  }
  done(times);
})();
"""


def open_browser() -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for switch in ("--headless=new", "--no-sandbox", "--window-size=1280,900"):
        options.add_argument(switch)
    return webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))


def drawn(browser: webdriver.Chrome, page: Path) -> float:
    """Seconds from the start of navigation to the timeline's first frame."""
    browser.get("about:blank")
    browser.get(page.as_uri())
    query = "return (performance.getEntriesByName('hostgap:drawn')[0] || {}).startTime || 0"
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if found := browser.execute_script(query):
            return float(found) / 1000
        time.sleep(0.02)
    raise TimeoutError(f"{page}: no timeline within a minute")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the HTML report in a browser.")
    parser.add_argument("--rounds", type=int, default=5, help="times each page is opened [5]")
    rounds = parser.parse_args().rounds
    print("\n".join(f"{key}: {value}" for key, value in machine(("hostgap", "selenium")).items()))
    browser = open_browser()
    print(f"browser: Chromium {browser.capabilities['browserVersion']}\n")
    print("| events | made in | file | first drawing | frame, one step | frame, everything |")
    print("|---|--:|--:|--:|--:|--:|")
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        for name, counts in SIZES.items():
            trace, page = Path(folder, f"{name}.json"), Path(folder, f"{name}.html")
            make(counts, trace)
            begun = time.perf_counter()
            subprocess.run(
                [script("hostgap"), "report", trace, "-o", page],
                check=True,
                stderr=subprocess.DEVNULL,
            )
            made = time.perf_counter() - begun
            size = page.stat().st_size / 1e6
            first = [drawn(browser, page) for _ in range(rounds)]
            frames = {}
            for view, label in VIEWS.items():
                frames[view] = browser.execute_async_script(_FRAMES, label, KEYS)
            shown = " | ".join(
                f"{statistics.median(times) * 1e3:.0f} ms, worst {max(times) * 1e3:.0f}"
                for times in frames.values()
            )
            print(
                f"| {name} | {made:.1f} s | {size:.2f} MB "
                f"| {statistics.median(first):.2f} s, worst {max(first):.2f} | {shown} |"
            )
            worst = max(max(times) for times in frames.values())
            most_mb, most_s, most_frame = TARGETS[name]
            for what, value, most in (
                ("MB", size, most_mb),
                ("s to the first drawing", max(first), most_s),
                ("s a frame", worst, most_frame),
            ):
                if most is not None and value > most:
                    missed.append(f"{name}: {value:.3g} {what}, at most {most:g}")
    browser.quit()
    print("\ntargets (100k: 3 MB, 1 s, 100 ms a frame; 1M: 3 s): ", end="")
    print("; ".join(missed) or "met")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
