"""The report: what it says is what the run's folder holds, and nothing secret."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.report.numbers import duration, number, resolved, size
from cipherbayes.results.result import Result
from finished_runs import FinishedRuns, runs
from terminal import cipherbayes

__all__ = ["runs"]


class Tables(HTMLParser):
    """Cells of every table, by the table's id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] | None = None
        self._cell: list[str] | None = None
        self._skipping = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._rows = self.tables.setdefault(dict(attrs).get("id") or "", [])
        elif tag == "tr" and self._rows is not None:
            self._rows.append([])
        elif tag in ("td", "th"):
            self._cell = []

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._rows is not None and self._cell is not None:
            self._rows[-1].append("".join(self._cell))
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)


def page_of(folder: Path) -> str:
    done = cipherbayes("report", folder)
    assert done.returncode == 0, done.stderr
    assert "report.html" in done.stdout
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "federated",
        "survival",
        "open",
        "point",
        "insecure",
        "psgld",
        "pooled",
        "encrypted",
        "printed",
    ],
)
def test_the_tables_are_those_of_result_json(runs: FinishedRuns, name: str) -> None:
    folder = runs[name]
    page = page_of(folder)
    record = json.loads((folder / "result.json").read_text())
    tables = Tables(page).tables
    shown = tables["posterior"][1:]
    assert [row[0] for row in shown] == [row["name"] for row in record["posterior"]]
    for cells, row in zip(shown, record["posterior"], strict=True):
        assert cells[1] == number(row["mean"], 4)
        assert cells[3:5] == [number(row["lower"], 4), number(row["upper"], 4)]
    effects = tables["effects"][1 : len(record["effects"]) + 1]
    for cells, entry in zip(effects, record["effects"], strict=True):
        step = entry["per"].removesuffix(f" of {entry['name']}")
        assert cells[:2] == [entry["name"], step]
        ends = (entry["lower"], entry["upper"])
        assert cells[3] == resolved(entry["estimate"], *ends)


