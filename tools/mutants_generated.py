"""Mutants by rule: wrong edits at every wake-up, look, lock and change of state of a module, found in its syntax tree.

Rules
    no wake-up      a statement that is only a call of `notify`, `unpark`, `set`, `wake`, ... is removed
    no lock         `with ..._lock:` (or `_gate`, `_door`, ...) becomes `if True:`
    never / always  an `if` on a field gets the other answer for good; a `while` on a field becomes an `if`
    no change       an assignment to a field, or a `_move(...)`, is removed
    later change    it trades places with the statement after it
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["Edit", "edits"]

WAKES: Final = frozenset(
    {"grant", "notify", "notify_all", "retry", "set", "succeed", "unpark", "wake", "_wake", "waker", "_schedule"}
    | {"_serve_line", "_serve_line_if_free", "_leave", "give_back", "done", "add_waker", "start", "join"}
)
LOCKS: Final = ("lock", "gate", "door", "graph", "decoding")
MOVES: Final = frozenset({"move", "_move", "append", "pop", "popleft", "remove", "add"})


@dataclass(frozen=True, slots=True)
class Edit:
    """Lines `first` to `last` (from 0, last excluded) become `lines`."""

    rule: str
    where: str
    text: str
    first: int
    last: int
    lines: tuple[str, ...]

    def apply(self, source: str) -> str:
        whole = source.splitlines()
        whole[self.first : self.last] = self.lines
        return "\n".join(whole) + "\n"


def edits(source: str) -> list[Edit]:
    """Every edit that leaves a module that still compiles, named by function and the text it changes."""
    found: list[Edit] = []
    seen: dict[tuple[str, str], int] = {}
    for edit in _Rules(source).all():
        key = edit.rule, edit.where
        seen[key] = count = seen.get(key, 0) + 1
        named = Edit(edit.rule, edit.where + (f"#{count}" if count > 1 else ""), *_rest(edit))
        compile(named.apply(source), "mutant", "exec")
        found.append(named)
    return found


def _rest(edit: Edit) -> tuple[str, int, int, tuple[str, ...]]:
    return edit.text, edit.first, edit.last, edit.lines


class _Rules:
    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        self.lines = source.splitlines()

    def all(self) -> Iterator[Edit]:
        for function in ast.walk(self.tree):
            if isinstance(function, ast.FunctionDef) and not function.name.startswith("__"):
                for node in ast.walk(function):
                    for body in self._bodies(node):
                        yield from self._in_body(function.name, body)

    @staticmethod
    def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body:
                yield body

    def _in_body(self, where: str, body: list[ast.stmt]) -> Iterator[Edit]:
        for statement, following in zip(body, [*body[1:], None], strict=True):
            match statement:
                case ast.Expr(value=ast.Call(func=function)) if _name(function) in WAKES:
                    yield self._removed("no-wake-up", where, statement)
                case ast.With(items=[ast.withitem(context_expr=ast.Attribute() | ast.Name() as lock)]) if _is_lock(lock):
                    yield self._headed("no-lock", where, statement, "if True:")
                case ast.If(test=test) if _looks_at_a_field(test):
                    yield self._headed("never", where, statement, "if False:")
                    yield self._headed("always", where, statement, "if True:")
                case ast.While(test=test) if _looks_at_a_field(test):
                    yield self._headed("once", where, statement, f"if {ast.unparse(test)}:")
            if _changes_state(statement):
                yield self._removed("no-change", where, statement)
                if following is not None and not isinstance(following, ast.Return | ast.Raise):
                    yield self._swapped("later-change", where, statement, following)

    def _removed(self, rule: str, where: str, statement: ast.stmt) -> Edit:
        return self._edit(rule, where, statement, statement, [" " * statement.col_offset + "pass"])

    def _headed(self, rule: str, where: str, statement: ast.If | ast.While | ast.With, head: str) -> Edit:
        """With another head; what was its body stays as it is."""
        first, body = statement.lineno - 1, statement.body[0].lineno - 1
        keyword = "el" if self.lines[first].lstrip().startswith("elif") else ""
        lines = (" " * statement.col_offset + keyword + head,)
        return Edit(rule, where, f"{self.lines[first].strip()} -> {head}", first, body, lines)

    def _swapped(self, rule: str, where: str, one: ast.stmt, other: ast.stmt) -> Edit:
        return self._edit(rule, where, one, other, [*self._text(other), *self._text(one)])

    def _edit(self, rule: str, where: str, one: ast.stmt, other: ast.stmt, lines: list[str]) -> Edit:
        text = " / ".join(line.strip() for line in self._text(one))
        return Edit(rule, where, text, one.lineno - 1, other.end_lineno or other.lineno, tuple(lines))

    def _text(self, statement: ast.stmt) -> list[str]:
        return self.lines[statement.lineno - 1 : statement.end_lineno]


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_lock(expression: ast.expr) -> bool:
    return _name(expression).lstrip("_").endswith(LOCKS)


def _looks_at_a_field(test: ast.expr) -> bool:
    """`self._closed`, `waiter.granted`, `self.done()`, `line`: state others may change."""
    return not any(isinstance(node, ast.NamedExpr) for node in ast.walk(test)) and any(
        isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) for node in ast.walk(test)
    )


def _changes_state(statement: ast.stmt) -> bool:
    match statement:
        case (
            ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign(target=ast.Attribute() | ast.Subscript())
        ):
            return True
        case ast.Expr(value=ast.Call(func=function)):
            return _name(function) in MOVES
    return False
