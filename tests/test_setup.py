"""The set-up scripts, run on a copy: with made-up interpreters, without a network, without touching the real .venv."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAMS = ["bash", "cat", "dirname", "env", "flock", "grep", "mkdir", "rm", "sed", "sha256sum", "sh", "uname"]
FREE_THREADED = "CPython 3.13.5 free-threaded"
MAKE_ENVIRONMENT = """
. tools/setup/common.sh; . tools/setup/environment.sh
make_environment() { echo made; mkdir -p .venv; }
"""


def write_script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def fake_python(path: Path, version: str = "3.13.5", *, abiflags: str = "t", banner: str = "CPython") -> Path:
    """A Python that runs what it is given as a real one does, but takes itself for another."""
    lies = (
        f"import sys; sys.version_info = {tuple(map(int, version.split('.')))}; sys.abiflags = {abiflags!r};"
        f"sys.version = {banner!r}; sys._base_executable = {str(path)!r}; exec(sys.argv[-1])"
    )
    return write_script(path, f'#!/bin/sh\nexec "{sys.executable}" -c "{lies}" "$@"\n')


class Checkout:
    """A copy of what set-up reads, and an environment in which it finds nothing of this machine's Pythons."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(ROOT / "tools", root / "tools")
        shutil.copy(ROOT / "pyproject.toml", root)
        self.bin = root / "bin"
        self.bin.mkdir()
        for program in PROGRAMS:
            (self.bin / program).symlink_to(shutil.which(program) or pytest.fail(f"{program} is missing"))
        self.env = {"PATH": str(self.bin), "HOME": str(root), "ZLINK_CACHE": str(root / "cache"), "root": str(root)}
        self.python = fake_python(root / "right" / "python3.13t")

    def popen(self, *command: str, **env: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=self.root, env=self.env | env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        with self.popen(*command, **env) as process:
            output, errors = process.communicate()
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def find(self, function: str = "find_interpreter", **env: str) -> subprocess.CompletedProcess[str]:
        return self.run("bash", "-c", f". tools/setup/common.sh; . tools/setup/interpreter.sh; {function}", **env)

    def pretend_ready(self, python: Path, threading: str) -> None:
        """An environment that set-up takes for its own, whose python says what it was asked to run."""
        write_script(self.root / ".venv/bin/python", '#!/bin/sh\necho "$@"\necho "gil=${PYTHON_GIL-unset}"\n')
        settings = f"python={python}; version=3.13.5; threading={threading};"
        done = self.run("bash", "-c", f"{settings} {MAKE_ENVIRONMENT} environment_stamp >.venv/stamp")
        assert done.returncode == 0, done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.parametrize(
    ("version", "banner", "named"),
    [("3.12.1", "CPython", "CPython 3.12.1"), ("3.13.5", "[PyPy 9]", "PyPy 3.13.5"), ("2.7.18", "CPython", "2.7.18")],
)
def test_a_wrong_chosen_interpreter_is_refused_in_one_sentence(
    checkout: Checkout, version: str, banner: str, named: str
) -> None:
    wrong = fake_python(checkout.root / "wrong" / "python", version, abiflags="", banner=banner)
    done = checkout.run("tools/run", "setup", ZLINK_PYTHON=str(wrong))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"ZLINK_PYTHON={wrong} is " in done.stderr
    assert named in done.stderr
    assert "needs CPython 3.13" in done.stderr
    assert not (checkout.root / ".venv").exists()


@pytest.mark.parametrize("chosen", ["/no/such/python", "sed", "/bin/true"])
def test_a_chosen_interpreter_that_is_none_is_refused(checkout: Checkout, chosen: str) -> None:
    done = checkout.run("tools/run", "setup", ZLINK_PYTHON=chosen)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"ZLINK_PYTHON={chosen} does not run as a Python" in done.stderr


def test_the_chosen_interpreter_comes_before_the_path(checkout: Checkout) -> None:
    chosen = fake_python(checkout.root / "chosen" / "python", abiflags="")
    path = f"{checkout.python.parent}:{checkout.bin}"
    assert checkout.find(PATH=path, ZLINK_PYTHON=str(chosen)).stdout == f"CPython 3.13.5 gil {chosen}\n"


def test_pythons_on_the_path_that_fail_or_have_a_gil_are_skipped(checkout: Checkout) -> None:
    shim = write_script(checkout.root / "shims" / "python3.13t", "#!/bin/sh\necho 'not installed' >&2\nexit 127\n")
    gil = fake_python(checkout.root / "gil" / "python3.13t", abiflags="")
    path = ":".join(str(folder) for folder in (shim.parent, gil.parent, checkout.python.parent, checkout.bin))
    assert checkout.find(PATH=path).stdout == f"{FREE_THREADED} {checkout.python}\n"


def test_of_our_own_builds_the_profile_guided_one_is_preferred(checkout: Checkout) -> None:
    machine = os.uname().machine
    plain, guided = (
        fake_python(checkout.root / f"cache/cpython-3.13t-{machine}-{flags}/bin/python3.13t") for flags in ("O3", "pgo")
    )
    assert checkout.find().stdout == f"{FREE_THREADED} {guided}\n"
    guided.unlink()
    assert checkout.find().stdout == f"{FREE_THREADED} {plain}\n"


def test_what_uv_has_is_used_before_our_own_build(checkout: Checkout) -> None:
    fake_python(checkout.root / f"cache/cpython-3.13t-{os.uname().machine}-pgo/bin/python3.13t")
    write_script(checkout.bin / "uv", f'#!/bin/sh\necho "$@" >>uv.log\necho {checkout.python}\n')
    assert checkout.find().stdout == f"{FREE_THREADED} {checkout.python}\n"
    assert "--offline" in (checkout.root / "uv.log").read_text()


def test_with_nothing_local_the_build_is_the_last_resort(checkout: Checkout) -> None:
    write_script(checkout.bin / "uv", '#!/bin/sh\necho "$1 $2" >>tried.log\nexit 2\n')
    write_script(checkout.bin / "sudo", "#!/bin/sh\nexit 1\n")
    build = f"#!/bin/sh\necho build >>tried.log\necho {checkout.python}\n"
    write_script(checkout.root / "tools/setup/build_cpython.sh", build)
    write_script(checkout.bin / "timeout", '#!/bin/sh\nshift 2\nexec "$@"\n')
    done = checkout.find()
    assert done.stdout == f"{FREE_THREADED} {checkout.python}\n"
    assert (checkout.root / "tried.log").read_text().split("\n") == ["python find", "python install", "build", ""]


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="needs a virtual environment")
def test_the_interpreter_behind_a_virtual_environment_is_named(checkout: Checkout) -> None:
    gil = "free-threaded" if sysconfig.get_config_var("Py_GIL_DISABLED") else "gil"
    description = checkout.find(f'describe "{sys.executable}"').stdout
    assert description.split(" ", 2)[2] == f"{gil} {sys._base_executable}\n"


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        (["demo", "--turns", "3"], "-m zlink_nogil demo --turns 3"),
        (["test", "-k", "a b"], "-m pytest -n auto -k a b"),
        (["trace-report", "x"], "{root}/tools/trace_report.py x"),
        (["bench", "x"], "-m bench x"),
        (["setup"], None),
    ],
)
def test_words_reach_what_they_name(checkout: Checkout, words: list[str], runs: str | None) -> None:
    checkout.pretend_ready(checkout.python, "free-threaded")
    write_script(checkout.root / "tools/trace_report.py", "")
    write_script(checkout.root / "bench/__main__.py", "")
    done = checkout.run("tools/run", *words, PATH=f"{checkout.python.parent}:{checkout.bin}", PYTHON_GIL="1")
    assert done.returncode == 0, done.stderr
    expected = "" if runs is None else f"{runs.format(root=checkout.root)}\ngil=0\n"
    assert (done.stdout, "making" in done.stderr) == (expected, False)