def test_the_page_loads_nothing_and_runs_nothing(runs: FinishedRuns) -> None:
    page = page_of(runs["federated"])
    assert "<script" not in page
    assert not re.search(r"(?:src|href)=\"(?!#|data:,)", page)
    assert "url(" not in page
    assert "default-src &#x27;none&#x27;" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("open", "Not private"),
        ("insecure", "Not certified: insecure repeatable noise"),
        pytest.param(
            "printed",
            "Not certified: the paper’s method as printed",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_run_that_promises_nothing_says_so_first(
    runs: FinishedRuns, name: str, words: str
) -> None:
    page = page_of(runs[name])
    body = page.split("<body", 1)[1]
    assert words in body
    assert body.index('role="alert"') < body.index("<h1")


def test_a_certified_run_has_no_banner(runs: FinishedRuns) -> None:
    assert 'role="alert"' not in page_of(runs["federated"])


def test_the_certificate_is_said_in_words(runs: FinishedRuns) -> None:
    page = page_of(runs["federated"])
    record = json.loads((runs["federated"] / "result.json").read_text())
    for party in record["privacy"]["holds_against"]:
        assert f"<li>{party}</li>" in page
    tables = Tables(page).tables
    assert {row[0] for row in tables["ledgers"][1:]} == set(record["sites"])
    assert {row[0] for row in tables["identities"][1:]} == {"CSP", *record["sites"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["point", "encrypted"])
def test_cost_is_shown_for_every_party(runs: FinishedRuns, name: str) -> None:
    record = json.loads((runs[name] / "result.json").read_text())
    shown = {row[0]: row[2:] for row in Tables(page_of(runs[name])).tables["costs"][1:]}
    parties = {party["name"]: party for party in record["parties"]}
    assert set(shown) == {*record["sites"], "CSP", "Server"}
    for site in record["sites"]:
        assert shown[site][0] == duration(parties[site]["seconds"])
        assert shown[site][2] == size(parties[site]["bytes"])
    assert sum(p["bytes"] for p in parties.values()) == record["bytes"]["total"]
    assert max(parties[s]["seconds"] for s in record["sites"]) == pytest.approx(
        record["timing"]["site_s"]
    )


@pytest.mark.parametrize("name", ["point", "encrypted"])
def test_the_encryption_key_is_named_by_its_id(runs: FinishedRuns, name: str) -> None:
    """The key itself was erased when the run ended; what it was called stays."""
    key = RunFolder.open(runs[name]).key_id()
    record = json.loads((runs[name] / "result.json").read_text())
    assert key is not None
    assert record["encryption"]["key"] == key
    assert key in page_of(runs[name])


def test_a_result_that_left_its_folder_still_says_who_signed(
    runs: FinishedRuns, tmp_path: Path
) -> None:
    for file in ("result.json", "posterior.nc", "study.toml"):
        shutil.copy(runs["point"] / file, tmp_path)
    tables = Tables(page_of(tmp_path)).tables
    assert {row[0] for row in tables["identities"][1:]} == {
        "CSP",
        "north",
        "south",
        "east",
    }


def test_an_encrypted_update_says_what_protects_its_key(runs: FinishedRuns) -> None:
    page = page_of(runs["encrypted"])
    for said in (
        "CKKS, circuit “fast”",
        "n = 8,192",
        "none: the server may find the secret key in what is released",
        "Not certified: the secret key is not hidden",
        "every site recomputes every output",
        "modulo the ciphertext’s modulus; they cancel in the sum",
        "not hidden from the server together with a malicious site",
    ):
        assert said in page


@pytest.mark.slow
def test_the_papers_mode_claims_nothing_anywhere(runs: FinishedRuns) -> None:
    page = page_of(runs["printed"])
    privacy = json.loads((runs["printed"] / "result.json").read_text())["privacy"]
    assert "The claimed ε = 3 does not hold" in page
    assert f"ε would be {number(privacy['epsilon'])}" in page
    assert "No promise is made" in page
    assert "drawn by the server, who can remove it" in page
    assert "almost the same about any one row" not in page


@pytest.mark.slow
def test_held_out_rows_give_a_calibration_plot(runs: FinishedRuns) -> None:
    page = page_of(runs["psgld"])
    assert "groups of held-out rows" in page
    assert "This report shows points without intervals." in page
    assert "points without intervals</span></caption>" in page
    record = json.loads((runs["psgld"] / "result.json").read_text())
    (flag,) = [each for each in record["flags"] if each["code"] == "not-calibrated"]
    assert flag["unusable"]
    assert flag["parameters"] == [row["name"] for row in record["posterior"]]
    for row in (*record["posterior"], *record["effects"]):
        assert row["lower"] is None
        assert row["upper"] is None


def test_no_path_no_secret_and_no_row_is_in_the_page(runs: FinishedRuns) -> None:
    page = page_of(runs["federated"])
    assert str(runs["federated"].parent) not in page
    assert ".csv" not in page
    for key in runs["federated"].rglob("*.key"):
        assert key.read_bytes().hex() not in page


def test_every_heading_figure_and_table_can_be_heard(runs: FinishedRuns) -> None:
    page = page_of(runs["survival"])
    assert page.count("<table") == page.count("<caption>")
    images = re.findall(r'role="img" aria-label="([^"]*)"', page)
    assert len(images) == page.count("<figure")
    assert all(len(said) > 30 for said in images)
    levels = [int(level) for level in re.findall(r"<h([1-6])", page)]
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))


def test_a_study_whose_names_are_html_cannot_inject_any(runs: FinishedRuns) -> None:
    page = page_of(runs["odd names"])
    assert "<b>age</b>" not in page
    assert "&lt;b&gt;age&lt;/b&gt;" in page


def test_a_folder_without_a_result_is_refused_in_one_line(tmp_path: Path) -> None:
    done = cipherbayes("report", tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "holds no finished run" in done.stderr


def test_programs_learn_where_the_page_is(runs: FinishedRuns, tmp_path: Path) -> None:
    done = cipherbayes(
        "report", runs["open"], "--out", tmp_path / "page.html", "--json"
    )
    said = json.loads(done.stdout)
    assert Path(said["report"]) == tmp_path / "page.html"
    assert said["bytes"] == (tmp_path / "page.html").stat().st_size


@pytest.mark.slow
def test_a_page_with_everything_tells_each_number_once(runs: FinishedRuns) -> None:
    """A site's records are the same wherever they are told, groups add up, and the plan
    knew how much would be sent."""
    folder = runs["hospitals"]
    result = Result.load(folder)
    record, tables = result.record, Tables(page_of(folder)).tables
    mean = {
        (row["column"], row["statistic"], row["group"]): row["mean"]
        for row in record["describe"]
    }
    for site, told, *_ in tables["given-away"][1:]:
        assert told.startswith(number(mean["", "rows", f"site: {site}"]))
    sites = [f"site: {site}" for site in record["sites"]]
    for column, statistic, _ in [key for key in mean if key[2] == "all"]:
        if statistic.startswith("count: "):
            parts = [mean[column, statistic, site] for site in sites]
            assert sum(parts) == pytest.approx(mean[column, statistic, "all"], rel=1e-3)
    encryption = plan_releases(result.study.with_privacy()).encryption
    assert encryption is not None
    sent = record["bytes"]["total"]
    assert encryption.total_bytes == pytest.approx(sent, rel=0.1)
