"""The report in a real browser: silent, offline, drawn, readable at every width."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import MISSING, Browser
from cipherbayes.report.page import write_report
from finished_runs import FinishedRuns, runs

__all__ = ["runs"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]

PAPER = 688
"""Pixels between the margins of a sheet of A4."""
NAMES = ["hospitals", "federated", "survival", "open", "point", "encrypted", "printed"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_silent_and_asks_for_nothing_else(
    browser: Browser, runs: FinishedRuns, name: str
) -> None:
    address = write_report(runs[name]).as_uri()
    browser.open(address)
    assert browser.complaints() == []
    assert [url for url in browser.requested() if url != "data:,"] == [address]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [500, 1400])
def test_every_drawing_is_there_and_visible(
    browser: Browser, runs: FinishedRuns, name: str, width: int
) -> None:
    browser.open(write_report(runs[name]).as_uri(), width=width)
    drawings = browser.run("""
        return [...document.querySelectorAll('svg')].map(svg => {
          const box = svg.getBoundingClientRect();
          const marks = svg.querySelectorAll('path, line, circle, rect, text');
          const shown = [...marks].filter(mark => {
            const m = mark.getBoundingClientRect();
            return m.width + m.height > 0;
          });
          return [svg.getAttribute('class'), box.width, box.height,
                  marks.length, shown.length];
        });""")
    assert len(drawings) > 10
    for kind, across, up, marks, shown in drawings:
        assert across > 20, kind
        assert up > 8, kind
        assert marks > 0, kind
        assert shown > 0, kind


@pytest.mark.parametrize("name", NAMES)
def test_the_page_fits_every_screen(
    browser: Browser, runs: FinishedRuns, name: str
) -> None:
    browser.open(write_report(runs[name]).as_uri())
    for width in (400, 768, 1280, 1800):
        assert browser.unfit(width) == [], width


@pytest.mark.parametrize("name", ["hospitals", "survival"])
def test_nothing_is_cut_off_on_paper(
    browser: Browser, runs: FinishedRuns, name: str
) -> None:
    browser.open(write_report(runs[name]).as_uri())
    assert browser.unfit(PAPER, medium="print") == []


@pytest.mark.parametrize("width", [400, 768, 1280])
def test_labels_of_axes_do_not_touch(
    browser: Browser, runs: FinishedRuns, width: int
) -> None:
    browser.open(write_report(runs["hospitals"]).as_uri())
    touching = browser.at_width(
        width,
        """
        const found = [];
        for (const axis of document.querySelectorAll('svg.x-axis')) {
          const boxes = [...axis.querySelectorAll('text')]
            .map(t => [t.getBoundingClientRect(), t.textContent])
            .sort((a, b) => a[0].left - b[0].left);
          for (let k = 1; k < boxes.length; k++)
            if (boxes[k][0].left < boxes[k - 1][0].right + 3)
              found.push(boxes[k - 1][1] + boxes[k][1]);
        }
        return found;""",
    )
    assert touching == []


def test_what_does_not_fit_is_found(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        "<div class='scroll' style='overflow: auto'><p style='width: 950px'>a table</p>"
        "</div><p style='width: 900px'>too wide</p>"
        "<p style='width: 90px; overflow: hidden; white-space: nowrap'>cut off "
        "in the middle</p><pre style='overflow: auto'>" + "may be wide " * 90 + "</pre>"
    )
    browser.open(page.as_uri())
    assert [found.partition(":")[0] for found in browser.unfit(400)] == [
        "scrolls sideways",
        "a table scrolls",
        "sticks out",
        "cut off",
    ]
    assert [found.partition(":")[0] for found in browser.unfit(1280)] == ["cut off"]


@pytest.mark.parametrize("name", ["federated", "survival", "open", "point"])
@pytest.mark.parametrize("width", [400, 768, 1280])
def test_every_effect_is_in_sight_on_every_screen(
    browser: Browser, runs: FinishedRuns, name: str, width: int
) -> None:
    """Names, ratios and intervals, without scrolling sideways; nothing is cut off."""
    browser.open(write_report(runs[name]).as_uri(), width=width)
    # A window is no narrower than 500 pixels: a telephone has to be emulated.
    browser.devtools(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=900, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    seen, wide, hidden, cut = browser.run("""
        const screen = document.documentElement.clientWidth;
        const [name, step] = document.querySelector('#effects tbody tr').children;
        name.textContent = 'creatinine clearance[missing]';
        step.textContent = 'missing against 1.0 units of it';
        const cells = [...document.querySelectorAll('#effects tbody :is(th, td)')]
          .filter(c => getComputedStyle(c).display !== 'none');
        const hidden = cells.filter(c => {
          const box = c.getBoundingClientRect();
          return box.left < 0 || box.right > screen + 1 || box.width === 0;
        });
        const cut = cells.filter(c => c.scrollWidth > c.clientWidth + 1
          && !c.querySelector('svg'));
        return [screen, document.documentElement.scrollWidth,
                hidden.map(c => c.textContent), cut.map(c => c.textContent)];""")
    browser.devtools("Emulation.clearDeviceMetricsOverride")
    assert seen == width
    assert wide <= seen
    assert hidden == []
    assert cut == []


@pytest.mark.parametrize("name", ["open", "printed"])
def test_the_banner_stays_in_sight(
    browser: Browser, runs: FinishedRuns, name: str
) -> None:
    browser.open(write_report(runs[name]).as_uri())
    seen = browser.run("""
        window.scrollTo({top: 3000, behavior: 'instant'});
        const box = document.querySelector('#banner').getBoundingClientRect();
        return [box.top, box.height, window.scrollY];""")
    assert seen[2] > 1000
    assert seen[0] == 0
    assert seen[1] > 40


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(
    browser: Browser, runs: FinishedRuns, scheme: str
) -> None:
    """Contrast of at least 4.5 (WCAG AA) for every piece of text."""
    browser.open(write_report(runs["federated"]).as_uri())
    browser.devtools(
        "Emulation.setEmulatedMedia",
        features=[{"name": "prefers-color-scheme", "value": scheme}],
    )
    worst = browser.run("""
        const light = colour => {
          const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(v => {
            v /= 255;
            return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
          });
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const ground = element => {
          for (let e = element; e; e = e.parentElement) {
            const c = getComputedStyle(e).backgroundColor;
            if (!/, 0\\)$/.test(c)) return c;
          }
          return getComputedStyle(document.documentElement).backgroundColor;
        };
        let worst = [21, ''];
        for (const e of document.querySelectorAll('body *')) {
          const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
          if (!own || e.matches('title, style, .skip')) continue;
          const style = getComputedStyle(e);
          const ink = e.closest('svg') ? style.fill : style.color;
          const [a, b] = [light(ink), light(ground(e))].sort((x, y) => y - x);
          const contrast = (a + 0.05) / (b + 0.05);
          if (contrast < worst[0]) worst = [contrast, e.tagName + e.textContent];
        }
        return worst;""")
    browser.devtools("Emulation.setEmulatedMedia", features=[])
    assert worst[0] >= 4.5, worst
