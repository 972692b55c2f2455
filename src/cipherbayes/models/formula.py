"""What a formula says: ``death ~ rcs(age, 4) + sex * diabetes + log(creatinine)``.

The grammar is formulaic's; nothing else of it is used. Its transforms learn from the
rows (a mean, a quantile, the levels that occur), which a private study may not do for
free, so the functions here are those whose public range or levels say everything:
:mod:`cipherbayes.data.terms` makes columns of them.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from typing import Any, Literal

from cipherbayes.models.formula_size import MOST_FACTORS, require_few_terms
from cipherbayes.models.transforms import TRANSFORMS, TransformName, transform_called

LONGEST = 2000
"""Characters of a formula."""
Curve = Literal["poly", "rcs", "bs"]

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "C": ("ref",),
    "poly": ("degree",),
    "rcs": ("knots",),
    "bs": ("df", "knots", "degree"),
    "offset": (),
    **dict.fromkeys(TRANSFORMS, ()),
}
"""Functions and their arguments after the column, in order."""

LEARNING = frozenset(
    {"center", "scale", "standardize", "cr", "cc", "cs", "hashed", "lag", "ns", "te"}
)
"""Functions that other programs fit to the rows."""

CATEGORY = 'write C(column), or C(column, ref="level"), and its levels under [features]'
HABITS = {
    "I": "a power is poly(column, 2), a product is a:b or a*b",
    "factor": CATEGORY,
    "as.factor": CATEGORY,
    "strata": "sites with baselines of their own are [hierarchy] baseline = "
    '"stratified"; any other stratum is a feature with levels',
}
"""What functions of R's formulas are here."""


@dataclass(frozen=True)
class Factor:
    """One column of the table, seen through a function.

    Attributes
    ----------
    text
        As the formula writes it, e.g. ``rcs(age, 4)``.
    column
        The feature.
    transform
        A logarithm or a root of it.
    categorical, reference
        Whether it is written ``C(...)``, and the reference level that it names.
    curve
        Polynomial, restricted cubic spline or spline; None for a straight line.
    size
        Number of knots of a restricted spline, or of columns of a spline, where
        ``knots`` are not given.
    knots
        In the column's own units.
    degree
        Of a polynomial, or of a spline's pieces.
    """

    text: str
    column: str
    transform: TransformName | None = None
    categorical: bool = False
    reference: str | int | bool | None = None
    curve: Curve | None = None
    size: int = 0
    knots: tuple[float, ...] | None = None
    degree: int = 3


