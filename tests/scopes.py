"""Which names, and attributes of ``self``, stand for what is asked for, and where."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence


def scoped(
    tree: ast.AST,
    asked: Callable[[ast.expr, frozenset[str]], bool],
    outer: frozenset[str] = frozenset(),
) -> Iterator[tuple[ast.AST, frozenset[str]]]:
    """Nodes, each with the names that stand for what is asked for where it is.

    Parameters
    ----------
    asked
        Whether an expression is asked for, given the names that stand for one.
    outer
        Names of the scopes around.
    """
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
    own, deeper, to_visit = [tree], [], list(ast.iter_child_nodes(tree))
    while to_visit:
        node = to_visit.pop(0)
        if isinstance(node, inner):
            deeper.append(node)
        else:
            own.append(node)
            to_visit[:0] = ast.iter_child_nodes(node)
    bound = [pair for node in own for pair in _assigned(node)]
    aliases = outer - {name for name, _ in bound if name[:5] != "self."}
    aliases -= {node.arg for node in own if isinstance(node, ast.arg)}
    while more := {name for name, value in bound if asked(value, aliases)} - aliases:
        aliases |= more
    yield from ((node, aliases) for node in own)
    if isinstance(tree, ast.ClassDef):
        aliases |= _kept(tree, deeper, asked, aliases)
    for node in deeper:
        yield from scoped(node, asked, aliases)


def _kept(
    tree: ast.ClassDef,
    methods: Sequence[ast.AST],
    asked: Callable[[ast.expr, frozenset[str]], bool],
    outer: frozenset[str],
) -> frozenset[str]:
    """Attributes in which methods keep what is asked for, as ``self.name``."""
    if not any(n[:5] == "self." for node in ast.walk(tree) for n, _ in _assigned(node)):
        return frozenset()
    kept: frozenset[str] = frozenset()
    while (
        more := {
            name
            for method in methods
            for node, aliases in scoped(method, asked, outer | kept)
            for name, value in _assigned(node)
            if name[:5] == "self." and asked(value, aliases)
        }
        - kept
    ):
        kept |= more
    return kept


def stands_for(node: ast.expr, aliases: frozenset[str]) -> bool:
    """Whether a name, or an attribute of ``self``, is one of these."""
    return bool(aliases) and _called(node) in aliases


def _called(node: ast.expr) -> str | None:
    """A name, or ``self.name``; None of all else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"self.{node.attr}" if node.value.id == "self" else None
    return None


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names and attributes of ``self`` that a node assigns to, and what."""
    pairs: list[tuple[ast.expr, ast.expr]]
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        pairs = [(node.target, node.value)]
    else:
        return
    for target, value in pairs:
        if (name := _called(target)) is not None:
            yield name, value
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=False):
                if (name := _called(one)) is not None:
                    yield name, other
