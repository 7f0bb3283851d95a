"""The main job on small trees: right numbers, and a clear end whatever happens to its processes."""

from __future__ import annotations

import ast
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from children import COMMAND, Child, Fifo, children_of, run, wait_gone

SOON = 8.0
"""Seconds for all processes to end after an interrupt: two of waiting for a busy server, and a slow machine."""

PACKAGES = {
    "setup.py": "import setuptools\n\n\ndef setup():\n    pass\n",
    "empty.py": "",
    "alpha/__init__.py": "from . import one\n",
    "alpha/one.py": "import os, sys\nclass A:\n    def f(self):\n        def g(): pass\n        return g\n",
    "alpha/deep/two.py": "async def wait():\n    return 1",
    "beta/__init__.py": "",
    "beta/crlf.py": "def f():\r\n    pass\r\n",
    "beta/broken.py": "def f(:\n",
    "beta/latin.py": b"# -*- coding: latin-1 -*-\nname = '\xe9'\nclass C: pass\n",
    "beta/warned.py": "x = 1 is 1\n",
}
PARSED = len(PACKAGES) - 1

HOLD = """
# Found by every process of the demo: the one of the kind that is to be held tells its pid, and waits to be released.
import os
def hold():
    with open(os.environ["TEST_BEGUN"], "w") as begun:
        print(os.getpid(), file=begun)
    with open(os.environ["TEST_RELEASED"]) as released:
        released.readline()
where = os.environ["TEST_HOLD"]
if where == "starting server" and "ZLINK_DEMO_NODE" in os.environ:
    hold()
if where == ("parsing server" if "ZLINK_DEMO_NODE" in os.environ else "plain loop"):
    import ast
    parse = ast.parse
    def held(source, *arguments, **options):
        if isinstance(source, bytes) and b"# hold" in source:  # `inspect` parses signatures, too
            hold()
        return parse(source, *arguments, **options)
    ast.parse = held
"""


def write_tree(root: Path, tree: dict[str, str | bytes]) -> Path:
    for name, text in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "tree", PACKAGES)


def independent_totals(root: Path) -> dict[str, dict[str, Any]]:
    """The same numbers by another way: every node of the syntax tree, and text-mode lines."""
    totals: dict[str, dict[str, Any]] = {}
    for path in root.rglob("*.py"):
        source = path.read_bytes()
        try:
            nodes = list(ast.walk(compile(source, str(path), "exec", ast.PyCF_ONLY_AST)))
        except SyntaxError:
            continue
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        name = path.relative_to(root).parts[0] if path.parent != root else "."
        package = totals.setdefault(name, {"files": 0, "counts": dict.fromkeys(COUNTED, 0)})
        package["files"] += 1
        counts = package["counts"]
        counts["lines"] += len(source.splitlines())
        counts["functions"] += len(functions)
        counts["classes"] += sum(isinstance(node, ast.ClassDef) for node in nodes)
        counts["imports"] += sum(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes)
        counts["longest"] = max([counts["longest"], *((f.end_lineno or 0) - f.lineno + 1 for f in functions)])
    return totals


COUNTED = ("lines", "functions", "classes", "imports", "longest")


