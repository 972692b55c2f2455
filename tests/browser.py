"""Headless Chromium, driven through ChromeDriver's own HTTP protocol (W3C WebDriver).

Nothing to install but the browser: a session is a few JSON requests on loopback.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

MISSING = None
if CHROMIUM is None or DRIVER is None:
    MISSING = "chromium and chromedriver are not installed"

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]


UNFIT = r"""
const screen = document.documentElement.clientWidth, found = [];
if (document.documentElement.scrollWidth > screen)
  found.push(`scrolls sideways: ${document.documentElement.scrollWidth} > ${screen}`);
for (const e of document.querySelectorAll('.scroll'))
  if (e.scrollWidth > e.clientWidth + 1)
    found.push(`a table scrolls: ${e.textContent.trim().slice(0, 60)}`);
const said = e => `${e.tagName} ${e.textContent.trim().slice(0, 60)}`;
const scrolls = e => {
  for (let p = e; p && p !== document.documentElement; p = p.parentElement)
    if (/auto|scroll/.test(getComputedStyle(p).overflowX)) return true;
  return false;
};
for (const e of document.querySelectorAll('body *')) {
  const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
  const style = getComputedStyle(e), box = e.getBoundingClientRect();
  if (!own || e.closest('svg, [aria-hidden=true], .unseen, .skip')) continue;
  if (box.width < 2 || style.visibility === 'hidden' || scrolls(e)) continue;
  if (box.left >= screen || box.right <= 0) continue;  // a menu that is put away
  if (box.right > screen + 1 || box.left < -1) found.push('sticks out: ' + said(e));
  if (/hidden|clip/.test(style.overflowX) && e.scrollWidth > e.clientWidth + 1)
    found.push('cut off: ' + said(e));
}
return found;"""


class Browser:
    """A browser for the length of a ``with`` block."""

    def __init__(self, profile: Path) -> None:
        self._profile = profile
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]

    def __enter__(self) -> Browser:
        assert DRIVER is not None
        self._driver = subprocess.Popen(
            [DRIVER, f"--port={self._port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 30.0
        while True:
            try:
                if self._call("GET", "/status")["ready"]:
                    break
            except (urllib.error.URLError, ConnectionError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        options = {
            "binary": CHROMIUM,
            "args": [*ARGUMENTS, f"--user-data-dir={self._profile}"],
        }
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait(timeout=10)

    def open(self, url: str, *, width: int = 1200, height: int = 900) -> None:
        """Load a page in a window of a size; what was logged before is dropped."""
        self._post("/window/rect", {"width": width, "height": height})
        self._logged("browser")
        self._logged("performance")
        self._post("/url", {"url": url})

    def run(self, script: str) -> Any:
        """The value of a JavaScript function's body."""
        return self._post("/execute/sync", {"script": script, "args": []})

    def devtools(self, command: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        body = {"cmd": command, "params": parameters}
        return self._post("/goog/cdp/execute", body)

    def unfit(self, width: int, medium: str = "screen") -> list[str]:
        """What does not fit a screen of a width: a page that scrolls sideways, things
        that stick out of it, text that is cut off, tables that scroll by themselves.
        Code may be wider than the page."""
        self.devtools("Emulation.setEmulatedMedia", media=medium)
        try:
            found: list[str] = self.at_width(width, UNFIT)
        finally:
            self.devtools("Emulation.setEmulatedMedia", media="")
        return found

    def at_width(self, width: int, script: str) -> Any:
        """The value of a function's body on a screen of a width.

        A window is no narrower than 500 pixels: a telephone has to be emulated.
        """
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        try:
            return self.run(script)
        finally:
            self.devtools("Emulation.clearDeviceMetricsOverride")

    def complaints(self) -> list[str]:
        """What the console said since the page was opened."""
        return [entry["message"] for entry in self._logged("browser")]

    def requested(self) -> list[str]:
        """Addresses that the page asked for since it was opened."""
        events = [
            json.loads(e["message"])["message"] for e in self._logged("performance")
        ]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
            # the browser's own first page
            and not event["params"]["request"]["url"].startswith(("chrome://", "data:"))
        ]

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        shot = self.devtools(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def _logged(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._post("/se/log", {"type": kind})
        return found

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._call("POST", self._session + path, body)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]
