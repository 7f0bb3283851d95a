"""`zlink-nogil demo`: its options, its exit codes, and how its processes end."""

from __future__ import annotations

import json
import sysconfig
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource
from rich.console import Console

from zlink_nogil.errors import ZLinkError
from zlink_nogil.hosting.demo.client import APIS, run
from zlink_nogil.hosting.demo.counting import sources
from zlink_nogil.hosting.demo.crunch import compare
from zlink_nogil.hosting.demo.report import Comparison, Outcome, World, show
from zlink_nogil.hosting.demo.rooms import run_world
from zlink_nogil.scheduler.settings import default_workers

__all__ = ["demo"]


ROOMS: Final = 200
MEMBERS: Final = 5000


@click.command()
@click.option(
    "--path",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Tree of Python sources; default: the running interpreter's standard library.",
)
@click.option("--nodes", default=2, show_default=True, type=click.IntRange(1, 64), help="Server processes.")
@click.option("--workers", type=click.IntRange(1, 256), help="Worker threads of each; default: one per CPU.")
@click.option("--api", type=click.Choice(APIS), default=APIS[0], show_default=True, help="How the servers are asked.")
@click.option("--scheduler", is_flag=True, help="No servers: tasks in this process, beside asyncio and a thread pool.")
@click.option("--rooms", is_flag=True, help="No sources: a world of rooms and members that ticks, and checks its books.")
@click.option("--seconds", default=10.0, show_default=True, type=click.FloatRange(0.1, 86_400), help="How long it ticks.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the outcome here too.")
@click.pass_context
def demo(
    ctx: click.Context,
    path: Path | None,
    nodes: int,
    workers: int | None,
    api: str,
    scheduler: bool,
    rooms: bool,
    seconds: float,
    json_file: Path | None,
) -> None:
    """Index a tree of Python sources with NODES server processes, and check every total against a plain loop.

    Exit code 0 when all totals are equal (the books balance), 1 when they are not, 130 after Ctrl-C.
    """
    _check_together(ctx, scheduler, rooms)
    console = Console(stderr=True)
    root = path or Path(sysconfig.get_path("stdlib"))
    outcome: Outcome | Comparison | World
    try:
        files = [] if rooms else sources(root)
        if not files and not rooms:
            raise click.BadParameter(f"no Python sources below {root}", ctx, param_hint="--path")
        if json_file is not None:
            json_file.touch()  # complains now, not after the work
        if rooms:
            outcome = run_world(ROOMS, MEMBERS, seconds, workers or default_workers(), console)
        else:
            outcome = compare(root, files, workers) if scheduler else run(root, files, nodes, workers, api, console)
        show(outcome, Console())
        if json_file is not None:
            json_file.write_text(json.dumps(asdict(outcome), indent=2) + "\n")
    except KeyboardInterrupt:
        console.print("interrupted; the server processes have ended")
        ctx.exit(130)
    except (OSError, ZLinkError) as error:
        raise click.ClickException(str(error)) from None
    ctx.exit(0 if outcome.equal else 1)


def _check_together(ctx: click.Context, scheduler: bool, rooms: bool) -> None:
    """`UsageError` for options that do not go together."""
    given = {name for name in ctx.params if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    if rooms:
        flag, unfit = "--rooms", {"api", "nodes", "path", "scheduler"}
    else:
        flag, unfit = ("--scheduler", {"api", "nodes", "seconds"}) if scheduler else ("a demo without --rooms", {"seconds"})
    for name in sorted(given & unfit):
        raise click.UsageError(f"--{name} does not go with {flag}", ctx)
