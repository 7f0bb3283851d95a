"""The assertions of ownership (design 3.2), and that the source carries one wherever it says "on lane"."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import PATIENCE

import zlink_nogil
from zlink_nogil.execution import SerialExecutionQueue
from zlink_nogil.scheduler import WorkerPool
from zlink_nogil.state import (
    StateLane,
    assert_on_lane,
    debug_assert_current,
    debug_assert_not_on_lane,
    debug_assert_on_lane,
)

# -- the functions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("assertion", [assert_on_lane, debug_assert_on_lane])
def test_on_lane_is_asserted_per_thread_and_names_the_lane(assertion):
    lane, inner = StateLane("orders"), StateLane("inner")
    with pytest.raises(AssertionError, match="orders"):
        assertion(lane)
    lane.run(assertion, lane)
    lane.run(inner.run, assertion, lane)  # the outer lane is held as well
    with pytest.raises(AssertionError, match="orders"):
        inner.run(assertion, lane)


def test_not_on_lane_is_asserted():
    lane, inner = StateLane("orders"), StateLane("inner")
    debug_assert_not_on_lane(lane)
    inner.run(debug_assert_not_on_lane, lane)
    with pytest.raises(AssertionError, match="orders"):
        lane.run(debug_assert_not_on_lane, lane)
    with pytest.raises(AssertionError, match="orders"):
        lane.run(inner.run, debug_assert_not_on_lane, lane)


def test_the_current_queue_is_asserted():
    with WorkerPool(1) as pool:
        queue, other = SerialExecutionQueue(pool=pool, name="orders"), SerialExecutionQueue(pool=pool)
        with pytest.raises(AssertionError, match="orders"):
            debug_assert_current(queue)
        queue.enqueue(lambda: debug_assert_current(queue)).result(PATIENCE)
        with pytest.raises(AssertionError, match="orders"):
            other.enqueue(lambda: debug_assert_current(queue)).result(PATIENCE)


OPTIMIZED = """
from zlink_nogil.state import *
from zlink_nogil.errors import InvalidOperation
lane = StateLane("orders")
debug_assert_on_lane(lane)
lane.run(debug_assert_not_on_lane, lane)
debug_assert_current(None)
try:
    assert_on_lane(lane)
except AssertionError:
    print("assert_on_lane")
try:
    lane.run(lane.throw_if_reentrant)
except InvalidOperation:
    print("throw_if_reentrant")
try:
    lane.run(lane.run, print)
except InvalidOperation:
    print("run")