def test_an_interpreter_with_a_gil_works_with_one_line_of_warning(checkout: Checkout) -> None:
    gil = fake_python(checkout.root / "gil" / "python", abiflags="")
    checkout.pretend_ready(gil, "gil")
    done = checkout.run("tools/run", "demo", ZLINK_PYTHON=str(gil), PYTHON_GIL="0")
    assert done.stdout == "-m zlink_nogil demo\ngil=unset\n"
    assert re.fullmatch(r"set-up: warning: .* has a GIL.*\n", done.stderr)


PREPARE = f"set -e; python=/p; version=1; threading=gil; {MAKE_ENVIRONMENT}"


def test_the_environment_is_made_again_when_it_is_half_made_or_out_of_date(checkout: Checkout) -> None:
    def prepare(before: str = "") -> str:
        return checkout.run("bash", "-c", f"{PREPARE} {before} prepare_environment").stdout

    half_made = checkout.run("bash", "-c", f"{PREPARE} make_environment() {{ mkdir .venv; false; }}; prepare_environment")
    assert (half_made.returncode, (checkout.root / ".venv").exists()) == (1, True)
    assert [prepare(), prepare()] == ["made\n", ""]
    with (checkout.root / "tools/constraints.txt").open("a") as constraints:
        constraints.write("one-more==1\n")
    assert [prepare(), prepare()] == ["made\n", ""]
    assert [prepare("version=2;"), prepare("version=2;")] == ["made\n", ""]


def test_of_two_set_ups_at_once_one_works_and_both_end_ready(checkout: Checkout) -> None:
    with (checkout.root / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        both = [checkout.popen("bash", "-c", f"{PREPARE} prepare_environment; echo ready") for _ in range(2)]
        waiting = [process.stderr.readline() for process in both if process.stderr]
    outputs = sorted(process.communicate()[0] for process in both)
    assert all("waiting" in line for line in waiting)
    assert outputs == ["made\nready\n", "ready\n"]


def test_everything_installed_is_pinned() -> None:
    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    lines = (ROOT / "tools/constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    installed = {plain(found.name): found.version for found in distributions()}
    del installed["zlink-nogil"]
    installed.pop("pip", None)  # comes with the interpreter
    assert {name: pins.get(name) for name in installed} == installed
