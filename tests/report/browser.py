"""Headless Chromium for the report's tests."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

AXE = Path(__file__).parent / "axe" / "axe.min.js"

# How many pixels of the timeline have exactly a colour of the style sheet.
_PIXELS = """
// a copy: reading the canvas itself would slow it down from then on
const canvas = document.querySelector(".run:not([hidden]) canvas.lanes");
const {width, height} = canvas;
const copy = Object.assign(document.createElement("canvas"), {width, height});
const context = copy.getContext("2d", {willReadFrequently: true});
context.drawImage(canvas, 0, 0);
const probe = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(arguments[0]).trim();
probe.fillRect(0, 0, 1, 1);
const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
const {data} = context.getImageData(0, 0, width, height);
let count = 0;
for (let i = 0; i < data.length; i += 4) {
  if (data[i] === r && data[i + 1] === g && data[i + 2] === b) count++;
}
return count;
"""
_AXE = """
const done = arguments[0];
for (const one of document.querySelectorAll("details")) one.open = true;
axe.run(document, {resultTypes: ["violations"]}).then((found) => done(found.violations.map(
  (one) => [one.impact, one.id, one.nodes.map((node) => node.html.slice(0, 200)).slice(0, 3)])));
"""


class Browser:
    """One browser for all tests; `reset` before each."""

    def __init__(self) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for switch in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ):
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = webdriver.ChromeService(str(shutil.which("chromedriver")))
        self.driver = webdriver.Chrome(options, service)
        self.driver.set_script_timeout(60)

    def reset(self) -> None:
        self.size(1280, 900)
        self.media()
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get_log("performance")

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def media(self, scheme: str = "light", media: str = "screen") -> None:
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"media": media, "features": features}
        )

    def open(self, page: Path, fragment: str = "") -> None:
        """Open a page anew and wait for its timeline, where it has one."""
        self.driver.get("about:blank")
        self.driver.get(page.as_uri() + fragment)
        if self.all(".run:not([hidden]) [data-timeline]"):
            self.until("performance.getEntriesByName('hostgap:drawn').length > 0")
        self.settle()

    def settle(self) -> None:
        """Wait until what was asked for is drawn and the address is written."""
        time.sleep(0.25)
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => setTimeout(done, 0));"
        )

    def until(self, condition: str) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self.run(f"return Boolean({condition})"):
                return
            time.sleep(0.02)
        raise AssertionError(f"never came true: {condition}")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def click(self, selector: str) -> None:
        self.run("arguments[0].scrollIntoView({block: 'center'})", self.one(selector))
        self.one(selector).click()
        self.settle()

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        for key in keys:
            webdriver.ActionChains(self.driver).send_keys(getattr(Keys, key, key)).perform()
        self.settle()

    def hover(self, element: WebElement, x: int, y: int) -> None:
        """Move the pointer to a point of an element, counted from its top left corner."""
        size = element.size
        dx, dy = x - size["width"] // 2, y - size["height"] // 2
        webdriver.ActionChains(self.driver).move_to_element_with_offset(element, dx, dy).perform()
        self.settle()

    def pixels(self, colour: str) -> int:
        return int(self.run(_PIXELS, colour))

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a select element."""
        self.run(
            "const e = document.querySelector(arguments[0]); e.value = arguments[1];"
            "e.dispatchEvent(new Event('change'))",
            selector,
            value,
        )
        self.settle()

    def complaints(self) -> list[str]:
        """What the console says."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses of everything that was asked for since `reset`.

        The browser also reports what the policy refused; that never left and is not among them.
        """
        found, refused = {}, set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            detail = message["params"]
            if message["method"] == "Network.requestWillBeSent":
                found[detail["requestId"]] = str(detail["request"]["url"])
            elif detail.get("blockedReason") == "csp":
                refused.add(detail["requestId"])
        return [url for number, url in found.items() if number not in refused]

    def violations(self) -> list[Any]:
        """What axe-core finds, everything unfolded: (impact, rule, elements)."""
        self.run(AXE.read_text(encoding="utf-8"))
        return list(self.driver.execute_async_script(_AXE))