"""


def test_without_debug_only_what_is_never_compiled_out_is_left():
    done = subprocess.run(
        [sys.executable, "-O", "-c", OPTIMIZED],
        env=os.environ | {"PYTHON_GIL": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == (["assert_on_lane", "throw_if_reentrant", "run"], "")


# -- the source -----------------------------------------------------------------------------------------------------
#
# What says "on lane" - in its docstring, or in the `# --` line over its section unless its docstring says "any thread" -
# asserts it, or takes the lane itself.
# So does every method that is given to a lane to be run. A class that has no lane at hand is part of something: then each
# method of the whole that uses the part is looked at instead.

SAYS_SO = re.compile(r"\bon (the |its )?lane\b", re.IGNORECASE)
SAYS_NOT = re.compile(r"\bany thread\b", re.IGNORECASE)
ASSERTIONS = {"assert_on_lane", "debug_assert_on_lane"}

type Function = ast.FunctionDef | ast.AsyncFunctionDef


def last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def calls(node: ast.AST) -> Iterator[ast.Call]:
    return (call for call in ast.walk(node) if isinstance(call, ast.Call))


def asserts(function: Function) -> bool:
    return any(last_name(call.func) in ASSERTIONS for call in calls(function))


def lane_calls(node: ast.AST) -> Iterator[ast.Call]:
    """`lane.run(...)` and `lane.try_post(...)` on anything whose name ends in "lane"."""
    for call in calls(node):
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr in ("run", "try_post") and last_name(func.value).endswith("lane"):
            yield call


def guarded(function: Function) -> bool:
    return asserts(function) or any(lane_calls(function))


def functions(node: ast.AST) -> list[Function]:
    return [child for child in ast.walk(node) if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)]


class Module:
    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.tree = ast.parse(source)
        self.lines = source.splitlines()
        self.classes = [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]

    def documented(self, function: Function) -> bool:
        text = ast.get_docstring(function) or ""
        return bool(SAYS_SO.search(text) or (SAYS_SO.search(self._section(function)) and not SAYS_NOT.search(text)))

    def _section(self, function: Function) -> str:
        """The `# --` line over the function, at its own depth."""
        for line in reversed(self.lines[: function.lineno - 1]):
            depth = len(line) - len(line.lstrip())
            if line.strip() and depth < function.col_offset:
                break
            if depth == function.col_offset and line.lstrip().startswith("# --"):
                return line
        return ""

    def turns(self, owner: ast.ClassDef) -> set[str]:
        """The methods of a class that it gives to a lane."""
        return {last_name(call.args[0]) for call in lane_calls(owner) if call.args and self._is_own(call.args[0])}

    @staticmethod
    def _is_own(work: ast.expr) -> bool:
        return isinstance(work, ast.Attribute) and isinstance(work.value, ast.Name) and work.value.id == "self"

    def unguarded(self, parts: set[str]) -> Iterator[str]:
        """`parts`: names of the classes without a lane that say "on lane"."""
        for function in functions(self.tree):
            owner = next((each for each in self.classes if function in each.body), None)
            if owner is not None and owner.name in parts:
                continue
            must = self.documented(function) and not guarded(function)
            if owner is not None and function.name != "__init__":
                must |= function.name in self.turns(owner) and not asserts(function)
                must |= bool(self._used_parts(owner, parts) & self._touched(function)) and not guarded(function)
            if must:
                yield f"{self.name}:{function.lineno} {function.name}"

    def parts(self) -> set[str]:
        return {
            owner.name
            for owner in self.classes
            if any(self.documented(function) for function in functions(owner))
            and not any(last_name(node).endswith("lane") for node in ast.walk(owner))
        }

    @staticmethod
    def _used_parts(owner: ast.ClassDef, parts: set[str]) -> set[str]:
        """The attributes of a class that hold a part: `self.x = Part(...)`."""
        return {
            last_name(target)
            for node in ast.walk(owner)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and last_name(node.value.func) in parts
            for target in node.targets
        }

    @staticmethod
    def _touched(function: Function) -> set[str]:
        return {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}


def unguarded(modules: list[Module]) -> list[str]:
    parts = {part for module in modules for part in module.parts()}
    return [found for module in modules for found in module.unguarded(parts)]


def test_what_is_documented_on_lane_asserts_it():
    root = Path(zlink_nogil.__file__).parent
    modules = [Module(str(path.relative_to(root)), path.read_text()) for path in sorted(root.rglob("*.py"))]
    said = [function.name for module in modules for function in functions(module.tree) if module.documented(function)]
    assert len(said) > 10, "the walk finds what it looks for"
    assert unguarded(modules) == []


SAMPLE = '''
class Whole:
    def __init__(self):
        self._part = Part()

    # -- asking ---

    def asserts(self):
        """On lane."""
        debug_assert_on_lane(self.lane)

    def takes(self):
        """Does it on the lane."""
        return self.lane.run(self._turn)

    def forgets(self):
        """On its lane."""

    def _turn(self):
        pass

    def uses(self):
        return self._part.next()

    # -- sending, on lane ---

    def also_forgets(self):
        pass

    def is_exempt(self):
        """Any thread."""

class Part:
    def next(self):
        """On lane."""
'''


def test_the_walk_finds_what_is_missing():
    found = unguarded([Module("sample", SAMPLE)])
    assert [entry.split()[1] for entry in found] == ["forgets", "_turn", "uses", "also_forgets"]
