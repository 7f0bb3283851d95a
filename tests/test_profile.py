"""`tools/profile.py` and its flame graph."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

TOOLS = Path(__file__).parent.parent / "tools"
SPIN = """
import itertools
def spin_here(rounds):
    for _ in rounds:
        sum(range(1000))
spin_here(range(1))
for number in range(100):
    exec("def fill(): pass\\nfill()", {})  # so that what was called before is written down
print("spinning", flush=True)
spin_here(itertools.count())
"""
SAMPLES = """\
python 12/34\x20
\tffffffff813a2413 finish_task_switch ([kernel.kallsyms])
\t          247903 _PyEval_EvalFrameDefault (/opt/bin/python3.13t)
\t              85 py::Inner.method:/opt/app/zlink/inner.py (/tmp/jitted-12-3.so)
\t          2e42b9 py_trampoline_evaluator (/opt/bin/python3.13t)
\t              85 py::outer:/opt/app/zlink/outer.py (/tmp/jitted-12-1.so)

python 12/34\x20
\t              85 py::outer:/opt/app/zlink/outer.py (/tmp/jitted-12-1.so)

ZMQbg/IO/0 12/35\x20
\t           ee017 zmq_poll (/opt/pyzmq.libs/libzmq-7b.so.5)
"""
INNER, OUTER = "Inner.method (zlink/inner.py)", "outer (zlink/outer.py)"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"tools_{name}", TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tool() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TOOLS)
        yield load("profile")


def test_samples_become_stacks_of_python_functions_with_what_they_were_in(tool):
    assert tool.fold(SAMPLES.splitlines()) == Counter(
        {
            ("python 12", OUTER, INNER, "[kernel]"): 1,
            ("python 12", OUTER): 1,
            ("ZMQbg/IO/0 12", "[libzmq]"): 1,
        }
    )


def test_the_dearest_functions_are_those_that_were_at_work_themselves(tool):
    shares = tool.dearest(tool.fold(SAMPLES.splitlines()), 10)
    assert sorted(shares) == sorted([(INNER, 1 / 3, 1 / 3), (OUTER, 1 / 3, 2 / 3), ("[libzmq]", 1 / 3, 1 / 3)])
    assert tool.dearest(tool.fold(SAMPLES.splitlines()), 1)[0][1] == 1 / 3


def test_a_flame_graph_is_an_image_in_which_each_caller_is_as_wide_as_what_it_calls():
    stacks = Counter({("main", "a", "<b>"): 3, ("main", "a", "c"): 1, ("main",): 4})
    image = ElementTree.fromstring(load("flame").flame_graph("t & t", stacks))
    place = "{http://www.w3.org/2000/svg}"
    widths = {
        group.findtext(f"{place}title"): float(group.find(f"{place}rect").attrib["width"])  # type: ignore[union-attr]
        for group in image.iter(f"{place}g")
    }
    assert widths == {
        "main: 8 samples, 100.0 %": 1200,
        "a: 4 samples, 50.0 %": 600,
        "<b>: 3 samples, 37.5 %": 450,
        "c: 1 samples, 12.5 %": 150,
    }
    with pytest.raises(ValueError, match="no sample"):
        load("flame").flame_graph("nothing", Counter())


def profile(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "gil=0", str(TOOLS / "profile.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("target", ["mesh/request-window/5", "99999999", "nothing"])
def test_what_is_no_target_is_refused(target):
    done = profile(target)
    assert done.returncode == 2
    assert "TARGET" in done.stderr


def perf_works() -> bool:
    words = ["perf", "record", "-e", "cpu-clock", "-o", "/dev/null", "--", "true"]
    return shutil.which("perf") is not None and not subprocess.run(words, capture_output=True, check=False).returncode


def test_a_running_process_is_profiled_from_outside(tmp_path):
    if not perf_works():
        pytest.skip("perf is not installed, or may not look at processes here")
    environment = os.environ | {"PYTHON_PERF_JIT_SUPPORT": "1"}
    with subprocess.Popen([sys.executable, "-c", SPIN], env=environment, stdout=subprocess.PIPE) as spinning:
        try:
            assert spinning.stdout is not None
            spinning.stdout.readline()
            done = profile(str(spinning.pid), "--seconds", "0.5", "--svg", str(tmp_path / "out.svg"))
        finally:
            spinning.kill()
    assert done.returncode == 0, done.stderr
    assert "perf: py-spy finds no interpreter in a free-threaded Python" in done.stdout
    assert "spin_here" in done.stdout
    assert "spin_here" in (tmp_path / "out.svg").read_text()
