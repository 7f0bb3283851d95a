"""What the interpreter decides: the GIL stays off, and the wrong interpreter is told so in one sentence."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pkgutil
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
from children import python, run

import zlink_nogil

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
INTERPRETER_CHECK = Path(zlink_nogil.__file__).parent / "_interpreter.py"

only_free_threaded = pytest.mark.skipif(not FREE_THREADED, reason="this Python always has its GIL")

IMPORT_ONE_BY_ONE = """
import importlib, pkgutil, sys
import zlink_nogil
assert not sys._is_gil_enabled(), "zlink_nogil"
seen = 1
for module in pkgutil.walk_packages(zlink_nogil.__path__, "zlink_nogil."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
        assert not sys._is_gil_enabled(), module.name
        seen += 1
print(seen)
"""


@only_free_threaded
def test_importing_leaves_the_gil_off() -> None:
    done = python(IMPORT_ONE_BY_ONE)
    assert done.returncode == 0, done.stderr  # the assertion's last line names the first module that turned it on
    assert done.stderr == ""
    modules = [module.name for module in pkgutil.walk_packages(zlink_nogil.__path__, "zlink_nogil.")]
    assert int(done.stdout) == len(modules) > 30, "as many as there are, but for __main__, and the package itself"


STUB = """
OPT_PASSTHROUGH_SUBCLASS = OPT_PASSTHROUGH_DATETIME = 0
def dumps(value, option=0): return b"by orjson"
def loads(data): return "by orjson"
"""
WHICH = """
import sys, zlink_nogil.messaging._json as seam
print("orjson" in sys.modules, seam.implementation, seam.dumps("x").decode())
"""


@only_free_threaded
@pytest.mark.parametrize(
    ("options", "value", "used"),
    [
        ([], None, False),
        ([], "1", False),
        ([], "0", True),
        (["-X", "gil=0"], None, True),
        (["-X", "gil=0"], "1", True),
        (["-X", "gil=1"], "0", False),
        (["-E"], "0", False),
    ],
)
def test_orjson_is_imported_only_with_the_gil_forced_off(
    options: list[str], value: str | None, used: bool, tmp_path: Path
) -> None:
    """A stand-in is found first, so this does not depend on the real one being installed."""
    (tmp_path / "orjson.py").write_text(STUB)
    finds_it = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    done = python(finds_it + WHICH, *options, PYTHON_GIL=value)
    assert done.stderr == ""
    assert done.stdout.strip() == ("True orjson by orjson" if used else 'False json "x"')


def test_without_orjson_the_standard_library_does(tmp_path: Path) -> None:
    (tmp_path / "orjson.py").write_text("raise ImportError('not built')")
    finds_it = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    done = python(finds_it + WHICH, **({"PYTHON_GIL": "0"} if FREE_THREADED else {}))
    assert (done.stdout.strip(), done.returncode) == ('False json "x"', 0), done.stderr


# -- the wrong interpreter ----------------------------------------------------------------------------------------------

REFUSED = """
import sys
{change}
try:
    import zlink_nogil
except ImportError as error:
    print(error)
"""
SENTENCE = "zlink_nogil needs CPython 3.13 or newer, best its free-threaded build python3.13t; this is {}."


def other_pythons(version: str) -> list[str]:
    """Interpreters of this version on the machine that work; a version manager's shim may not."""
    names = [shutil.which(f"python{version}"), *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    tell = "import sys; print('%d.%d' % sys.version_info[:2])"
    found = []
    for name in filter(None, names):
        if run(name, "-c", tell).stdout.strip() == version:
            found.append(name)
    return found


@pytest.mark.parametrize("version", ["3.12", "3.9"])
def test_an_older_python_is_refused_in_one_sentence(version: str) -> None:
    interpreters = other_pythons(version)
    if not interpreters:
        pytest.skip(f"no Python {version} on this machine")
    root = INTERPRETER_CHECK.parent.parent
    done = run(interpreters[0], "-c", REFUSED.format(change=""), PYTHONPATH=str(root), PYTHONDONTWRITEBYTECODE="1")
    assert done.stdout.strip().startswith(SENTENCE.format(f"cpython {version}.*").partition("*")[0])
    assert done.stdout.count("\n") == 1
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("sys.version_info = (3, 12, 9, 'final', 0); sys.version = '3.12.9 (main)'", "cpython 3.12.9"),
        ("sys.implementation.name = 'pypy'; sys.version = '3.13.1 (PyPy)'", "pypy 3.13.1"),
    ],
)
def test_the_sentence_names_what_was_found(change: str, named: str) -> None:
    done = python(REFUSED.format(change=change))
    assert done.stdout == SENTENCE.format(named) + "\n", done.stderr


WARNED = """
import json, sysconfig, warnings
real = sysconfig.get_config_var
sysconfig.get_config_var = lambda name: 0 if name == "Py_GIL_DISABLED" else real(name)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    exec(compile("import zlink_nogil", "their_module.py", "exec"))
    import zlink_nogil.hosting.cli
print(json.dumps([(w.category.__name__, str(w.message), w.filename) for w in caught]))
"""


def test_a_gil_build_is_warned_of_once_where_it_was_imported() -> None:
    done = python(WARNED, *(["-X", "gil=0"] if FREE_THREADED else []))
    assert done.returncode == 0, done.stderr
    [(category, message, filename)] = json.loads(done.stdout)
    assert category == "RuntimeWarning"
    assert "GIL" in message
    assert filename == "their_module.py"


def test_a_real_gil_build_is_warned_of_once() -> None:
    """It may lack our dependencies, so only the check itself is run."""
    interpreters = other_pythons("3.13")
    if not interpreters:
        pytest.skip("no ordinary Python 3.13 on this machine")
    done = run(interpreters[0], "-W", "always", INTERPRETER_CHECK)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeWarning") == 1


@only_free_threaded
def test_a_free_threaded_build_is_not_warned_of() -> None:
    done = python("import zlink_nogil", "-W", "error")
    assert (done.returncode, done.stderr) == (0, "")


@only_free_threaded
def test_the_suite_itself_runs_with_the_gil_off() -> None:
    importlib.import_module("zlink_nogil.hosting.cli")
    assert not sys._is_gil_enabled(), os.environ.get("PYTHON_GIL")


LATE = """
import importlib.util, sys, threading
from zlink_nogil import task

async def work(): pass

task.block_on(work())
print(sys._is_gil_enabled())
import orjson
task.block_on(work())
print(sys._is_gil_enabled())
"""


@only_free_threaded
@pytest.mark.skipif(importlib.util.find_spec("orjson") is None, reason="there is no module here that turns the GIL on")
def test_a_gil_that_comes_back_is_told() -> None:
    done = python(LATE)
    assert done.stdout.split() == ["False", "True"], done.stderr
    assert "the GIL is on, so the workers of pool 'zlink' take turns" in done.stderr
