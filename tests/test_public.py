"""The public surface (design 7): what each package exports, and nothing else."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import pkgutil
from importlib.resources import files

import pytest

import zlink_nogil

ERRORS = {
    "AlreadyExists",
    "Cancelled",
    "CapacityExceeded",
    "DataLost",
    "DeadlineExceeded",
    "ErrorKind",
    "InternalFailure",
    "InvalidOperation",
    "NotConfigured",
    "NotFound",
    "ProtocolError",
    "Rejected",
    "ShuttingDown",
    "TypeMismatch",
    "Unavailable",
    "ZLinkError",
}

SURFACE: dict[str, set[str]] = {
    "zlink_nogil": {
        "Actor",
        "ActorRef",
        "Call",
        "Channel",
        "Client",
        "Completion",
        "Context",
        "EntrySpot",
        "Host",
        "InstanceSpot",
        "Keys",
        "Mesh",
        "NodeTarget",
        "PerActor",
        "Server",
        "Spot",
        "SpotRef",
        "SpotWide",
        "handler",
        "timer",
        *ERRORS,
    },
    "zlink_nogil.binding": {
        "ClientSocket",
        "Context",
        "InSocket",
        "Keys",
        "Lost",
        "OutSocket",
        "Record",
        "ServerSocket",
        "Waiting",
    },
    "zlink_nogil.execution": {
        "ActorSerialExecutor",
        "Call",
        "Entry",
        "ExecutionLanePolicy",
        "Instance",
        "PerActor",
        "QueueStateSnapshot",
        "SerialExecutionQueue",
        "SessionSerialExecutor",
        "SpotMode",
        "SpotSerialExecutor",
        "SpotWide",
        "Turn",
    },
    "zlink_nogil.hosting": {"Host", "HostInspection"},
    "zlink_nogil.hosting.demo": set(),
    "zlink_nogil.messaging": {
        "Channel",
        "Client",
        "Codec",
        "Codecs",
        "Context",
        "JsonCodec",
        "Location",
        "LocationStore",
        "MemoryLocationStore",
        "Mesh",
        "NodeTarget",
        "RawBytesCodec",
        "Server",
    },
    "zlink_nogil.scheduler": {
        "Completion",
        "Driver",
        "OnWait",
        "Role",
        "Runnable",
        "StandBy",
        "Statistics",
        "Suspension",
        "Wait",
        "Waker",
        "WorkerPool",
        "default_pool",
        "default_standby",
    },
    "zlink_nogil.dependencies": {"Container", "Plan", "Scope"},
    "zlink_nogil.spots": {
        "Actor",
        "ActorInspection",
        "ActorRef",
        "ActorStateSnapshot",
        "Actors",
        "EntrySpot",
        "InstanceSpot",
        "MessageContext",
        "Spot",
        "SpotInspection",
        "SpotRef",
        "SpotTimers",
        "Spots",
        "TimerStatistics",
        "handler",
        "timer",
    },
    "zlink_nogil.state": {
        "StateLane",
        "assert_on_lane",
        "debug_assert_current",
        "debug_assert_not_on_lane",
        "debug_assert_on_lane",
    },
}
MODULES: dict[str, set[str]] = {
    "zlink_nogil.sockets": {"accept", "connect", "notify_closing", "recv", "send", "wait_readable", "wait_writable"},
}
"""Public modules that are no packages."""

FOR_USERS = sorted(SURFACE.keys() - {"zlink_nogil.binding", "zlink_nogil.hosting.demo"})


def modules() -> list[pkgutil.ModuleInfo]:
    return list(pkgutil.walk_packages(zlink_nogil.__path__, "zlink_nogil."))


def test_every_package_is_in_the_table() -> None:
    assert {"zlink_nogil", *(module.name for module in modules() if module.ispkg)} == SURFACE.keys()


@pytest.mark.parametrize("name", SURFACE | MODULES)
def test_a_package_exports_exactly_its_surface(name: str) -> None:
    package = importlib.import_module(name)
    exported = getattr(package, "__all__", [])
    assert sorted(exported) == sorted((SURFACE | MODULES)[name]), "once each"
    for export in exported:
        assert hasattr(package, export)


@pytest.mark.parametrize("module", [module.name for module in modules() if not module.name.endswith("__main__")])
def test_all_names_what_a_module_has(module: str) -> None:
    found = importlib.import_module(module)
    missing = [name for name in getattr(found, "__all__", []) if not hasattr(found, name)]
    assert not missing


def test_the_errors_are_one_family_from_both_places() -> None:
    errors = importlib.import_module("zlink_nogil.errors")
    assert set(errors.__all__) == ERRORS
    assert all(getattr(errors, name) is getattr(zlink_nogil, name) for name in ERRORS)


def test_the_same_name_is_the_same_thing_everywhere() -> None:
    for name in SURFACE["zlink_nogil"] - ERRORS:
        packages = [package for package in FOR_USERS if name in SURFACE[package]]
        assert len({id(getattr(importlib.import_module(package), name)) for package in packages}) == 1, name


@pytest.mark.parametrize("name", [*FOR_USERS, *MODULES])
def test_what_users_meet_is_documented(name: str) -> None:
    package = importlib.import_module(name)
    assert inspect.getdoc(package), "the package"
    exports = [getattr(package, export) for export in package.__all__]
    silent = [export for export in exports if _is_documentable(export) and not inspect.getdoc(export)]
    assert not silent


def test_every_module_says_what_it_is() -> None:
    silent = [
        module.name
        for module in modules()
        if not module.name.endswith("__main__") and not importlib.import_module(module.name).__doc__
    ]
    assert not silent


def test_types_are_shipped() -> None:
    assert files(zlink_nogil).joinpath("py.typed").is_file()


def test_the_command_is_registered() -> None:
    [command] = importlib.metadata.entry_points(group="console_scripts", name="zlink-nogil")
    assert callable(command.load())


def _is_documentable(found: object) -> bool:
    return inspect.isclass(found) or inspect.isroutine(found)
