"""Writes the documentation's screenshots from a finished run, with headless Chromium.

    cipherbayes run examples/flchain.toml --out result
    python tests/screenshots.py result docs/pictures
    cipherbayes run examples/five-hospitals.toml --out hospitals
    python tests/screenshots.py hospitals docs/pictures

Run it again where the report or the live page looks different from the pictures.
"""

from __future__ import annotations

import base64
import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

from browser import Browser
from cipherbayes.report.live import Watcher, serving
from cipherbayes.report.page import write_report

COLOURS = 64
"""Enough for text and lines, and a third of the bytes."""


def shoot(browser: Browser, width: int, first: str, last: str, path: Path) -> None:
    """The page from the top of one element to the bottom of another."""
    browser.devtools(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=1000, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    top, bottom = browser.run(f"""
        const at = (query, side) => window.scrollY
          + document.querySelector(query).getBoundingClientRect()[side];
        return [at({first!r}, 'top'), at({last!r}, 'bottom')];""")
    shot = browser.devtools(
        "Page.captureScreenshot",
        format="png",
        captureBeyondViewport=True,
        clip={"x": 0, "y": top, "width": width, "height": bottom - top + 8, "scale": 1},
    )
    browser.devtools("Emulation.clearDeviceMetricsOverride")
    image = Image.open(io.BytesIO(base64.b64decode(shot["data"])))
    image.convert("RGB").quantize(COLOURS).save(path, optimize=True)


def main(folder: Path, pictures: Path) -> None:
    """Every picture."""
    with tempfile.TemporaryDirectory() as profile, Browser(Path(profile)) as browser:
        browser.open(write_report(folder).as_uri())
        if browser.run("return document.querySelector('#between') !== null;"):
            shoot(browser, 1000, "#sites", "#sites", pictures / "report-sites.png")
            return
        shoot(browser, 1000, "body", "#effects", pictures / "report.png")
        shoot(browser, 400, "#effects", "#effects", pictures / "report-telephone.png")
        shoot(browser, 1000, ".panels", ".panels", pictures / "report-curves.png")
        shoot(
            browser, 1000, "#privacy", "#privacy > :nth-child(4)",
            pictures / "report-privacy.png",
        )  # fmt: skip
        with serving(Watcher.open(folder).look) as address:
            browser.open(address)
            shoot(browser, 1000, "body", "body", pictures / "watch.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
