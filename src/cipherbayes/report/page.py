"""The page itself: head, banner, summary, sections in the order people ask."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from cipherbayes.protocols.certificate import CertificateRecord, promised
from cipherbayes.report.markup import Content, Markup, join, tag
from cipherbayes.report.numbers import duration, short
from cipherbayes.report.run_contents import Contents
from cipherbayes.report.sections.cost import cost_section
from cipherbayes.report.sections.findings import findings_section
from cipherbayes.report.sections.incidence import incidences
from cipherbayes.report.sections.methods import methods_section
from cipherbayes.report.sections.privacy import banner, privacy_section
from cipherbayes.report.sections.security import security_section
from cipherbayes.report.sections.sites import sites_section
from cipherbayes.report.sections.uncertainty import uncertainty_section
from cipherbayes.results.export import write_table
from cipherbayes.version import __version__

NAME, INCIDENCE = "report.html", "incidence.csv"

# The browser itself refuses whatever is not in the page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

SECTIONS: tuple[tuple[str, str, Callable[[Contents], Markup]], ...] = (
    ("found", "What was found", findings_section),
    ("sure", "How sure", uncertainty_section),
    ("sites", "How sites differ", sites_section),
    ("privacy", "Privacy", privacy_section),
    ("security", "Security", security_section),
    ("cost", "Cost", cost_section),
    ("methods", "For a paper", methods_section),
    ("study", "The study file", lambda contents: _study(contents)),
)


def write_report(
    folder: str | Path,
    out: str | Path | None = None,
    causes: Sequence[str | Path] = (),
) -> Path:
    """Write the report of a finished run, whole or not at all.

    Parameters
    ----------
    folder
        The folder of a finished run.
    out
        The file to write; ``report.html`` in the folder where left out.
    causes
        Folders of the runs of competing causes: the page then shows cumulative
        incidences, and their numbers are written to ``incidence.csv`` beside it.
    """
    path = Path(out) if out is not None else Path(folder) / NAME
    contents = Contents.load(Path(folder), [Path(each) for each in causes])
    page = render(contents)
    path.parent.mkdir(parents=True, exist_ok=True)
    found = incidences(contents)
    if found is not None:
        write_table(path.with_name(INCIDENCE), found.rows())
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(page, encoding="utf-8")
    os.replace(partial, path)
    return path


def render(contents: Contents) -> str:
    """The report as one HTML document."""
    title = f"{contents.record['study']}: report"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content=f"cipherbayes {__version__}"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Markup(style())),
    )
    made = [(key, heading, make(contents)) for key, heading, make in SECTIONS]
    made = [each for each in made if each[2]]
    sections = [
        tag(
            "section",
            tag("h2", heading, id=f"{key}-heading"),
            content,
            id=key,
            aria_labelledby=f"{key}-heading",
        )
        for key, heading, content in made
    ]
    certified = contents.record["privacy"]["certified"]
    body = tag(
        "body",
        tag("a", "Skip to the results", href="#found", class_="skip"),
        banner(contents),
        _header(contents),
        _contents_list([(key, heading) for key, heading, _ in made]),
        tag("main", _warnings(contents), sections),
        tag(
            "footer",
            f"cipherbayes {contents.record['cipherbayes']} · study hash ",
            tag("code", contents.record["study_hash"][:16]),
            " · made without a script and without the network",
        ),
        class_=None if certified else "uncertified",
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def style() -> str:
    """The page's style sheet."""
    return files("cipherbayes.report").joinpath("style.css").read_text("utf-8")


def _header(contents: Contents) -> Markup:
    record = contents.record
    privacy = record["privacy"]
    count = len(record["sites"])
    declared = contents.study.privacy and contents.study.privacy.records
    tiles: list[tuple[str, Content]] = [
        ("Model", f"{record['model']}"),
        ("Sites", f"{count}"),
        ("Records", f"{declared:,}" if declared else "not declared"),
        (
            "Rounds",
            f"{contents.all_rounds:,}, "
            f"{contents.protocol.method_words(contents.study)}",
        ),
        ("Privacy", _promise_tile(privacy)),
        ("Time", duration(record["timing"]["wall_s"])),
    ]
    return tag(
        "header",
        tag("p", "cipherbayes report", class_="brand"),
        tag("h1", record["study"]),
        tag("p", f"{contents.protocol.headline}: {', '.join(record['sites'])}."),
        tag(
            "dl",
            [tag("div", tag("dt", name), tag("dd", value)) for name, value in tiles],
            class_="tiles",
        ),
    )


def _promise_tile(privacy: CertificateRecord) -> Content:
    promise = promised(privacy)
    if promise is None:
        return tag("strong", "none", class_="bad")
    said = f"ε = {short(promise[0])}, δ = {short(promise[1])}"
    if privacy["certified"]:
        return join(said, " ", tag("span", "certified", class_="good"))
    return join(said, " ", tag("strong", "not certified", class_="bad"))


def _contents_list(sections: list[tuple[str, str]]) -> Markup:
    links = [tag("li", tag("a", heading, href=f"#{key}")) for key, heading in sections]
    return tag("nav", tag("ol", links), aria_label="Contents")


def _warnings(contents: Contents) -> Markup:
    warnings = contents.record["warnings"]
    if not warnings:
        return Markup()
    return tag(
        "aside",
        tag("h2", "Read this first"),
        tag("ul", [tag("li", text) for text in warnings]),
        class_="warnings",
        aria_label="Warnings",
    )


def _study(contents: Contents) -> Markup:
    return join(
        tag(
            "p",
            "The study with its defaults filled in, as all parties saw it. Its hash: ",
            tag("code", contents.record["study_hash"], class_="long"),
            ".",
        ),
        tag(
            "pre",
            tag("code", contents.study.without_paths().to_toml()),
            tabindex="0",
            aria_label="Study file",
        ),
    )
