"""`zlink-nogil demo`: its options, its exit codes, and how its processes end."""

from __future__ import annotations

import json
import sysconfig
from dataclasses import asdict
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console

from zlink_nogil.errors import ZLinkError
from zlink_nogil.hosting.demo.client import run
from zlink_nogil.hosting.demo.counting import sources
from zlink_nogil.hosting.demo.crunch import compare
from zlink_nogil.hosting.demo.report import show

__all__ = ["demo"]


@click.command()
@click.option(
    "--path",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Tree of Python sources; default: the running interpreter's standard library.",
)
@click.option("--nodes", default=2, show_default=True, type=click.IntRange(1, 64), help="Server processes.")
@click.option("--workers", type=click.IntRange(1, 256), help="Worker threads of each; default: one per CPU.")
@click.option("--scheduler", is_flag=True, help="No servers: tasks in this process, beside asyncio and a thread pool.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the outcome here too.")
@click.pass_context
def demo(
    ctx: click.Context, path: Path | None, nodes: int, workers: int | None, scheduler: bool, json_file: Path | None
) -> None:
    """Index a tree of Python sources with NODES server processes, and check every total against a plain loop.

    Exit code 0 when all totals are equal, 1 when they are not, 130 after Ctrl-C.
    """
    if scheduler and ctx.get_parameter_source("nodes") is not ParameterSource.DEFAULT:
        raise click.UsageError("--scheduler is about one process: --nodes does not go with it", ctx)
    console = Console(stderr=True)
    root = path or Path(sysconfig.get_path("stdlib"))
    try:
        files = sources(root)
        if not files:
            raise click.BadParameter(f"no Python sources below {root}", ctx, param_hint="--path")
        if json_file is not None:
            json_file.touch()  # complains now, not after the work
        outcome = compare(root, files, workers) if scheduler else run(root, files, nodes, workers, console)
        show(outcome, Console())
        if json_file is not None:
            json_file.write_text(json.dumps(asdict(outcome), indent=2) + "\n")
    except KeyboardInterrupt:
        console.print("interrupted; the server processes have ended")
        ctx.exit(130)
    except (OSError, ZLinkError) as error:
        raise click.ClickException(str(error)) from None
    ctx.exit(0 if outcome.equal else 1)