@dataclass(frozen=True)
class Formula:
    """A formula taken apart.

    Attributes
    ----------
    response
        The outcome's column; or those of ``Surv(time, event)``, with the entry first
        where it has three.
    survival
        Whether the response is written ``Surv(...)``.
    terms
        Main effects and products, each with its factors.
    intercept
        False where the formula says ``- 1`` or ``0 +``.
    exposure, offset
        Column of ``offset(log(column))``, or of ``offset(column)``.
    """

    text: str
    response: tuple[str, ...]
    survival: bool
    terms: tuple[tuple[Factor, ...], ...]
    intercept: bool
    exposure: str | None = None
    offset: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The features that it names, in the order in which it does."""
        named = [factor.column for term in self.terms for factor in term]
        return tuple(dict.fromkeys(named))


@lru_cache(maxsize=256)
def parse_formula(text: str) -> Formula:
    """Take a formula apart; ValueError, with a remedy, where it says something else."""
    if len(text) > LONGEST:
        raise ValueError(f"a formula has at most {LONGEST} characters")
    left, right = _sides(text)
    response, survival = _response(left)
    intercept = False
    terms: list[tuple[Factor, ...]] = []
    exposure = offset = None
    for written in right:
        if [part.text for part in written] == ["1"]:
            intercept = True
            continue
        calls = [_call(part) for part in written]
        if any(name == "offset" for name, _ in calls):
            if len(calls) > 1 or exposure or offset:
                raise ValueError("a formula has one offset(...), and no product of it")
            exposure, offset = _offset(calls[0][1])
            continue
        terms.append(
            tuple(
                _factor(part.text, name, node)
                for part, (name, node) in zip(written, calls, strict=True)
            )
        )
    if not terms:
        raise ValueError("names no feature: write outcome ~ feature + feature")
    _require_margins(terms)
    return Formula(text, response, survival, tuple(terms), intercept, exposure, offset)


@dataclass(frozen=True)
class _Part:
    """A factor as it is written: a column by itself, or a Python expression."""

    text: str
    node: Any = None


def _sides(text: str) -> tuple[_Part, list[list[_Part]]]:
    """The response, and the factors of each term of the right-hand side."""
    # Late, because it brings pandas along.
    from formulaic.errors import FormulaicError
    from formulaic.parser import DefaultFormulaParser

    safe, names = _with_safe_names(text)
    if safe.count("~") != 1:
        raise ValueError("needs one ~, e.g. death ~ age + sex")
    if re.search(r"[\w`]\s*(\^|\*\*)", safe):
        # Which would be the column itself, as it is in R.
        raise ValueError(
            "a power of one column is not understood: a power is poly(column, 2), and "
            "(a + b)**2 has the products of two"
        )
    parser = DefaultFormulaParser()
    try:
        tree = parser.get_ast(safe)
    except Exception:  # below it says what is wrong
        tree = None
    require_few_terms(tree)
    try:
        parsed = parser.get_terms(safe)
    except Exception as error:  # its parser trips over some texts in ways of its own
        if re.search(r"(^|[\s~+])\.($|[\s+])", text):
            raise ValueError("'.' is not understood: name the features") from None
        if re.search(r"\([^()|]*\|{1,2}[^()|]*\)", text):
            raise ValueError(
                "(1 | site) is not written in the formula: a [hierarchy] table gives "
                'sites levels of their own, slopes = ["age"] effects too'
            ) from None
        meant = isinstance(error, FormulaicError | SyntaxError | ValueError)
        told = str(error) if meant else ""
        first = re.sub(r"\x1b\[[0-9;]*m|[⧛⧚]", "", told).strip().splitlines()
        said = _restored(first[0], names) if first else "it cannot be read"
        if said.startswith("Missing operator"):
            said += " A name with a blank stands in backticks: `body mass`."
        raise ValueError(f"is not a formula: {said}") from None
    sides: list[Any] = [getattr(parsed, side, None) for side in ("lhs", "rhs")]
    if any(side is None or isinstance(side, tuple) for side in sides):
        raise ValueError("needs one outcome, ~ and one list of terms")
    left, right = (
        [[_part(factor, names) for factor in term.factors] for term in side]
        for side in sides
    )
    if len(left) != 1 or len(left[0]) != 1:
        raise ValueError("needs one outcome before the ~")
    return left[0][0], right


def _with_safe_names(text: str) -> tuple[str, dict[str, str]]:
    """The formula with names that Python does not take as they are (`my col`, lambda)
    replaced, and what each stands for."""
    names: dict[str, str] = {}

    def safe(found: re.Match[str]) -> str:
        word = found[0]
        plain = word.strip("`")
        if word[0] in "'\"" or not (word[0] == "`" or keyword.iskeyword(plain)):
            return word
        if plain in ("", "True", "False", "None"):
            return word
        stand_in = f"quoted_{len(names)}_"
        names[stand_in] = plain
        return stand_in

    words = r"'[^']*'|\"[^\"]*\"|`[^`]*`|[^\W\d]\w*"
    return re.sub(words, safe, text), names


def _restored(text: str, names: dict[str, str]) -> str:
    for stand_in, name in names.items():
        plain = name.isidentifier()
        text = text.replace(stand_in, name if plain else f"`{name}`")
    return text


def _part(factor: Any, names: dict[str, str]) -> _Part:
    safe = str(factor.expr)
    if factor.eval_method.value == "lookup":
        return _Part(names.get(safe, safe))
    text = _restored(safe, names)
    try:
        node = ast.parse(safe, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"'{text}' is not understood") from None
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            each.id = names.get(each.id, each.id)
    return _Part(text, node)


def _response(part: _Part) -> tuple[tuple[str, ...], bool]:
    """Columns of the response, and whether it is a survival time."""
    node = part.node
    if node is None:
        return (part.text,), False
    if isinstance(node, ast.Call) and _name(node.func) == "Surv" and not node.keywords:
        names = [each.id for each in node.args if isinstance(each, ast.Name)]
        if len(names) == len(node.args) and len(names) in (2, 3):
            return tuple(names), True
    raise ValueError(
        f"'{part.text}' is no outcome: write a column, or Surv(time, event) "
        "for a survival time"
    )


def _call(part: _Part) -> tuple[str, Any]:
    """A factor's function ('' for a column by itself), and its Python expression."""
    text, node = part.text, part.node
    if node is None:
        return "", text
    if not isinstance(node, ast.Call):
        raise ValueError(
            f"'{text}' is not understood: name a column, or a curve of one such as "
            "poly(age, 2)"
        )
    name = _name(node.func)
    if name in LEARNING:
        raise ValueError(
            f"{name}(...) learns from the rows, which a private study would have to "
            "pay for and the sites do not agree on: columns are scaled from their "
            "public ranges; curves are poly, rcs and bs"
        )
    written = text.partition("(")[0].replace("`", "")
    if written in HABITS:
        raise ValueError(f"'{text}' is not understood: {HABITS[written]}")
    if name not in ARGUMENTS:
        raise ValueError(
            f"'{text}' is not understood: the functions are "
            f"{', '.join(sorted(ARGUMENTS))}"
        )
    return name, node


