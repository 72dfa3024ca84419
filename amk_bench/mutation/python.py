"""Mutants of a Python module, one at a time, made in its syntax tree."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.Pow: ast.Mult,
}  # fmt: skip
REMOVABLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.Continue, ast.Break, ast.Raise)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: ``apply`` makes it in the tree, ``undo`` takes it back."""

    line: int
    what: str
    apply: Callable[[], None]
    undo: Callable[[], None]


def _set(node: ast.AST, field: str, value: object, what: str, at: ast.AST) -> Mutant:
    old = getattr(node, field)
    return Mutant(getattr(at, "lineno", 0), what, lambda: setattr(node, field, value), lambda: setattr(node, field, old))


def _put(items: list[Any], k: int, value: object, what: str, at: ast.AST) -> Mutant:
    old = items[k]
    return Mutant(getattr(at, "lineno", 0), what, lambda: items.__setitem__(k, value), lambda: items.__setitem__(k, old))


def _constant(value: bool, at: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Constant(value), at)


def _text(node: ast.AST, length: int = 40) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= length else text[: length - 3] + "..."


def mutants(tree: ast.Module) -> Iterator[Mutant]:
    """Every mutant of a module, in the order of its text; each must be undone before the next one is applied."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for k, op in enumerate(node.ops):
                for other in COMPARISONS[type(op)]:
                    yield _put(node.ops, k, other(), f"{type(op).__name__} -> {other.__name__} in {_text(node)}", node)
        elif isinstance(node, ast.BoolOp):
            other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield _set(node, "op", other_op, f"and <-> or in {_text(node)}", node)
            for k, value in enumerate(node.values):
                neutral = _constant(isinstance(node.op, ast.And), value)
                yield _put(node.values, k, neutral, f"without {_text(value)}", value)
        elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in ARITHMETIC:
            yield _set(node, "op", ARITHMETIC[type(node.op)](), f"{type(node.op).__name__} -> other in {_text(node)}", node)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
            yield _set(node, "op", ast.UAdd(), f"without {type(node.op).__name__} in {_text(node)}", node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield _set(node, "value", not node.value, f"{node.value} -> {not node.value}", node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            for d in (1, -1):
                yield _set(node, "value", node.value + d, f"{node.value} -> {node.value + d}", node)
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            for constant in (True, False):
                if not (constant and isinstance(node, ast.While)):
                    yield _set(node, "test", _constant(constant, node.test), f"{_text(node.test)} -> {constant}", node.test)
        if isinstance(node, ast.comprehension):
            for k, test in enumerate(node.ifs):
                yield _put(node.ifs, k, _constant(True, test), f"without if {_text(test)}", test)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max", "any", "all"):
            other_name = {"min": "max", "max": "min", "any": "all", "all": "any"}[node.func.id]
            yield _set(node.func, "id", other_name, f"{node.func.id} -> {other_name} in {_text(node)}", node)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Compare | ast.BoolOp | ast.UnaryOp):
            for constant in (True, False):
                yield _set(node, "value", _constant(constant, node.value), f"return {_text(node.value)} -> {constant}", node)
        for field in ("body", "orelse"):
            block = getattr(node, field, None)
            if isinstance(block, list) and not isinstance(node, ast.Module | ast.ClassDef):
                for k, statement in enumerate(block):
                    docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
                    if isinstance(statement, REMOVABLE) and not docstring:
                        gone = ast.copy_location(ast.Pass(), statement)
                        yield _put(block, k, gone, f"without {_text(statement)}", statement)


def keys(tree: ast.Module, found: Sequence[Mutant]) -> list[str]:
    """A name of each mutant that survives changes elsewhere in the module: "function: what", numbered where several are alike."""
    spans = [(n.lineno, n.end_lineno or n.lineno, n.name) for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    seen: dict[str, int] = {}
    out = []
    for m in found:
        inside = max((s for s in spans if s[0] <= m.line <= s[1]), default=(0, 0, "module"))
        name = f"{inside[2]}: {m.what}"
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out


def load(tree: ast.Module, like: types.ModuleType) -> types.ModuleType:
    """The module that a (mutated) tree of ``like``'s source makes.

    Raises:
        Exception: whatever its top level raises; such a mutant is as good as dead.
    """
    module = types.ModuleType(like.__name__)
    module.__file__ = like.__file__
    real = sys.modules[like.__name__]
    sys.modules[like.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(tree, like.__file__ or "mutant", "exec"), module.__dict__)
    finally:
        sys.modules[like.__name__] = real
    return module
