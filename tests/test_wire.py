"""The wire format: what is packed comes back, and nothing that is short, foreign or broken gets through."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zlink_nogil.errors import ErrorKind, InternalFailure, ProtocolError, Unavailable, ZLinkError
from zlink_nogil.messaging import wire
from zlink_nogil.messaging.wire import HEADER_BYTES, Kind, Malformed

quick = settings(max_examples=60, deadline=None, derandomize=True)
word = st.integers(0, 2**64 - 1)
name = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
metadata = st.dictionaries(st.text(max_size=8), st.binary(max_size=40), max_size=5)


def record(kind: Kind = Kind.REQUEST, route: bytes = b"r\0o\0u", extras: bytes = b"", payload: bytes = b"payload") -> bytes:
    return wire.pack(kind, route, extras, payload, generation=7, operation=(1, 2), reply_route=3, timeout_ms=4)


# -- records ------------------------------------------------------------------------------------------------------------


@quick
@given(
    st.sampled_from(Kind),
    st.binary(max_size=300),
    st.binary(max_size=300),
    st.binary(max_size=300),
    word,
    st.tuples(word, word),
    word,
    st.integers(0, 2**31 - 1),
)
def test_a_record_comes_back_as_it_was_packed(kind, route, extras, payload, generation, operation, reply_route, timeout):
    packed = wire.pack(
        kind,
        route,
        extras,
        payload,
        generation=generation,
        operation=operation,
        reply_route=reply_route,
        timeout_ms=timeout,
    )
    header = wire.unpack(packed)
    assert header[:8] == (kind, route, extras, generation, *operation, reply_route, timeout)
    assert packed[header.payload_at :] == payload
    assert len(packed) == HEADER_BYTES + len(route) + len(extras) + len(payload)


@pytest.mark.parametrize("kind", [Kind.SEND, Kind.REQUEST])
def test_the_mark_of_a_traced_message_travels_and_changes_nothing_else(kind):
    plain = record(kind)
    traced = wire.pack(
        kind, b"r\0o\0u", b"", b"payload", generation=7, operation=(1, 2), reply_route=3, timeout_ms=4, traced=True
    )
    assert wire.unpack(traced) == wire.unpack(plain)._replace(traced=True)
    assert wire.unpack(wire.readdress(traced, 8, 9)).traced
    assert not wire.unpack(plain).traced


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in (Kind.SEND, Kind.REQUEST)])
def test_nothing_else_can_be_traced(kind):
    with pytest.raises(Malformed, match="unknown kind"):
        wire.unpack(wire.pack(kind, b"", b"", b"", generation=7, traced=True))


@pytest.mark.parametrize("kind", Kind)
def test_a_record_cut_off_at_any_byte_of_its_header_is_malformed(kind):
    whole = record(kind, extras=b"extras")
    body = len(b"payload")
    for size in range(len(whole) - body):
        with pytest.raises(Malformed):
            wire.unpack(whole[:size])
    for size in range(len(whole) - body, len(whole) + 1):
        assert wire.unpack(whole[:size]).payload_at == len(whole) - body  # the payload's size is the codec's business


def test_a_record_without_route_extras_and_payload_is_just_a_header():
    header = wire.unpack(wire.pack(Kind.SEND, b"", b"", b"", generation=0))
    assert (header.route, header.extras, header.payload_at) == (b"", b"", HEADER_BYTES)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_an_unknown_version_is_malformed_and_nothing_of_it_is_trusted(version):
    with pytest.raises(Malformed, match=f"unknown version {version}") as caught:
        wire.unpack(bytes((version,)) + record()[1:])
    assert caught.value.request is None


def test_unknown_kinds_are_malformed():
    traced = {kind | 0x80 for kind in (Kind.SEND, Kind.REQUEST)}
    for number in set(range(256)) - set(Kind) - traced:
        with pytest.raises(Malformed, match=f"unknown kind of record {number}"):
            wire.unpack(bytes((wire.VERSION, number)) + record()[2:])


def test_a_truncated_request_says_whom_to_answer_and_a_truncated_send_does_not():
    with pytest.raises(Malformed) as caught:
        wire.unpack(record(Kind.REQUEST)[: HEADER_BYTES + 1])
    assert caught.value.request == (7, 1, 2, 3)
    with pytest.raises(Malformed) as caught:
        wire.unpack(record(Kind.SEND)[: HEADER_BYTES + 1])
    assert caught.value.request is None


@quick
@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_malformed(data):
    try:
        header = wire.unpack(data)
    except Malformed:
        return
    assert header.payload_at <= len(data)


# -- routes -------------------------------------------------------------------------------------------------------------


@quick
@given(name, name, name)
def test_a_route_comes_back(content_type, channel, message_name):
    assert wire.unpack_route(wire.pack_route(content_type, channel, message_name)) == (content_type, channel, message_name)


@pytest.mark.parametrize("names", [("a\0", "", ""), ("", "a\0b", ""), ("", "", "\0"), ("a" * 70_000, "", "")])
def test_a_route_that_cannot_be_packed_is_refused(names):
    with pytest.raises(ValueError, match=r"NUL|64 KiB"):
        wire.pack_route(*names)


@pytest.mark.parametrize("route", [b"", b"a", b"a\0b", b"a\0b\0c\0d", b"\xff\0b\0c"])
def test_bytes_that_are_no_route_are_a_protocol_error(route):
    with pytest.raises(ProtocolError, match="route"):
        wire.unpack_route(route)


# -- extras: key and metadata -------------------------------------------------------------------------------------------


addresses = st.just(wire.NOBODY) | st.builds(wire.Address, st.sampled_from(wire.OwnerKind), st.text(max_size=40))


@quick
@given(addresses, metadata)
def test_owner_and_metadata_come_back(address, entries):
    assert wire.unpack_extras(wire.pack_extras(address, entries)) == (address, entries)


def test_no_key_is_not_the_empty_key():
    assert wire.unpack_extras(wire.pack_extras(wire.NOBODY, {"a": b""}))[0] == wire.NOBODY
    empty = wire.Address(wire.OwnerKind.KEY, "")
    assert wire.unpack_extras(wire.pack_extras(empty, {}))[0] == empty != wire.NOBODY
    assert wire.pack_extras(wire.NOBODY, {}) == b""


def test_extras_cut_off_at_any_byte_are_a_protocol_error_or_fewer_entries():
    address = wire.Address(wire.OwnerKind.SPOT, "id")
    whole = wire.pack_extras(address, {"one": b"1", "two": b"22"})
    for size in range(1, len(whole)):
        try:
            back, entries = wire.unpack_extras(whole[:size])
        except ProtocolError:
            continue
        assert back == address
        assert entries in ({}, {"one": b"1"})  # a cut between two entries


@quick
@given(st.binary(min_size=1, max_size=80))
def test_any_bytes_are_extras_or_a_protocol_error(data):
    try:
        wire.unpack_extras(data)
    except ProtocolError:
        return


@pytest.mark.parametrize(
    ("key", "entries"),
    [
        ("k" * 70_000, {}),
        ("\ud800", {}),
        ("", {f"m{n}": b"" for n in range(65)}),
        ("", {"n" * 256: b""}),
        ("", {"name": "text"}),
        ("", {7: b""}),
        ("", {"name": bytearray(b"x")}),
    ],
)
def test_an_owner_or_metadata_that_cannot_be_packed_is_a_value_error(key, entries):
    with pytest.raises(ValueError):  # noqa: PT011 - each case has a message of its own
        wire.pack_extras(wire.Address(wire.OwnerKind.KEY, key), entries)


@quick
@given(st.sampled_from(wire.OwnerKind), st.text(max_size=80))
def test_that_an_owner_is_not_there_comes_back_with_its_address(kind, owner_id):
    back = wire.unpack_error(wire.pack_error(wire.NotHere(wire.Address(kind, owner_id))))
    assert isinstance(back, wire.NotHere)
    assert back.address == (kind, owner_id)


@quick
@given(st.binary(max_size=40), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_a_record_for_another_life_differs_in_that_only(payload, generation, timeout_ms):
    parts = (wire.Kind.REQUEST, b"a\0b\0c", wire.pack_extras(wire.Address(wire.OwnerKind.ACTOR, "x"), {}), payload)
    record = wire.pack(*parts, generation=1, operation=(2, 3), reply_route=4, timeout_ms=5)
    expected = wire.pack(*parts, generation=generation, operation=(2, 3), reply_route=4, timeout_ms=timeout_ms)
    assert wire.readdress(record, generation, timeout_ms) == expected


# -- errors -------------------------------------------------------------------------------------------------------------


@quick
@given(st.sampled_from(ErrorKind), st.text(max_size=80))
def test_an_error_comes_back_with_kind_and_message(kind, message):
    back = wire.unpack_error(wire.pack_error(ZLinkError.of(kind, message)))
    assert type(back) is type(ZLinkError.of(kind, ""))
    assert back.kind is kind
    assert back.message == message.encode(errors="replace").decode()


@pytest.mark.parametrize("accepted", [False, True])
def test_unavailable_keeps_apart_never_accepted_and_fate_unknown(accepted):
    back = wire.unpack_error(wire.pack_error(Unavailable("gone", accepted=accepted)))
    assert isinstance(back, Unavailable)
    assert (back.accepted, back.message) == (accepted, "gone")


def test_a_huge_error_message_is_cut_to_what_every_peer_takes():
    back = wire.unpack_error(wire.pack_error(InternalFailure("é" * 1_000_000)))
    assert isinstance(back, InternalFailure)
    assert len(wire.pack_error(back)) < 16 * 1024
    assert back.message.startswith("ééé")


@pytest.mark.parametrize("payload", [b"", bytes((13,)), bytes((127,)), b"\x7fno such kind"])
def test_an_error_payload_that_cannot_be_read_is_a_protocol_error(payload):
    assert isinstance(wire.unpack_error(payload), ProtocolError)


@quick
@given(st.binary(max_size=60))
def test_any_bytes_make_some_error(payload):
    assert isinstance(wire.unpack_error(payload), ZLinkError)