def _factor(text: str, name: str, node: Any) -> Factor:
    if name == "":
        return Factor(text, text)
    values = _arguments(text, name, node)
    inner = node.args[0]
    own = transform_called(name)
    transform = _inner_transform(text, inner) if own is None else None
    column = inner.args[0] if transform else inner
    if not isinstance(column, ast.Name):
        raise ValueError(f"'{text}': the first argument is the name of a column")
    if own is not None:
        return Factor(text, column.id, transform=own)
    if name == "C":
        if transform:
            raise ValueError(f"'{text}': a category has no {transform}")
        reference = values.get("ref")
        if not isinstance(reference, str | int | bool | None):
            raise ValueError(f"'{text}': write C({column.id}, ref=\"level\")")
        return Factor(text, column.id, categorical=True, reference=reference)
    return _curve(text, name, column.id, transform, values)


def _curve(
    text: str,
    name: str,
    column: str,
    transform: TransformName | None,
    values: dict[str, object],
) -> Factor:
    size, knots, degree = 0, None, 3
    if name == "poly":
        degree = _whole(text, "degree", values.get("degree", 2), 2, 5)
    elif name == "rcs":
        given = values.get("knots", 4)
        if isinstance(given, tuple):
            knots = given
        else:
            size = _whole(text, "knots", given, 3, 7)
    else:
        degree = _whole(text, "degree", values.get("degree", 3), 1, 3)
        if "knots" in values:
            stated = values["knots"]
            if not isinstance(stated, tuple) or "df" in values:
                raise ValueError(f"'{text}': give df, or knots as a list")
            knots = stated
        else:
            size = _whole(text, "df", values.get("df", degree + 2), degree, 12)
    if knots is not None:
        least, most = (3, 10) if name == "rcs" else (1, 10)
        if not least <= len(knots) <= most:
            raise ValueError(f"'{text}': {least} to {most} knots")
        if any(b <= a for a, b in pairwise(knots)):
            raise ValueError(f"'{text}': knots must rise")
    return Factor(
        text,
        column,
        transform,
        curve=name,  # type: ignore[arg-type]
        size=size,
        knots=knots,
        degree=degree,
    )


def _offset(node: ast.Call) -> tuple[str | None, str | None]:
    """Column of exposures, or of their logarithms."""
    (inner,) = node.args if len(node.args) == 1 and not node.keywords else (None,)
    if isinstance(inner, ast.Name):
        return None, inner.id
    if (
        isinstance(inner, ast.Call)
        and _name(inner.func) == "log"
        and len(inner.args) == 1
        and isinstance(inner.args[0], ast.Name)
    ):
        return inner.args[0].id, None
    raise ValueError("an offset is written offset(log(column)) or offset(column)")


def _inner_transform(text: str, node: Any) -> TransformName | None:
    if not isinstance(node, ast.Call):
        return None
    found = transform_called(_name(node.func))
    if found is None or len(node.args) != 1 or node.keywords:
        raise ValueError(
            f"'{text}': inside of a function stands a column, or its log, log1p or sqrt"
        )
    return found


def _arguments(text: str, name: str, node: ast.Call) -> dict[str, object]:
    """Arguments after the column, by name."""
    names = ARGUMENTS[name]
    if not node.args or len(node.args) - 1 > len(names):
        allowed = ", ".join(("column", *names))
        raise ValueError(f"'{text}': write {name}({allowed})")
    values = dict(zip(names, map(_literal, node.args[1:]), strict=False))
    for given in node.keywords:
        if given.arg not in names or given.arg in values:
            allowed = ", ".join(("column", *names))
            raise ValueError(f"'{text}': write {name}({allowed})")
        values[given.arg] = _literal(given.value)
    return values


def _literal(node: ast.expr) -> Any:
    """A number, a text, or a tuple of finite numbers."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise ValueError(
            "the arguments of a function are numbers, texts or lists of numbers"
        ) from None
    if isinstance(value, list | tuple):
        if not all(type(each) in (int, float) and abs(each) < 1e300 for each in value):
            raise ValueError("knots are a list of numbers")
        return tuple(float(each) for each in value)
    return value


def _whole(text: str, name: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"'{text}': {name} is a whole number from {least} to {most}")
    return value


def _name(node: ast.expr) -> str:
    """Name of a function; ``np.log`` is ``log``."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id in ("np", "numpy") else "?"
    return node.id if isinstance(node, ast.Name) else "?"


def _require_margins(terms: Iterable[tuple[Factor, ...]]) -> None:
    """Refuse a product without what it is a product of.

    What it would mean depends on where the columns have their zero.
    """
    known = {frozenset(factor.text for factor in term) for term in terms}
    for term in terms:
        if len(term) > MOST_FACTORS:
            raise ValueError(f"a product has at most {MOST_FACTORS} factors")
        texts = [factor.text for factor in term]
        for size in range(1, len(texts)):
            for part in combinations(texts, size):
                if frozenset(part) not in known:
                    raise ValueError(
                        f"{':'.join(texts)} needs {':'.join(part)} in the formula as "
                        f"well, or its meaning hangs on where zero is: write "
                        f"{'*'.join(texts)}"
                    )
