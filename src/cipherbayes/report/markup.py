"""HTML that cannot be injected into: text is escaped unless it is :class:`Markup`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

VOID = frozenset({"meta", "link", "br", "hr", "img", "col", "wbr"})
"""Elements that have no content and no end."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = str | Iterable[str]


def tag(element: str, *content: Content, **attributes: object) -> Markup:
    """An element: ``tag("td", "a < b", class_="number")``.

    An attribute that is None or False is left out, True is written as its name. A
    trailing underscore goes, others become hyphens.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if element in VOID:
        return Markup(f"<{element}{written}>")
    return Markup(f"<{element}{written}>{join(*content)}</{element}>")


def join(*content: Content) -> Markup:
    """Pieces one after the other."""
    return Markup("".join(map(_text, content)))


def _text(content: Content) -> str:
    if isinstance(content, Markup):
        return content
    if isinstance(content, str):
        return escape(content)
    return "".join(map(_text, content))


def _attribute(key: str, value: object) -> str:
    name = key.removesuffix("_").replace("_", "-")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    return f' {name}="{escape(str(value))}"'


def table(
    caption: str,
    headings: Sequence[Content],
    rows: Iterable[Sequence[Content]],
    *,
    words: Iterable[int] = (),
    foot: Sequence[Content] | None = None,
    class_: str | None = None,
    id_: str | None = None,
) -> Markup:
    """A real table; the first cell of a row is its heading.

    Parameters
    ----------
    words
        Columns, besides the first, that hold words; the others hold numbers.
    foot
        A last row that belongs to the drawing, such as an axis.
    """
    aligned = {0, *words}
    # On a narrow screen a row of many cells is a card, each cell with its heading.
    if len(headings) > 3 and "cards" not in (class_ or ""):
        class_ = " ".join(filter(None, (class_, "stack")))
    head = [
        tag("th", text, scope="col", class_=None if k in aligned else "number")
        for k, text in enumerate(headings)
    ]
    body = []
    for row in rows:
        cells = [tag("th", row[0], scope="row")]
        cells += [
            tag(
                "td",
                text,
                class_=None if k in aligned else "number",
                data_label=_plain(headings[k]),
            )
            for k, text in enumerate(row[1:], start=1)
        ]
        body.append(tag("tr", cells))
    whole = tag(
        "table",
        tag("caption", tag("span", caption)),
        tag("thead", tag("tr", head)),
        tag("tbody", body),
        []
        if foot is None
        else tag("tfoot", tag("tr", [tag("td", c) for c in foot], aria_hidden="true")),
        class_=class_,
        id=id_,
    )
    # A wide table scrolls in its own box, which the keyboard can reach.
    return tag(
        "div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption
    )


def mean_and_interval(mean: str, spread: str) -> Markup:
    """A number with its interval below it, in one cell."""
    return tag("span", mean, tag("small", spread), class_="spread")


def _plain(heading: Content) -> str | None:
    """A heading that is words alone; None for markup and where there is none."""
    plain = isinstance(heading, str) and not isinstance(heading, Markup)
    return (str(heading) or None) if plain else None


def facts(pairs: Iterable[tuple[str, Content]]) -> Markup:
    """Names and what is true of them."""
    return tag(
        "dl",
        [tag("div", tag("dt", name), tag("dd", said)) for name, said in pairs],
        class_="facts",
    )
