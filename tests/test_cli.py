"""The command line: what `serve` accepts, how it ends, and that it starts again with the GIL off."""

from __future__ import annotations

import json
import signal
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from children import COMMAND, PATIENCE, Child, Fifo, environment, python, run
from support import eventually

from zlink_nogil import Host, Mesh

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

NODE = """
import os
from zlink_nogil import Context, Host

def make() -> Host:
    host = Host(workers=2)
    mesh = host.mesh("cli", node_id="served")

    @mesh.channel("work").handler
    def held(message: str, ctx: Context) -> str:
        with open("begun", "w") as begun:
            print(message, file=begun)
        with open("released") as released:
            return message + " " + released.readline().strip()

    return host

host = make()
number = 7
def makes_a_number(): return 7
def fails(): raise LookupError("the configuration is missing")
def wants(argument): return make()
"""
NODE_LINE = "node served of mesh cli at "


MODULES = {
    "my_node": NODE,
    "wants_other": "import no_such_thing",
    "my": "import my_no",
    "broken": "host = = 1",
    "raises": "host = 1 / 0",
    "attribute": "import os; host = os.no_such_thing",
    "unbound": "from zlink_nogil import Host; host = Host(); host.mesh('a', bind='tcp://203.0.113.7:4000', insecure=True)",
}


def write_modules(folder: Path) -> Path:
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text + "\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_modules(tmp_path)


# -- targets ------------------------------------------------------------------------------------------------------------


BAD_TARGETS = [
    ("my_node", "expected MODULE:HOST, as in my_node:host, not 'my_node'"),
    (":host", "expected MODULE:HOST"),
    ("my_node:", "expected MODULE:HOST"),
    (".my_node:host", "expected MODULE:HOST"),
    ("no_such_module:host", "there is no module 'no_such_module'"),
    ("no_such.module:host", "there is no module 'no_such'"),
    ("my_node.part:host", "there is no module 'my_node.part'"),
    ("my_node:no_such", "module 'my_node' has no 'no_such'"),
    ("my_node:host.meshes", "module 'my_node' has no 'host.meshes'"),
    ("my_node:number", "my_node:number is int, not a Host or a function that makes one"),
    ("my_node:makes_a_number", "my_node:makes_a_number is int, not a Host"),
    ("my_node:fails", "my_node:fails does not make a Host: LookupError: the configuration is missing"),
    ("my_node:wants", "my_node:wants does not make a Host: TypeError: "),
    (
        "wants_other:host",
        "module 'wants_other' cannot be imported: ModuleNotFoundError: No module named 'no_such_thing'",
    ),
    ("my:host", "module 'my' cannot be imported: ModuleNotFoundError: No module named 'my_no'"),
    ("broken:host", "module 'broken' cannot be imported: SyntaxError: "),
    ("raises:host", "module 'raises' cannot be imported: ZeroDivisionError: "),
    ("attribute:host", "module 'attribute' cannot be imported: AttributeError: "),
]

