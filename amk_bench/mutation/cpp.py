"""Mutants of C++ sources as schemata: one compilation holds all of them, and an integer chooses which one is alive.

libclang finds the expressions and statements; each is wrapped so that it behaves as written unless its number is chosen.  Wraps
nest, so every place of a file can be changed at once.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEADER = """// Chooses one mutant (0: the code as written) and one setting of the limits.  Where `amk_seen` points to an entry for
// each mutant, the code as written marks those that would have changed the value of their expression, or might have.
#pragma once
extern "C" __attribute__((visibility("default"))) int amk_mutant, amk_limits;
extern "C" __attribute__((visibility("default"))) char* amk_seen;
namespace amk_mutants {
inline bool m(int k, bool differs = true) {
  if (__builtin_expect(amk_seen != nullptr, 0) && differs) amk_seen[k] = 1;
  return amk_mutant == k;
}
inline int d(int k) { return int(m(k)) - int(m(k + 1)); }
inline bool fixed(int k, bool x) { return m(k, !x) ? true : m(k + 1, x) ? false : x; }
inline bool without_and(int k, bool x) { return m(k, !x) || x; }
inline bool without_or(int k, bool x) { return !m(k, x) && x; }
#define AMK_COMPARISON(name, op, first, second) \\
  template <class A, class B> bool name(int k, const A& a, const B& b) { \\
    const bool x = a op b; \\
    return m(k, (a first b) != x) ? a first b : m(k + 1, (a second b) != x) ? a second b : x; \\
  }
AMK_COMPARISON(lt, <, <=, >=)
AMK_COMPARISON(le, <=, <, >)
AMK_COMPARISON(gt, >, >=, <=)
AMK_COMPARISON(ge, >=, >, <)
#define AMK_OPERATION(name, op, other) \\
  template <class A, class B> auto name(int k, A a, B b) -> decltype(a op b) { return m(k) ? decltype(a op b)(a other b) : a op b; }
AMK_OPERATION(add, +, -)
AMK_OPERATION(sub, -, +)
AMK_OPERATION(mul, *, +)
AMK_OPERATION(div, /, *)
AMK_OPERATION(mod, %, *)
AMK_OPERATION(band, &, |)
AMK_OPERATION(bor, |, &)
}  // namespace amk_mutants
"""
COMPARISONS = {"<": ("lt", "<=", ">="), "<=": ("le", "<", ">"), ">": ("gt", ">=", "<="), ">=": ("ge", ">", "<")}
OPERATIONS = {
    "+": ("add", "-"),
    "-": ("sub", "+"),
    "*": ("mul", "+"),
    "/": ("div", "*"),
    "%": ("mod", "*"),
    "&": ("band", "|"),
    "|": ("bor", "&"),
}
NS = "amk_mutants::"


@dataclass(frozen=True, slots=True)
class Mutant:
    number: int
    file: str
    line: int
    function: str
    what: str

    @property
    def key(self) -> str:
        """A name that survives changes elsewhere in the file, but for several alike in one function."""
        return f"{self.file} {self.function}: {self.what}"


@dataclass(frozen=True, slots=True)
class _Wrap:
    start: int
    end: int
    prefix: str
    suffix: str
    middle: tuple[int, int, str] | None = None  # text to replace inside: (start, end, text)


def _system_includes() -> list[str]:
    text = subprocess.run(["g++", "-E", "-x", "c++", "-", "-v"], input="", capture_output=True, text=True, check=True).stderr
    return [line.strip() for line in text.split("#include <...>")[1].split("End of search")[0].splitlines()[1:]]


class Schemata:
    """Plants every mutant of a file; numbers go on from file to file."""

    def __init__(self, includes: Sequence[Path]) -> None:
        self._args = ["-x", "c++", "-std=c++20", *(f"-isystem{d}" for d in _system_includes()), *(f"-I{d}" for d in includes)]
        self.mutants: list[Mutant] = []

    def plant(self, path: Path) -> str:
        """The text of a file with all of its mutants.

        Raises:
            ValueError: libclang cannot parse the file.
        """
        from clang import cindex

        unit = cindex.Index.create().parse(str(path), self._args)
        errors = [d for d in unit.diagnostics if d.severity >= 3]
        if errors:
            raise ValueError(f"{path}: {errors[0].spelling}")
        self._kind = cindex.CursorKind
        self._types = {
            getattr(cindex.TypeKind, n)
            for n in "BOOL INT UINT LONG ULONG LONGLONG ULONGLONG INT128 UINT128 SHORT USHORT CHAR_S SCHAR UCHAR ENUM".split()  # noqa: SIM905
        }
        self._raw = path.read_bytes()
        self._file = path.name
        self._wraps: list[_Wrap] = []
        self._done: set[tuple[int, int, str]] = set()
        for node in unit.cursor.get_children():
            if node.location.file and node.location.file.name == str(path):
                self._visit(node, "file")
        return f'#include "amk_mutants.hpp"\n#line 1 "{self._file}"\n' + self._text()

    # ---- text
    def _at(self, node: Any) -> tuple[int, int]:
        return node.extent.start.offset, node.extent.end.offset

    def _source(self, start: int, end: int) -> str:
        return " ".join(self._raw[start:end].decode().split())

    def _short(self, node: Any, length: int = 60) -> str:
        text = self._source(*self._at(node))
        return text if len(text) <= length else text[: length - 3] + "..."

    def _text(self) -> str:
        """Insert prefixes and suffixes so that wraps nest as the syntax does."""
        opens = sorted(enumerate(self._wraps), key=lambda w: (w[1].start, -w[1].end, w[0]))
        closes = sorted(enumerate(self._wraps), key=lambda w: (w[1].end, -w[1].start, -w[0]))
        edits: list[tuple[int, int, int, int, str]] = []  # (offset, closing first, order, replaced, text)
        edits += [(w.end, 0, n, 0, w.suffix) for n, (_, w) in enumerate(closes)]
        edits += [(w.middle[0], 1, 0, w.middle[1] - w.middle[0], w.middle[2]) for w in self._wraps if w.middle]
        edits += [(w.start, 2, n, 0, w.prefix) for n, (_, w) in enumerate(opens)]
        out, at = [], 0
        for offset, _, _, replaced, text in sorted(edits):
            out += [self._raw[at:offset].decode(), text]
            at = offset + replaced
        return "".join(out) + self._raw[at:].decode()

    def _new(self, node: Any, *what: str) -> int:
        first = len(self.mutants) + 1
        for n, text in enumerate(what):
            self.mutants.append(Mutant(first + n, self._file, node.extent.start.line, self._function, text))
        return first

    def _wrap(self, node: Any, prefix: str, suffix: str, middle: tuple[int, int, str] | None = None) -> None:
        start, end = self._at(node)
        self._wraps.append(_Wrap(start, end, prefix, suffix, middle))

    # ---- places
    def _visit(self, node: Any, function: str) -> None:
        K, kind = self._kind, node.kind
        start = self._at(node)[0]
        if kind in (K.CXX_METHOD, K.FUNCTION_DECL, K.FUNCTION_TEMPLATE, K.CONSTRUCTOR):
            function = node.spelling
            if self._source(*self._at(node)).endswith("= default"):
                return  # the compiler's own
        self._function = function
        head = self._raw[start : start + 120].decode(errors="replace")
        if kind in (K.STATIC_ASSERT, K.ENUM_DECL, K.TYPE_ALIAS_DECL, K.USING_DIRECTIVE):
            return
        if kind == K.VAR_DECL and re.match(r"((static|inline)\s+)*constexpr\b", head):
            return
        children = list(node.get_children())
        if kind == K.IF_STMT and re.match(r"if\s+constexpr", head):
            children = children[1:]
        elif kind in (K.IF_STMT, K.CONDITIONAL_OPERATOR):
            self._condition(children, kind == K.IF_STMT)
        elif kind == K.BINARY_OPERATOR and len(children) == 2:
            self._binary(node, *children)
        elif kind == K.UNARY_OPERATOR and re.match(r"![^=]", head) and self._once(node):
            k = self._new(node, f"without ! in {self._short(node)}")
            self._wrap(node, f"({NS}m({k}) != bool(", "))")
        elif kind == K.INTEGER_LITERAL:
            self._literal(node)
        elif kind == K.CXX_BOOL_LITERAL_EXPR and self._short(node) in ("true", "false") and self._once(node):
            k = self._new(node, f"not {self._short(node)}")
            self._wrap(node, f"({NS}m({k}) != ", ")")
        elif (
            kind == K.RETURN_STMT
            and children
            and children[0].type.get_canonical().kind.name == "BOOL"
            and self._short(children[0]) not in ("true", "false")  # turned as a literal
            and self._once(children[0])
        ):
            k = self._new(node, *(f"return {self._short(children[0])} -> {x}" for x in ("true", "false")))
            self._wrap(children[0], f"{NS}fixed({k}, bool((", ")))")
        for body in self._bodies(node, children):
            self._statement(body)
        for child in children:
            if kind == K.CASE_STMT and child is children[0]:
                continue
            self._visit(child, function)
            self._function = function

    def _once(self, node: Any, tag: str = "") -> bool:
        """Implicit nodes repeat the extent of what they hold, and some nodes have none."""
        start, end = self._at(node)
        key = (start, end, f"{node.kind.name}{tag}")
        if start >= end or key in self._done:
            return False
        self._done.add(key)
        return True

    def _condition(self, children: list[Any], statement: bool) -> None:
        test = next((c for c in children if c.kind.is_expression()), None)
        if test is None or not self._once(test, "test"):
            return
        behind = self._raw[self._at(test)[1] :].decode(errors="replace").lstrip()
        if not behind.startswith(")" if statement else ("?", ")")):
            return
        k = self._new(test, *(f"condition {self._short(test)} -> {x}" for x in ("true", "false")))
        self._wrap(test, f"{NS}fixed({k}, bool((", ")))")

    def _binary(self, node: Any, left: Any, right: Any) -> None:
        (left_start, left_end), (right_start, right_end) = self._at(left), self._at(right)
        if not left_start <= left_end <= right_start <= right_end == self._at(node)[1]:
            return  # what the compiler made of an overloaded comparison
        op = re.sub(r"//.*|/\*.*?\*/", "", self._raw[left_end:right_start].decode()).strip()
        if not self._once(node):
            return
        middle = (left_end, right_start, ", ")
        arithmetic = all(c.type.get_canonical().kind in self._types for c in (left, right))
        text = self._short(node)
        if op in COMPARISONS:
            name, first, second = COMPARISONS[op]
            k = self._new(node, *(f"{op} -> {other} in {text}" for other in (first, second)))
            self._wrap(node, f"{NS}{name}({k}, ", ")", middle)
        elif op in ("==", "!="):
            k = self._new(node, f"{op} -> {'!=' if op == '==' else '=='} in {text}")
            self._wrap(node, f"({NS}m({k}) != bool(", "))")
        elif op in ("&&", "||"):
            both = op == "&&"
            k = self._new(
                node, f"{op} -> {'||' if both else '&&'} in {text}", f"without {self._short(left)}", f"without {self._short(right)}"
            )
            neutral = [f"{NS}without_{'and' if both else 'or'}({n}, bool(" for n in (k + 1, k + 2)]
            self._wrap(node, f"({neutral[0]}", f")) : {'' if both else '!'}{NS}m({k}))",
                       (left_end, right_start, f")) {'!=' if both else '=='} {NS}m({k}) ? {neutral[1]}"))  # fmt: skip
        elif op in OPERATIONS and arithmetic:
            name, other = OPERATIONS[op]
            k = self._new(node, f"{op} -> {other} in {text}")
            self._wrap(node, f"{NS}{name}({k}, ", ")", middle)

    def _literal(self, node: Any) -> None:
        start, end = self._at(node)
        before, behind = self._raw[:start].decode().rstrip()[-1:], self._raw[end:].decode().lstrip()[:1]
        text = self._raw[start:end].decode()
        if (before in "<," and behind == ">") or not text[:1].isdigit() or not self._once(node):
            return  # a template argument, or the compiler's own
        if re.search(r"\)\s*(const)?\s*(noexcept)?\s*=$", self._raw[max(0, start - 80) : start].decode(errors="replace").rstrip()):
            return  # of a pure virtual function
        k = self._new(node, f"{text} + 1", f"{text} - 1")
        self._wrap(node, "(", f" + {NS}d({k}))")

    def _bodies(self, node: Any, children: list[Any]) -> Iterator[Any]:
        K = self._kind
        if node.kind == K.COMPOUND_STMT:
            yield from children
        elif node.kind in (K.IF_STMT, K.FOR_STMT, K.WHILE_STMT, K.CXX_FOR_RANGE_STMT) and children:
            if node.kind == K.IF_STMT:
                yield from (c for c in children[1:] if self._stands_alone(c))
            elif self._stands_alone(children[-1]):
                yield children[-1]

    def _stands_alone(self, node: Any) -> bool:
        """A statement that is an expression ends in a semicolon, and is not the last part of a for or if header."""
        start, end = self._at(node)
        before = self._raw[:start].decode().rstrip()[-4:]
        return self._raw[end:].decode().lstrip().startswith(";") and (before.endswith(")") or before == "else")

    def _statement(self, node: Any) -> None:
        K = self._kind
        simple = node.kind in (K.CONTINUE_STMT, K.BREAK_STMT) or (node.kind == K.RETURN_STMT and not list(node.get_children()))
        if not (simple or node.kind.is_expression()) or not self._once(node, "statement"):
            return
        start, end = self._at(node)
        if not self._raw[end:].decode().lstrip().startswith(";"):
            return
        k = self._new(node, f"without {self._short(node)};")
        self._wraps.append(_Wrap(start, end + 1, f"if ({NS}m({k})) {{}} else ", ""))
