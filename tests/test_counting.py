"""What the demo counts: small sources whose counts can be seen, and the standard library's by another way."""

from __future__ import annotations

import ast
import sysconfig
import warnings
from pathlib import Path

import pytest

from zlink_nogil.hosting.demo.counting import Counts, Totals, as_text, count, package_of, sources

NESTED = b"""\
import os, sys
from pathlib import Path

def outer():
    import json
    class Inner:
        def method(self):
            return lambda: 1
    return Inner

async def wait():
    async def inner():
        async with x:
            async for y in z:
                def deep(): pass
        from . import a
"""

MATCH = b"""\
match command:
    case ["go", where]:
        def go():
            return where
    case _:
        import nothing
        class Unknown: ...
"""

EVERY_BLOCK = b"""\
if a:
    def f1(): ...
elif b:
    def f2(): ...
else:
    def f3(): ...
try:
    def f4(): ...
except ValueError:
    def f5(): ...
else:
    def f6(): ...
finally:
    def f7(): ...
while a:
    def f8(): ...
else:
    def f9(): ...
for a in b:
    def f10(): ...
else:
    def f11(): ...
with a:
    def f12(): ...
try:
    pass
except* OSError:
    def f13(): ...
"""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(b"", Counts(), id="empty"),
        pytest.param(b"\n", Counts(lines=1), id="an empty line"),
        pytest.param(b"x = 1", Counts(lines=1), id="no newline at the end"),
        pytest.param(b"x = 1\ny = 2", Counts(lines=2), id="no newline at the end of two"),
        pytest.param(b"# only a comment\n", Counts(lines=1), id="comment"),
        pytest.param(b"def f():\r\n    pass\r\n", Counts(lines=2, functions=1, longest=2), id="CRLF"),
        pytest.param(b"def f():\r\n    pass", Counts(lines=2, functions=1, longest=2), id="CRLF, no newline at the end"),
        pytest.param(b"\xef\xbb\xbfimport os\n", Counts(lines=1, imports=1), id="byte order mark"),
        pytest.param(b"\f\nimport os\n", Counts(lines=2, imports=1), id="form feed"),
        pytest.param(NESTED, Counts(lines=16, functions=5, classes=1, imports=4, longest=6), id="nested"),
        pytest.param(MATCH, Counts(lines=7, functions=1, classes=1, imports=1, longest=2), id="match"),
        pytest.param(EVERY_BLOCK, Counts(lines=28, functions=13, longest=1), id="every kind of block"),
        pytest.param(
            b"@wrap\n@wrap(\n  1)\ndef f(a,\n      b):\n    '''d\n    '''\n",
            Counts(lines=7, functions=1, longest=4),
            id="a function begins at its def, not at its decorators",
        ),
        pytest.param(
            b"# -*- coding: latin-1 -*-\nname = '\xe9'\ndef f(): return '\xfc'\n",
            Counts(lines=3, functions=1, longest=1),
            id="encoding cookie",
        ),
        pytest.param(b"f = lambda: [x async for x in y]\n", Counts(lines=1), id="expressions hold nothing"),
    ],
)
def test_counts(source: bytes, expected: Counts) -> None:
    assert count(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(b"def f(:\n", id="syntax error"),
        pytest.param(b"x = 1\0\n", id="NUL"),
        pytest.param(b"name = '\xe9'\n", id="not UTF-8, without a cookie"),
        pytest.param(b"# coding: no-such-encoding\n", id="unknown encoding"),
        pytest.param(b"if a:\n\tx\n        y\n", id="inconsistent tabs"),
        pytest.param("x = '\ud800'\n".encode("utf-8", "surrogatepass"), id="surrogate"),
    ],
)
def test_what_does_not_parse_raises_a_syntax_error(source: bytes) -> None:
    with pytest.raises(SyntaxError):
        count(source)


def test_too_deep_a_nest_raises_and_does_not_crash() -> None:
    with pytest.raises((RecursionError, MemoryError, SyntaxError)):
        count(b"(" * 50_000 + b")" * 50_000)


def test_many_statements_in_a_row_are_no_nest() -> None:
    assert count(b"def f(): pass\n" * 5000).functions == 5000


def test_counts_equal_a_walk_over_every_node() -> None:
    """The standard library's own top level: real sources, counted in another way."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.glob("[a-f]*.py")):
        source = path.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            nodes = list(ast.walk(ast.parse(source)))
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        assert count(source) == Counts(
            lines=len(source.splitlines()),
            functions=len(functions),
            classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
            imports=sum(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes),
            longest=max((node.end_lineno - node.lineno + 1 for node in functions if node.end_lineno), default=0),
        ), path


def test_totals_add_up_and_keep_the_longest() -> None:
    totals = Totals()
    totals.add(Counts(10, 2, 1, 3, 7))
    totals.add(Counts(5, 1, 0, 0, 4))
    totals.add(Counts(100, 10, 10, 10, 20), files=9)
    assert totals == Totals(files=11, counts=Counts(115, 13, 11, 13, 20))


def test_sources_are_all_python_files_but_installed_ones_and_caches(tmp_path: Path) -> None:
    wanted = ["a.py", "p/b.py", "p/q/c.py", "z.py"]
    for name in [*wanted, "p/notes.txt", "site-packages/x.py", "p/site-packages/y.py", "p/__pycache__/c.py"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "broken.py").symlink_to(tmp_path / "nowhere")
    (tmp_path / "p" / "loop").symlink_to(tmp_path)
    assert sources(tmp_path) == [tmp_path / name for name in wanted]


def test_a_tree_below_site_packages_can_be_indexed(tmp_path: Path) -> None:
    """Only what is below the root counts for skipping."""
    root = tmp_path / "site-packages" / "tool"
    root.mkdir(parents=True)
    (root / "a.py").touch()
    assert sources(root) == [root / "a.py"]


def test_a_package_is_the_first_folder_below_the_root(tmp_path: Path) -> None:
    assert package_of(tmp_path / "a.py", tmp_path) == "."
    assert package_of(tmp_path / "p" / "a.py", tmp_path) == "p"
    assert package_of(tmp_path / "p" / "q" / "a.py", tmp_path) == "p"


def test_names_that_are_not_utf_8_become_text_that_can_be_sent(tmp_path: Path) -> None:
    path = tmp_path / "caf\udce9" / "a.py"
    assert package_of(path, tmp_path) == "caf\\xe9"
    as_text(path).encode()
