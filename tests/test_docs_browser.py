"""The documentation in a real browser, where mkdocs and the browser are here."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from browser import MISSING, Browser

ROOT = Path(__file__).resolve().parents[1]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed"),
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", folder],
        cwd=ROOT,
        check=True,
    )
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def test_every_page_fits_every_screen_and_shows_its_pictures(
    browser: Browser, site: Path
) -> None:
    pages = sorted(site.glob("**/index.html"))
    assert len(pages) >= 26
    for page in pages:
        browser.open(page.as_uri())
        for width in (400, 768, 1280):
            assert browser.unfit(width) == [], f"{page.parent.name} at {width}"
        broken = browser.run(
            "return [...document.images].filter(i => !i.naturalWidth).map(i => i.src)"
        )
        assert broken == []


def test_the_page_for_an_ethics_board_is_two_sides_of_paper(
    browser: Browser, site: Path
) -> None:
    browser.open((site / "ethics-board" / "index.html").as_uri())
    for width, height in ((8.27, 11.69), (8.5, 11.0)):  # A4 and Letter, in inches
        printed = browser.devtools(
            "Page.printToPDF", paperWidth=width, paperHeight=height
        )
        pages = re.findall(rb"/Type\s*/Page[^s]", base64.b64decode(printed["data"]))
        assert len(pages) == 2