def read(outcome: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(outcome.read_text())
    return read


# -- a run that nothing disturbs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "api"), [(1, "mesh"), (2, "mesh"), (2, "client-server"), (2, "spot")])
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_the_outcome_is_right(tree: Path, tmp_path: Path, nodes: int, api: str) -> None:
    outcome = tmp_path / "outcome.json"
    options = ("--path", tree, "--nodes", str(nodes), "--workers", "2", "--api", api, "--json", outcome)
    done = run(COMMAND, "demo", *options)
    assert done.returncode == 0, done.stderr
    found = read(outcome)
    assert found["packages"] == independent_totals(tree)
    assert sum(package["files"] for package in found["packages"].values()) == PARSED
    assert found["files"] == len(PACKAGES)
    merged = 0 if api == "spot" else PARSED
    assert found["messages"] == len(PACKAGES) + merged + nodes, "a parse each, a merge if it parsed, a report per node"
    assert found["api"] == api
    assert (found["errors"], found["errors_by_kind"]) == (1, {"InternalFailure": 1})
    assert found["sequential_errors"] == 1
    assert found["equal"] is True
    assert found["differing"] == []
    assert found["gil_enabled"] is getattr(sys, "_is_gil_enabled", lambda: True)()
    assert 1 <= found["peak_parallel"] <= 2
    assert found["speedup"] == pytest.approx(found["sequential_seconds"] / found["seconds"])
    assert found["messages_per_second"] == pytest.approx(found["messages"] / found["seconds"])
    assert "Traceback" not in done.stdout + done.stderr
    assert "every total equals the plain loop's" in done.stdout
    assert "alpha" in done.stdout
    assert "GIL off" in done.stdout or found["gil_enabled"]


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    folder = os.fsencode(root) + b"/caf\xe9"
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("this file system has only UTF-8 names")
    with open(folder + b"/\xfc.py", "wb") as file:
        file.write(b"import os\n")
    outcome = tmp_path / "outcome.json"
    done = run(COMMAND, "demo", "--path", root, "--nodes", "1", "--json", outcome)
    assert done.returncode == 0, done.stderr
    assert read(outcome)["packages"].keys() == {"caf\\xe9"}


def test_a_tree_without_sources_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    done = run(COMMAND, "demo", "--path", tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"Error: Invalid value for --path: no Python sources below {tmp_path}"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [["--path", "/no/such"], ["--nodes", "0"], ["--workers", "0"], ["--nodes", "x"]])
def test_bad_options_are_told(options: list[str], tree: Path) -> None:
    done = run(COMMAND, "demo", "--path", tree, *options)
    assert done.returncode == 2
    assert "Error: Invalid value" in done.stderr


def test_a_json_file_that_cannot_be_written_is_told_before_the_work(tree: Path, tmp_path: Path) -> None:
    done = run(COMMAND, "demo", "--path", tree, "--json", tmp_path / "no" / "such" / "file")
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("Error: [Errno 2] No such file or directory")


def test_servers_that_do_not_come_up_are_told_at_once(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nif 'ZLINK_DEMO_NODE' in os.environ:\n    raise SystemExit('no luck')\n"
    )
    done = run(COMMAND, "demo", "--path", tree, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "before it was ready; its last words: SystemExit: no luck" in done.stderr
    assert "Traceback" not in done.stderr


# -- runs that are disturbed --------------------------------------------------------------------------------------------


class Running:
    """A demo with two servers, held: by default one of the servers in the middle of a file."""

    def __init__(self, folder: Path, where: str) -> None:
        tree = write_tree(folder / "tree", {**PACKAGES, "slow.py": "# hold\n"})
        (folder / "sitecustomize.py").write_text(HOLD)
        self.begun, self.released = Fifo(folder / "begun"), Fifo(folder / "released")
        self.outcome = folder / "outcome.json"
        self.client = Child(
            COMMAND,
            *("demo", "--path", tree, "--nodes", "2", "--workers", "2", "--json", self.outcome),
            PYTHONPATH=str(folder),
            TEST_BEGUN=str(self.begun.path),
            TEST_RELEASED=str(self.released.path),
            TEST_HOLD=where,
        )
        self.holder = int(self.begun.line())
        self.servers = children_of(self.client.pid)

    def close(self) -> None:
        self.released.write("go on")
        self.client.__exit__()
        wait_gone(*self.servers)
        self.begun.close()
        self.released.close()


@pytest.fixture
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    running = Running(tmp_path, getattr(request, "param", "parsing server"))
    yield running
    running.close()


def test_a_killed_server_is_errors_and_unequal_totals(running: Running) -> None:
    assert running.holder in running.servers
    assert len(running.servers) == 2
    os.kill(running.holder, signal.SIGKILL)
    assert running.client.end() == 1
    found = read(running.outcome)
    assert found["equal"] is False
    assert found["errors_by_kind"].get("Unavailable", 0) >= 1, "the file it was parsing"
    assert found["errors"] == sum(found["errors_by_kind"].values()) <= found["files"]
    assert found["sequential_errors"] == 1
    assert "Traceback" not in running.client.output
    assert "DIFFER" in running.client.output
    wait_gone(*running.servers)


def test_all_servers_killed_is_an_end_too(running: Running) -> None:
    for how in (signal.SIGSTOP, signal.SIGKILL):  # so that none goes on while the others are killed
        for pid in running.servers:
            os.kill(pid, how)
    assert running.client.end() == 1
    found = read(running.outcome)
    assert (found["equal"], found["messages"], found["packages"]) == (False, 0, {})
    assert found["peak_parallel"] == 0
    assert "Traceback" not in running.client.output


@pytest.mark.parametrize("running", ["starting server", "parsing server", "plain loop"], indirect=True)
def test_ctrl_c_ends_every_process(running: Running) -> None:
    running.client.signal(signal.SIGINT)
    assert running.client.end(SOON) == 130
    wait_gone(*running.servers, timeout=0.1)
    assert "Traceback" not in running.client.output
    assert "interrupted" in running.client.output
    assert running.outcome.read_text() == "", "no outcome of a run that was not finished"


def test_an_impatient_ctrl_c_ends_every_process_too(running: Running) -> None:
    running.client.signal(signal.SIGINT)
    os.kill(
        running.holder, signal.SIGSTOP
    )  # cannot even say that it is stopping: the second one comes while it is waited for
    running.client.signal(signal.SIGINT)
    assert running.client.end(SOON) == 130
    wait_gone(*running.servers, timeout=0.1)
    assert "Traceback" not in running.client.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_client_leaves_no_server(running: Running, number: signal.Signals) -> None:
    running.client.signal(number)
    assert running.client.end(SOON) == -number
    wait_gone(*running.servers, timeout=SOON)


def test_a_server_whose_client_is_gone_already_does_not_start() -> None:
    """It was killed between starting the server and the server's asking to be told of its end."""
    done = run(
        *(COMMAND, "serve", "zlink_nogil.hosting.demo.server:host"),
        ZLINK_DEMO_CLIENT="tcp://127.0.0.1:1",
        ZLINK_DEMO_NODE="server-1",
        ZLINK_DEMO_PARENT="1",
        ZLINK_DEMO_WORKERS="",
    )
    assert done.returncode == 1
    assert done.stderr == "the demo's client has ended already\n"