SERVE_EACH = """
import contextlib, io, json, sys
from zlink_nogil.hosting.cli import commands
told = {}
for target in sys.argv[1:]:
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            commands(["serve", target], prog_name="zlink-nogil")
        except SystemExit as end:
            told[target] = end.code, said.getvalue()
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """(exit code, what was written) of every bad target."""
    targets = [target for target, _ in BAD_TARGETS]
    folder = write_modules(tmp_path_factory.mktemp("targets"))
    done = run(sys.executable, "-c", SERVE_EACH, *targets, "unbound:host", cwd=folder)
    assert done.returncode == 0, done.stderr
    return {target: (code, said) for target, (code, said) in json.loads(done.stdout).items()}


@pytest.mark.parametrize(("target", "said"), BAD_TARGETS)
def test_a_bad_target_is_told_in_one_line(target: str, said: str, told: dict[str, tuple[int, str]]) -> None:
    code, stderr = told[target]
    assert code == 2
    lines = stderr.splitlines()
    assert lines[0].startswith("Usage: zlink-nogil serve")
    assert lines[-1].startswith(f"Error: {said}")
    assert len(lines) == 4, "usage, where to get help, an empty line, the error: no traceback"


def test_the_line_names_the_place_of_a_failing_import(told: dict[str, tuple[int, str]]) -> None:
    _, stderr = told["raises:host"]
    assert stderr.endswith("raises.py, line 1)\n")


def test_an_endpoint_that_cannot_be_bound_is_told_in_one_line(told: dict[str, tuple[int, str]]) -> None:
    code, stderr = told["unbound:host"]
    assert code == 1
    [line] = stderr.splitlines()
    assert line.startswith("Error: unbound:host cannot start: ")
    assert "cannot bind tcp://203.0.113.7:4000" in line


def test_the_command_itself_tells_the_same(folder: Path) -> None:
    done = run(COMMAND, "serve", "wants_other:host", cwd=folder)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("Error: module 'wants_other' cannot be imported: ModuleNotFoundError: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["demo", "--help"]])
def test_help(arguments: list[str]) -> None:
    done = run(COMMAND, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: zlink-nogil")


# -- serving and ending -------------------------------------------------------------------------------------------------


class Served:
    """`zlink-nogil serve my_node:...`, a client of it in this process, and a handler that is held."""

    def __init__(self, folder: Path, target: str) -> None:
        self.begun, self.released = Fifo(folder / "begun"), Fifo(folder / "released")
        self.child = Child(COMMAND, "serve", target, cwd=folder)
        endpoint = self.child.line_with(NODE_LINE).removeprefix(NODE_LINE).strip()
        self.host = Host(workers=1)
        self.mesh: Mesh = self.host.mesh("cli", peers=[endpoint])
        self.host.start()
        self.host.wait_ready(PATIENCE)

    def close(self) -> None:
        self.host.close(0.1)
        self.child.__exit__()
        self.begun.close()
        self.released.close()

    def hold(self, text: str):  # type: ignore[no-untyped-def]
        """A request that is being handled now."""
        completion = self.mesh.channel("work").request(text, reply=str, key=text, timeout=PATIENCE).submit()
        assert self.begun.line() == text
        return completion

    def wait_draining(self) -> None:
        eventually(lambda: self.mesh.nodes() == [], "the served node leaves")


@pytest.fixture(params=["my_node:host", "my_node:make"], ids=["a host", "a function"])
def served(folder: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    served = Served(folder, request.param)
    yield served
    served.close()


only_a_host = pytest.mark.parametrize("served", ["my_node:host"], indirect=True, ids=["a host"])


def test_what_is_served_answers(served: Served) -> None:
    completion = served.hold("hello")
    served.released.write("world")
    assert completion.result(PATIENCE) == "hello world"


@only_a_host
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_what_is_in_flight_is_answered(served: Served, number: signal.Signals) -> None:
    completion = served.hold("before")
    served.child.signal(number)
    served.wait_draining()
    assert not completion.done()
    served.released.write("after")
    assert completion.result(PATIENCE) == "before after"
    assert served.child.end() == 0
    assert "Traceback" not in served.child.output


@only_a_host
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_same_signal_again_ends_at_once(served: Served, number: signal.Signals) -> None:
    served.hold("for ever")
    served.child.signal(number)
    served.wait_draining()
    served.child.signal(number)
    assert served.child.end(2.0) == 128 + number, "before the drain gave up on the held handler"
    assert "Traceback" not in served.child.output


@only_a_host
@pytest.mark.parametrize(
    ("first", "second"), [(signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)], ids=["TERM INT", "INT TERM"]
)
def test_ctrl_c_and_a_supervisors_sigterm_together_still_drain(
    served: Served, first: signal.Signals, second: signal.Signals
) -> None:
    completion = served.hold("before")
    served.child.signal(first)
    served.wait_draining()
    served.child.signal(second)
    served.released.write("after")
    assert completion.result(PATIENCE) == "before after"
    assert served.child.end() == 0
    assert "Traceback" not in served.child.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_as_soon_as_the_node_is_announced_is_not_lost(folder: Path, number: signal.Signals) -> None:
    """A lock of 3.13t spins before it sleeps; a signal in that time is not noticed by the sleeper."""
    for _ in range(4):
        with Child(COMMAND, "serve", "my_node:host", cwd=folder, PYTHON_GIL="0" if FREE_THREADED else None) as child:
            child.line_with(NODE_LINE)
            child.signal(number)
            assert child.end() == 0


# -- the GIL ------------------------------------------------------------------------------------------------------------

PROBE = """
import json, os, sys
with open("probe.json", "a") as file:
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(json.dumps([os.getpid(), gil, sys._xoptions.get("gil"), sys.warnoptions]), file=file)
"""

only_free_threaded = pytest.mark.skipif(not FREE_THREADED, reason="this Python always has its GIL")


def probe(folder: Path, *command: str | Path, **changes: str | None) -> tuple[bool, str | None, list[str]]:
    """Serve a module that writes down how it was started: (GIL, -X gil, -W options). It is imported once."""
    (folder / "probe.py").write_text(PROBE)
    with Child(*command, "serve", "probe:nothing", cwd=folder, **changes) as child:
        assert child.end() == 2, child.output
        [line] = (folder / "probe.json").read_text().splitlines()
        pid, gil, option, warnings = json.loads(line)
        assert pid == child.pid, "the same process: a supervisor's signals reach it"
    return gil, option, warnings


@only_free_threaded
@pytest.mark.parametrize(
    "command", [[COMMAND], [sys.executable, "-m", "zlink_nogil"]], ids=["the command", "python -m zlink_nogil"]
)
def test_the_command_starts_again_with_the_gil_off(tmp_path: Path, command: list[str]) -> None:
    assert probe(tmp_path, *command) == (False, "0", [])


@only_free_threaded
@pytest.mark.parametrize(
    ("options", "value", "expected"),
    [
        ([], "0", (False, None, [])),
        ([], "1", (False, "0", [])),
        (["-X", "gil=0"], None, (False, "0", [])),
        (["-X", "gil=1"], None, (True, "1", [])),
        (["-X", "gil=1"], "0", (True, "1", [])),
        (["-W", "ignore"], None, (False, "0", ["ignore"])),
        (["-E"], "0", (False, "0", [])),
    ],
)
def test_it_does_so_only_when_needed_and_keeps_pythons_options(
    tmp_path: Path, options: list[str], value: str | None, expected: tuple[bool, str | None, list[str]]
) -> None:
    assert probe(tmp_path, sys.executable, *options, "-m", "zlink_nogil", PYTHON_GIL=value) == expected


@only_free_threaded
def test_what_it_starts_does_not_inherit_a_setting_that_other_pythons_refuse(tmp_path: Path) -> None:
    """A build with the GIL does not start with PYTHON_GIL=0."""
    (tmp_path / "look.py").write_text("import os\nprint(os.environ.get('PYTHON_GIL'))\n")
    assert run(COMMAND, "serve", "look:nothing", cwd=tmp_path).stdout == "None\n"


def test_importing_the_command_line_starts_nothing_again() -> None:
    done = python("import zlink_nogil.hosting.cli, os; print(os.environ.get('PYTHON_GIL'))")
    assert done.stdout == "None\n"
    assert "PYTHON_GIL" not in environment()
