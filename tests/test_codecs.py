"""Codecs: two JSON implementations that agree, strict shapes, and which codec is chosen when."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
import uuid
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import together

from zlink_nogil.errors import AlreadyExists, ProtocolError
from zlink_nogil.messaging import Codecs, JsonCodec, RawBytesCodec, _json

orjson_only = pytest.mark.skipif(_json.implementation != "orjson", reason="orjson is not installed")
quick = settings(max_examples=100, deadline=None, derandomize=True)

texts = st.text(max_size=20)
integers = st.integers(-(2**63), 2**64 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)


def values(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4) | st.tuples(inner, inner),
        max_leaves=12,
    )


plain = st.none() | st.booleans() | integers | texts


def refused(function: Any, *arguments: Any) -> str:
    """ "refused" for TypeError and ValueError, whichever; anything else fails the test."""
    try:
        return repr(function(*arguments))
    except (TypeError, ValueError):
        return "refused"


# -- orjson and json ----------------------------------------------------------------------------------------------------


@orjson_only
@quick
@given(values(plain))
@example(-(2**63))
@example(2**64 - 1)
@example({"": [(), {}, '\u2028\x7f\0"\\/é\U0001f600']})
def test_both_write_the_same_bytes(value):
    assert _json.dumps(value) == _json.standard_dumps(value)


@orjson_only
@quick
@given(floats)
@example(1e-7)
@example(5e-324)
@example(1.7976931348623157e308)
@example(-0.0)
def test_both_write_the_same_float_if_not_with_the_same_exponent(value):
    ours, standard = _json.dumps(value), _json.standard_dumps(value)
    assert repr(json.loads(ours)) == repr(json.loads(standard)) == repr(value)
    if value == 0 or 1e-4 <= abs(value) < 1e16:
        assert ours == standard


@orjson_only
@quick
@given(values(plain | floats))
def test_both_read_the_same_values(value):
    for data in (_json.dumps(value), _json.standard_dumps(value), json.dumps(value, indent=1).encode()):
        assert repr(_json.loads(data)) == repr(_json.standard_loads(data))


class Text(str):
    __slots__ = ()


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Point:
    x: int


def nest(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


UNWRITABLE = {
    "nan": math.nan,
    "infinity": -math.inf,
    "nested nan": {"a": [math.nan]},
    "too big": 2**64,
    "too small": -(2**63) - 1,
    "integer key": {1: 2},
    "None key": {None: 2},
    "subclass key": {Text("a"): 1},
    "str subclass": Text("a"),
    "int subclass": Level.LOW,
    "enum": Colour.RED,
    "dataclass": Point(1),
    "uuid": uuid.UUID(int=1),
    "datetime": datetime.datetime(2020, 1, 1),
    "bytes": b"x",
    "set": {1},
    "half a surrogate pair": "\ud800",
    "too deep": nest(_json.DEEPEST + 1),
    "cycle": cycle(),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_both_refuse_to_write(case):
    for dumps in (_json.dumps, _json.standard_dumps):
        assert refused(dumps, UNWRITABLE[case]) == "refused"


def test_both_write_as_deep_as_they_say():
    assert _json.dumps(nest(_json.DEEPEST)) == _json.standard_dumps(nest(_json.DEEPEST)) == b"[" * 200 + b"]" * 200


UNREADABLE = b"{ [1,] {'a':1} 01 .5 +1 NaN Infinity -Infinity nul 1e400 {\"a\"} //no".split()
UNREADABLE += [b"", b"1 2", b"\xff", b"\xef\xbb\xbf1", b'"\x01"', b"[1]\0", b"1" * 5000, b"[" * 100_000]
UNREADABLE += [b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\x"']


@pytest.mark.parametrize("data", UNREADABLE, ids=lambda data: repr(data[:12]))
def test_both_refuse_to_read(data):
    assert refused(_json.loads, data) == refused(_json.standard_loads, data) == "refused"


EDGES = b'-0 -0.0 {"a":1,"a":2} "\\ud83d\\ude00" "\\u00e9" "\\u0000" 1e-400 1E5'.split()
EDGES += b"18446744073709551615 18446744073709551616 -9223372036854775808 -9223372036854775809".split()
EDGES += [b" 1\n", b"1" * 30]


@orjson_only
@pytest.mark.parametrize("data", EDGES, ids=repr)
def test_both_read_the_edges_alike(data):
    assert repr(_json.loads(data)) == repr(_json.standard_loads(data))


@orjson_only
@quick
@given(st.binary(max_size=12) | st.text(alphabet='{}[]",:0123456789eE.+-truefalsn\\u ', max_size=16).map(str.encode))
def test_both_agree_on_any_bytes(data):
    assert refused(_json.loads, data) == refused(_json.standard_loads, data)


# -- shapes -------------------------------------------------------------------------------------------------------------


@dataclass
class Item:
    name: str
    price: float = 0.0


@dataclass
class Order:
    id: int
    items: list[Item]
    tags: dict[str, int] = dataclasses.field(default_factory=dict)
    note: str | None = None
    paid: bool = False
    size: tuple[int, int] = (0, 0)
    either: int | str = 0
    state: Literal["new", "old"] = "new"


class Depth(TypedDict):
    depth: int


class Options(Depth, total=False):
    name: str


@dataclass
class Tree:
    value: int
    branches: list[Tree]


@dataclass
class Box[T]:
    content: T


codec = JsonCodec()


@quick
@given(
    st.builds(
        Order,
        integers,
        st.lists(st.builds(Item, texts, floats), max_size=3),
        st.dictionaries(texts, integers, max_size=3),
        st.none() | texts,
        st.booleans(),
        st.tuples(integers, integers),
        integers | texts,
        st.sampled_from(["new", "old"]),
    )
)
def test_a_dataclass_comes_back(order):
    assert codec.decode(codec.encode(order, Order), Order) == order


GOOD = [({"depth": 1}, Options), ({"depth": 1, "name": "n"}, Options), (Tree(1, [Tree(2, [])]), Tree), (Box(3), Box[int])]
GOOD += [([Item("a")], list[Item]), ((1, "a"), tuple[int, str]), ((1, 2), tuple[int, ...]), (Colour.RED, Colour)]
GOOD += [(None, None), (5, int | None), (1.0, float), ("x", str), ([1], list), ({"a": 1}, dict)]
GOOD += [({"a": Item("b")}, dict[str, Item])]


@pytest.mark.parametrize(("value", "declared"), GOOD)
def test_a_value_comes_back(value, declared):
    assert codec.decode(codec.encode(value, declared), declared) == value


def test_any_is_taken_as_decoded():
    assert codec.decode(b'{"a":[1,2.5,null]}', Any) == {"a": [1, 2.5, None]}


def test_an_int_is_a_float_and_nothing_else_is_coerced():
    value = codec.decode(b"1", float)
    assert (value, type(value)) == (1.0, float)


WRONG = [
    (b'{"items":[]}', Order, r"required field missing @ \$\.id"),
    (b'{"id":"1","items":[]}', Order, r"expected int, not str @ \$\.id"),
    (b'{"id":1.0,"items":[]}', Order, r"expected int, not float @ \$\.id"),
    (b'{"id":true,"items":[]}', Order, r"expected int, not bool @ \$\.id"),
    (b'{"id":1,"items":[{"name":"a"},{"name":2}]}', Order, r"expected str, not int @ \$\.items\[1\]\.name"),
    (b'{"id":1,"items":[{"name":"a","cost":2}]}', Order, r"extra fields found \(cost\) @ \$\.items\[0\]"),
    (b'{"id":1,"items":["abc"]}', Order, r"expected object, not str @ \$\.items\[0\]"),
    (b'{"id":1,"items":"abc"}', Order, r"expected array, not str @ \$\.items"),
    (b'{"id":1,"items":{"a":1}}', Order, r"expected array, not object @ \$\.items"),
    (b'{"id":1,"items":null}', Order, r"expected array, not null @ \$\.items"),
    (b'{"id":1,"items":[],"tags":{"a":"b"}}', Order, r"expected int, not str @ \$\.tags\['a'\]"),
    (b'{"id":1,"items":[],"tags":[1]}', Order, r"expected object, not array @ \$\.tags"),
    (b'{"id":1,"items":[],"size":[1]}', Order, r"@ \$\.size"),
    (b'{"id":1,"items":[],"size":"12"}', Order, r"expected array, not str @ \$\.size"),
    (b'{"id":1,"items":[],"either":1.5}', Order, r"@ \$\.either"),
    (b'{"id":1,"items":[],"either":true}', Order, r"@ \$\.either"),
    (b'{"id":1,"items":[],"state":"mid"}', Order, r"@ \$\.state"),
    (b'{"id":1,"items":[],"more":1,"less":2}', Order, r"extra fields found \(less, more\) @ \$"),
    (b'{"value":1,"branches":[{"value":2,"branches":[3]}]}', Tree, r"not int @ \$\.branches\[0\]\.branches\[0\]"),
    (b'{"content":"x"}', Box[int], r"expected int, not str @ \$\.content"),
    (b"{}", Options, r"required field missing @ \$\.depth"),
    (b'{"depth":"x"}', Options, r"expected int, not str @ \$\.depth"),
    (b'{"depth":1,"deep":2}', Options, r"extra fields found \(deep\) @ \$"),
    (b"[1]", Options, "expected a mapping, not list"),
    (b"[]", Order, "expected object, not array"),
    (b"null", Order, "expected object, not null"),
    (b'"x"', Box[int], "expected object, not str"),
    (b'[1,"2"]', list[int], r"expected int, not str @ \$\[1\]"),
    (b'"ab"', list[str], "expected array, not str"),
    (b'"ab"', set[str], "expected array, not str"),
    (b'"ab"', tuple[str, ...], "expected array, not str"),
    (b"[]", dict, "expected object, not array"),
    (b'"blue"', Colour, "blue"),
    (b"1", None, "expected null, not int"),
    (b'"1"', int, "expected int, not str"),
    (b"1", object, "object cannot be read"),
    (b"10000000000000", bytes, "expected bytes, not int"),
    (b"[1]", bytes, "expected bytes, not array"),
    (b"{", Order, "JSON|line|column|expect"),
]


@pytest.mark.parametrize(("data", "declared", "says"), WRONG)
def test_a_wrong_shape_is_refused_by_its_path(data, declared, says):
    with pytest.raises((ValueError, TypeError), match=says):
        codec.decode(data, declared)


UNDECLARED = [({"id": 1}, Order), (None, Order), ("red", Colour), ([1], list[Item]), (cycle(), list), (object(), object)]
UNDECLARED += [(5, list[int]), (Item("a", math.nan), Item), ({1: 1}, dict)]


@pytest.mark.parametrize(("value", "declared"), UNDECLARED)
def test_a_value_that_is_not_what_is_declared_cannot_be_encoded(value, declared):
    with pytest.raises((ValueError, TypeError)):
        codec.encode(value, declared)


def test_the_declared_type_decides_what_is_written():
    @dataclass
    class Special(Item):
        secret: str = "s"

    assert b"secret" in codec.encode(Special("a"), Special)
    assert b"secret" not in codec.encode(Special("a"), Item)


def test_threads_that_meet_a_type_for_the_first_time_agree():
    for _ in range(5):
        fresh = JsonCodec()
        order = Order(1, [Item("a", 1.5)], {"t": 1})

        def both_ways(fresh=fresh, order=order):
            return fresh.decode(fresh.encode(order, Order), Order), fresh.decode(b'{"value":1,"branches":[]}', Tree)

        assert together(*[both_ways] * 4) == [(order, Tree(1, []))] * 4


# -- raw bytes ----------------------------------------------------------------------------------------------------------


def test_raw_bytes_are_as_they_are():
    raw = RawBytesCodec()
    data = b"\x00\xff"
    assert raw.encode(data, bytes) is data
    assert raw.decode(data, bytes) is data
    assert raw.decode(data, Any) is data
    assert raw.encode(b"", bytes) == b""
    for view in (bytearray(b"ab"), memoryview(b"xabx")[1:3]):
        encoded = raw.encode(view, type(view))
        assert (encoded, type(encoded)) == (b"ab", bytes)
    with pytest.raises(TypeError):
        raw.encode("text", str)
    with pytest.raises(TypeError, match="int"):
        raw.decode(data, int)


# -- which codec --------------------------------------------------------------------------------------------------------


class Marked(JsonCodec):
    def __init__(self, content_type: str) -> None:
        super().__init__()
        self.content_type = content_type


def test_json_is_taken_when_nothing_matches_and_raw_bytes_for_bytes():
    codecs = Codecs()
    for declared in (bytes, bytearray, memoryview):
        assert codecs.for_sending(declared).content_type == "application/octet-stream"
    for declared in (Order, Options, dict, str, Any, list[bytes], None):
        assert codecs.for_sending(declared).content_type == "application/json"


def test_the_last_registration_that_matches_the_declared_type_wins():
    codecs = Codecs()
    assert codecs.for_sending(Order).content_type == "application/json"  # and is cached
    first, second = Marked("x/first"), Marked("x/second")
    codecs.register(first, lambda declared: declared in (Order, Item))
    codecs.register(second, lambda declared: declared is Order)
    assert codecs.for_sending(Order) is second
    assert codecs.for_sending(Item) is first
    assert codecs.for_sending(Tree).content_type == "application/json"
    codecs.register(first, lambda declared: declared is bytes)  # the same codec again, for more
    assert codecs.for_sending(bytes) is first


def test_receiving_goes_by_the_exact_content_type():
    codecs = Codecs()
    marked = Marked("x/marked")
    codecs.register(marked, lambda declared: declared is Order)
    assert codecs.for_receiving("x/marked") is marked
    assert codecs.for_receiving("application/json").content_type == "application/json"
    for unknown in ("", "application/JSON", "application/json; charset=utf-8", "x/other"):
        with pytest.raises(ProtocolError, match="no codec for content type"):
            codecs.for_receiving(unknown)


def test_a_content_type_has_one_codec():
    codecs = Codecs()
    with pytest.raises(AlreadyExists, match="application/json"):
        codecs.register(Marked("application/json"), lambda declared: True)  # noqa: ARG005
    assert codecs.for_sending(Order).content_type == "application/json"
    assert type(codecs.for_sending(Order)) is JsonCodec


def test_choices_are_cached_up_to_a_bound():
    codecs = Codecs()
    asked: list[Any] = []
    codecs.register(Marked("x/marked"), lambda declared: bool(asked.append(declared)))
    kinds = [dataclasses.make_dataclass(f"Kind{n}", ["a"]) for n in range(1030)]
    for _ in range(2):
        for kind in kinds:
            codecs.for_sending(kind)
    assert len(codecs._chosen) == 1024
    assert len(asked) == 1030 + 6  # those past the bound are chosen again
