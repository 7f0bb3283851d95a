"""Every application handler is blocked: what does not need one goes on (design 4.3; issue "all handlers blocked")."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from support import PATIENCE, Net, echo, eventually, outcome

from zlink_nogil import DeadlineExceeded

WORKERS = 2


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as net:
        yield net


def test_timeouts_replies_new_peers_and_drain_go_on(net: Net):
    held, late = net.hold(), net.hold()
    other = net.node("other", late.answer)
    blocked = net.node("blocked", held.answer, peers=(other,), workers=WORKERS)
    net.ready(blocked, other)
    early = blocked.work.request(b"early", reply=bytes, timeout=60.0).submit()  # asked before, answered meanwhile
    late.wait_begun()
    asking = [other.work.request(b"%d" % n, key=str(n), timeout=60.0).submit() for n in range(WORKERS)]
    held.wait_begun(WORKERS)  # each worker of the node sits in a handler

    waiting = blocked.work.request(b"nobody has time", key="n", timeout=0.1).submit()
    assert isinstance(outcome(waiting), DeadlineExceeded)
    late.gate.set()
    assert early.result(PATIENCE) == b"early"
    newcomer = net.node("newcomer", echo, peers=(blocked,))
    net.ready(blocked, newcomer)

    draining = threading.Thread(target=blocked.close, args=(PATIENCE,))
    draining.start()
    eventually(lambda: "blocked" not in other.mesh.nodes(), "that nobody chooses it any more")
    assert not any(completion.done() for completion in asking)
    held.gate.set()
    assert sorted(completion.result(PATIENCE) for completion in asking) == [b"0", b"1"]
    draining.join(PATIENCE)
    assert not draining.is_alive()


def test_with_no_permit_left_completions_and_new_peers_go_on(net: Net):
    held, late = net.hold(), net.hold()
    other = net.node("other", late.answer)
    full = net.node("full", held.answer, peers=(other,), workers=1, max_queued_application_jobs=1)
    net.ready(full, other)
    early = full.work.request(b"early", reply=bytes, timeout=60.0).submit()
    late.wait_begun()
    asking = [other.work.request(b"%d" % n, key="k", timeout=60.0).submit() for n in range(4)]
    held.wait_begun()
    eventually(lambda: full.host._permits.free() <= 0, "the last permit's end")
    late.gate.set()
    assert early.result(PATIENCE) == b"early"
    held.gate.set()
    assert [completion.result(PATIENCE) for completion in asking] == [b"0", b"1", b"2", b"3"]
    newcomer = net.node("newcomer", echo, peers=(full,))
    net.ready(full, newcomer)
