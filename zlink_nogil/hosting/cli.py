"""The `zlink-nogil` command line."""

from __future__ import annotations

import importlib
import logging
import os
import sys

import click

from zlink_nogil._interpreter import FREE_THREADED
from zlink_nogil.hosting.demo.command import demo
from zlink_nogil.hosting.host import Host

__all__ = ["main"]


def main() -> None:
    """Entry point; on a free-threaded build re-executes itself once with the GIL forced off, if it is not."""
    if FREE_THREADED and os.environ.get("PYTHON_GIL") != "0" and sys._xoptions.get("gil") != "0":
        os.environ["PYTHON_GIL"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "zlink_nogil", *sys.argv[1:]])
    commands()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def commands() -> None:
    """zlink_nogil: stateful server code in parallel on free-threaded CPython."""


@commands.command()
@click.argument("target", metavar="MODULE:HOST")
def serve(target: str) -> None:
    """Run the host that MODULE:HOST names (a Host, or a function that makes one) until SIGTERM or Ctrl-C, then drain."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.path.insert(0, "")
    host = _load(target)
    host.start()
    for mesh in host.meshes:
        click.echo(f"node {mesh.node_id} of mesh {mesh.name} at {mesh.endpoint}", err=True)
    host.serve_forever()


def _load(target: str) -> Host:
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise click.UsageError(f"expected MODULE:HOST, as in my_node:host, not {target!r}")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # the module is there; something it imports is not
        raise click.UsageError(f"there is no module {module_name!r}") from None
    except AttributeError:
        raise click.UsageError(f"module {module_name!r} has no {attribute!r}") from None
    host = found if isinstance(found, Host) or not callable(found) else found()
    if not isinstance(host, Host):
        raise click.UsageError(f"{target} is {type(host).__name__}, not a Host or a function that makes one")
    return host


commands.add_command(demo)
