"""Handlers: what their annotations say is read once, at registration, and a record's route leads to them."""

from __future__ import annotations

import functools
import gc
from dataclasses import dataclass
from typing import Any

import pytest

from zlink_nogil import Context, Host, InvalidOperation
from zlink_nogil.errors import AlreadyExists, NotFound, ProtocolError
from zlink_nogil.messaging import Codecs, JsonCodec
from zlink_nogil.messaging.handlers import MOST_ROUTES, Handlers
from zlink_nogil.messaging.wire import pack_route

JSON = "application/json"
RAW = "application/octet-stream"


@dataclass
class Ask:
    text: str


def answer(message: Ask, ctx: Context) -> str:  # noqa: ARG001
    return message.text


def note(message: Ask, ctx: Context) -> None:
    """A send handler."""


def handlers(*functions: Any, channel: str = "work", name: str | None = None) -> Handlers:
    made = Handlers(Codecs())
    for function in functions:
        made.register(channel, function, name)
    return made


def route(made: Handlers, name: str, channel: str = "work", content_type: str = JSON) -> Any:
    return made.route(pack_route(content_type, channel, name))


# -- registration -------------------------------------------------------------------------------------------------------


def test_the_message_is_named_by_its_annotated_type():
    found = route(handlers(answer), "Ask").handler
    assert (found.message_type, found.reply_type, found.function) == (Ask, str, answer)


def test_a_name_of_its_own_replaces_the_types():
    made = handlers(answer, name="ask-kindly")
    assert route(made, "ask-kindly").handler.function is answer
    with pytest.raises(NotFound):
        route(made, "Ask")


def test_none_or_no_return_annotation_makes_it_a_send_handler():
    def silent(message: Ask, ctx):  # noqa: ARG001
        return None

    for function in (note, silent):
        found = route(handlers(function), "Ask")
        assert (found.handler.reply_type, found.reply_codec) == (None, None)


def test_methods_partials_and_async_functions_are_handlers():
    class Service:
        def handle(self, message: Ask, ctx: Context) -> str:  # noqa: ARG002
            return message.text

        async def wait(self, message: bytes, ctx: Context) -> None: ...

    made = handlers(Service().handle, Service().wait)
    assert route(made, "Ask").handler.reply_type is str
    assert route(made, "bytes", content_type=RAW).handler.message_type is bytes


def no_annotation(message, ctx): ...
def one_parameter(message: Ask): ...
def three_parameters(message: Ask, ctx, more): ...
def unknown_type(message: Missing, ctx): ...  # noqa: F821
def only_context(message, ctx: Context): ...


@pytest.mark.parametrize("function", [no_annotation, one_parameter, three_parameters, unknown_type, only_context])
def test_what_is_no_handler_is_a_type_error_that_names_it(function):
    with pytest.raises(TypeError, match=function.__name__):
        handlers(function)


@pytest.mark.parametrize("function", [lambda message, ctx: None, print, functools.partial(answer), 5, Ask])  # noqa: ARG005
def test_anything_else_is_a_type_error_or_a_handler(function):
    try:
        made = handlers(function)
    except TypeError:
        return
    assert made.channels() == {"work"}


def test_a_second_handler_of_a_message_is_refused_and_another_channel_is_not():
    made = handlers(answer)
    with pytest.raises(AlreadyExists, match="'Ask'"):
        made.register("work", note, None)
    assert route(made, "Ask").handler.function is answer
    made.register("other", note, None)
    assert made.channels() == {"work", "other"}


# -- routes -------------------------------------------------------------------------------------------------------------


def test_a_route_is_looked_up_once():
    made = handlers(answer)
    assert route(made, "Ask") is route(made, "Ask")


def test_an_unknown_channel_and_an_unknown_message_are_told_apart():
    made = handlers(answer)
    with pytest.raises(NotFound, match="no channel 'play'"):
        route(made, "Ask", channel="play")
    with pytest.raises(NotFound, match="no handler for 'Tell'"):
        route(made, "Tell")


@pytest.mark.parametrize("encoded", [b"", b"a\0b", b"\xff\0a\0b", pack_route("x/unknown", "work", "Ask")])
def test_a_route_that_leads_nowhere_is_a_protocol_error(encoded):
    with pytest.raises(ProtocolError):
        handlers(answer).route(encoded)


def test_what_was_not_found_may_be_found_later():
    made = handlers()
    with pytest.raises(NotFound):
        route(made, "Ask")
    made.register("work", answer, None)
    assert route(made, "Ask").handler.function is answer


def test_routes_are_cached_up_to_a_bound():
    codecs = Codecs()
    made = Handlers(codecs)
    made.register("work", answer, None)
    for number in range(MOST_ROUTES + 5):
        codec = JsonCodec()
        codec.content_type = f"x/{number}"
        codecs.register(codec, lambda declared: False)  # noqa: ARG005
        assert route(made, "Ask", content_type=f"x/{number}").codec is codec
    assert len(made._routes) == MOST_ROUTES


# -- through the host ---------------------------------------------------------------------------------------------------


def test_handlers_and_weights_belong_to_the_time_before_the_start():
    with Host(workers=1) as host:
        pass
    host = Host(workers=1)
    mesh = host.mesh("test")
    work = mesh.channel("work")
    assert work.handler(answer) is answer
    assert work.handler(name="note")(note) is note
    with host:
        with pytest.raises(InvalidOperation, match="before the host starts"):
            work.handler(note)
        with pytest.raises(InvalidOperation, match="before the host starts"):
            mesh.handler(note)
        with pytest.raises(InvalidOperation, match="before the host starts"):
            mesh.channel("work", weight=5)
        assert mesh.channel("work") is work


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 201, "é" * 101, None, 5])
def test_names_are_checked_where_they_are_given(name):
    host = Host(workers=1)
    with pytest.raises(ValueError, match="200 bytes of text"):
        host.mesh("test").channel(name)
    if name is not None:
        with pytest.raises(ValueError, match="200 bytes of text"):
            Host(workers=1).mesh(name)


@pytest.mark.parametrize("weight", [-1, 1_000_001, 1.5, "many"])
def test_a_weight_is_checked_where_it_is_given(weight):
    with pytest.raises(ValueError, match="weight"):
        Host(workers=1).mesh("test").channel("work", weight=weight)


@pytest.mark.parametrize(
    "endpoint", ["", "7001", "tcp://127.0.0.1", "udp://127.0.0.1:1", "tcp://127.0.0.1:99999", "tcp://:1"]
)
def test_an_endpoint_is_checked_where_it_is_given(endpoint):
    with pytest.raises(ValueError, match="endpoint"):
        Host(workers=1).mesh("test", bind=endpoint)
    with pytest.raises(ValueError, match="endpoint"):
        Host(workers=1).mesh("test", peers=[endpoint])


def test_a_wildcard_needs_an_address_for_the_others():
    with pytest.raises(ValueError, match="advertise"):
        Host(workers=1).mesh("test", bind="tcp://*:0")


def test_the_collector_is_left_alone_unless_a_host_is_told_otherwise(monkeypatch):
    done: list[object] = []
    monkeypatch.setattr(gc, "freeze", lambda: done.append("frozen"))
    monkeypatch.setattr(gc, "set_threshold", done.append)
    with Host(workers=1):
        assert done == []
    with Host(workers=1, gc_freeze=True, gc_threshold=5000):
        assert done == [5000, "frozen"]


def test_a_host_is_in_a_mesh_once():
    host = Host(workers=1)
    host.mesh("test")
    with pytest.raises(AlreadyExists):
        host.mesh("test")
