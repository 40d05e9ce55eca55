"""Composites from and to bytes, by the tables and by the short cuts around them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.wire import (
    ACCEPTED,
    Array,
    Attach,
    Described,
    EncodeError,
    Error,
    Map,
    Open,
    ProtocolError,
    ReceiverSettleMode,
    Rejected,
    Source,
    Symbol,
    TransactionalState,
    UByte,
    UInt,
    ULong,
    decode,
    encode,
)
from pairbus.wire.composites import LAYOUTS, AmqpType, Field, Layout, Provides, from_described, from_list
from pairbus.wire.decoder import MAX_DEPTH, decode_at, decode_list, skip
from pairbus.wire.errors import DecodeError, InvalidFieldError
from pairbus.wire.hotpath import (
    UNUSUAL,
    encode_state,
    read_disposition,
    read_transfer,
    read_whole_transfer,
    write_continuation,
    write_disposition,
    write_flow,
    write_transfer,
)
from pairbus.wire.performatives import Close, Detach, Disposition, End, Flow, Transfer
from tests.wire.values import BY_NAME, ONE_OF_EACH, UNKNOWN, composites, examples, identity, sparse_composites

FIELDS = [(layout.name, field.name) for layout in LAYOUTS.values() for field in layout.fields]
MANDATORY = [(layout.name, field.name) for layout in LAYOUTS.values() for field in layout.fields if field.mandatory]
MULTIPLE = [(layout.name, field.name) for layout in LAYOUTS.values() for field in layout.fields if field.multiple]


def smallest(layout: Layout) -> list[object]:
    """The list of a composite with nothing but its mandatory fields, and null for the others."""
    return [smallest_value(field) if field.mandatory else None for field in layout.fields]


def smallest_value(field: Field) -> object:
    assert isinstance(field.kind, AmqpType)
    decoded = next(iter(field.kind.decoded))
    return decoded()


def list_with(layout: Layout, field: str, value: object) -> list[object]:
    values = smallest(layout)
    values[[known.name for known in layout.fields].index(field)] = value
    return values


def field_of(layout: Layout, name: str) -> Field:
    return next(field for field in layout.fields if field.name == name)


# There and back.


@pytest.mark.parametrize("name", BY_NAME)
@examples(25)
@given(data=st.data())
def test_composite_round_trips(name: str, data: st.DataObject) -> None:
    layout = BY_NAME[name]
    for composite in (data.draw(composites(name)), data.draw(sparse_composites(name))):
        described = decode(encode(composite))
        assert isinstance(described, Described)
        assert identity(described.descriptor) == identity(ULong(layout.code))
        assert identity(from_described(described)) == identity(composite)
        assert identity(from_described(Described(Symbol(name), described.value))) == identity(composite)


@pytest.mark.parametrize("name", BY_NAME)
def test_minimal_composite_has_defaults(name: str) -> None:
    layout = BY_NAME[name]
    values = smallest(layout)
    made = from_list(layout, values)
    for field in layout.fields:
        if not field.mandatory:
            assert identity(getattr(made, field.attribute)) == identity(field.default)
    while values and values[-1] is None:
        values.pop()
        assert from_list(layout, values) == made
    described = decode(encode(made))
    assert isinstance(described, Described)
    assert isinstance(described.value, list)
    assert len(described.value) == (len(layout.fields) if layout.pad else len(values))
    assert from_described(described) == made


@pytest.mark.parametrize(
    ("holder", "error"),
    [
        (Error("amqp:not-found"), lambda value: value),
        (Close(error=Error("amqp:not-found")), lambda value: value.value[0]),
        (End(error=Error("amqp:not-found")), lambda value: value.value[0]),
        (Detach(handle=0, closed=True, error=Error("amqp:not-found")), lambda value: value.value[2]),
        (Rejected(Error("amqp:not-found")), lambda value: value.value[0]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_is_always_written_with_three_fields(holder: object, error: Callable[[Any], Any]) -> None:
    assert error(decode(encode(holder))) == Described(ULong(0x1D), [Symbol("amqp:not-found"), None, None])


def test_keys_of_fields_are_symbols() -> None:
    encoded = encode(Open(container_id="c", properties={"product": "pairbus", Symbol("version"): 1, b"tag": None}))
    made = from_described(decode(encoded))
    assert isinstance(made, Open)
    assert made.properties is not None
    assert [identity(key) for key in made.properties] == [
        identity(key) for key in (Symbol("product"), Symbol("version"), b"tag")
    ]


def test_only_known_descriptors_become_composites() -> None:
    others: list[object] = [None, 5, [], UNKNOWN]
    others += [Described(descriptor, []) for descriptor in (ULong(0x7F), 0x24, UInt(0x24), "amqp:accepted:list", None)]
    for value in others:
        assert from_described(value) is value


# Fields that are wrong.


@pytest.mark.parametrize(("name", "field"), MANDATORY)
def test_missing_mandatory_field_is_rejected(name: str, field: str) -> None:
    layout = BY_NAME[name]
    position = [known.name for known in layout.fields].index(field)
    from_list(layout, smallest(layout))
    for values in (list_with(layout, field, None), smallest(layout)[:position]):
        with pytest.raises(InvalidFieldError, match=name):
            from_list(layout, values)


def fits(field: Field, value: object) -> bool:
    """Return True if a field can hold one of ``ONE_OF_EACH``."""
    if not isinstance(field.kind, AmqpType):
        return value is UNKNOWN and isinstance(field.kind, Provides)
    if isinstance(field.kind.make, type) and issubclass(field.kind.make, Enum):
        return type(value) in field.kind.decoded and value in list(field.kind.make)
    return type(value) in field.kind.decoded


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_field_accepts_only_its_type(name: str, field: str) -> None:
    layout = BY_NAME[name]
    known = field_of(layout, field)
    for value in ONE_OF_EACH:
        if fits(known, value):
            from_list(layout, list_with(layout, field, value))
        else:
            with pytest.raises(InvalidFieldError, match=f"{field} cannot be"):
                from_list(layout, list_with(layout, field, value))


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_field_rejects_value_outside_choices(name: str, field: str) -> None:
    layout = BY_NAME[name]
    kind = field_of(layout, field).kind
    if isinstance(kind, AmqpType) and isinstance(kind.make, type) and issubclass(kind.make, Enum):
        (decoded,) = kind.decoded
        for member in kind.make:
            made = from_list(layout, list_with(layout, field, decoded(member.value)))
            assert getattr(made, field.replace("-", "_")) is member
        for value in ("", "no-choice") if decoded is Symbol else (9, 255):
            with pytest.raises(InvalidFieldError, match=f"{field} cannot be"):
                from_list(layout, list_with(layout, field, decoded(value)))


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_role_field_rejects_other_composites(name: str, field: str) -> None:
    layout = BY_NAME[name]
    kind = field_of(layout, field).kind
    if isinstance(kind, AmqpType):
        return
    for other in LAYOUTS.values():
        value = Described(ULong(other.code), smallest(other))
        suits = kind.role in other.provides if isinstance(kind, Provides) else other.composite is kind
        if suits:
            made = from_list(layout, list_with(layout, field, value))
            assert type(getattr(made, field.replace("-", "_"))) is other.composite
        else:
            with pytest.raises(InvalidFieldError, match=f"{field} cannot be"):
                from_list(layout, list_with(layout, field, value))


def test_nested_fault_is_found() -> None:
    with pytest.raises(InvalidFieldError, match="amqp:error:list lacks its mandatory field condition"):
        from_described(Described(ULong(0x18), [Described(ULong(0x1D), [])]))
    with pytest.raises(DecodeError, match="amqp:accepted:list has 1 fields"):
        from_described(Described(ULong(0x15), [True, UInt(0), None, None, Described(ULong(0x24), [None])]))


@pytest.mark.parametrize(("name", "field"), MULTIPLE)
def test_multiple_field_accepts_value_or_array(name: str, field: str) -> None:
    layout = BY_NAME[name]
    attribute = field.replace("-", "_")
    for value, expected in (
        (Symbol("a"), ("a",)),
        (Array((Symbol("a"),)), ("a",)),
        (Array((Symbol("a"), Symbol("b"))), ("a", "b")),
        (Array(()), ()),
    ):
        made = from_list(layout, list_with(layout, field, value))
        assert identity(getattr(made, attribute)) == identity(expected)
    for wrong in (Array(("a",)), Array((Symbol("a"), "b")), Array((None,)), [Symbol("a")], Array((Array(()),))):
        with pytest.raises(InvalidFieldError):
            from_list(layout, list_with(layout, field, wrong))


@pytest.mark.parametrize("name", BY_NAME)
def test_composite_with_too_many_fields_is_rejected(name: str) -> None:
    layout = BY_NAME[name]
    for more in ([None], [UInt(1)], [None] * 100):
        with pytest.raises(DecodeError, match=name):
            from_list(layout, smallest(layout) + more)


@pytest.mark.parametrize("name", BY_NAME)
def test_composite_that_is_not_a_list_is_rejected(name: str) -> None:
    others: list[object] = [None, {}, "list", b"", Array(()), Map(()), Described(ULong(BY_NAME[name].code), []), ()]
    for value in others:
        with pytest.raises(DecodeError, match=f"{name} is not a list"):
            from_described(Described(ULong(BY_NAME[name].code), value))


@pytest.mark.parametrize("state", [UNKNOWN, Described(ULong(0x1234567890), {}), Described(ULong(0x23FF), None)])
def test_unknown_delivery_state_stays_described(state: Described) -> None:
    for performative in (Transfer(handle=0, state=state), Disposition(role=True, first=0, state=state)):
        made = from_described(decode(encode(performative)))
        assert identity(made) == identity(performative)


@pytest.mark.parametrize(
    "composite",
    [
        Open(container_id="\ud800"),
        Open(container_id="c", channel_max=65536),
        Open(container_id="c", max_frame_size=-1),
        Open(container_id="c", offered_capabilities=("é",)),
        Open(container_id="c", properties={"é": 1}),
        Open(container_id="c", properties={"a": object()}),
        Transfer(handle=2**32),
        Attach(name="n", handle=0, role=True, max_message_size=2**64),
        Source(distribution_mode="é"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_composite_with_unencodable_value_is_rejected(composite: object) -> None:
    with pytest.raises(EncodeError):
        encode(composite)
    with pytest.raises(EncodeError):
        encode([composite])


@pytest.mark.parametrize("depth", range(MAX_DEPTH - 6, MAX_DEPTH + 2))
def test_composite_too_deep_to_decode_is_not_encoded(depth: int) -> None:
    value: object = None
    for _ in range(depth):
        value = [value]
    composite = Open(container_id="c", properties={"deep": value})
    try:
        encoded = encode(composite)
    except EncodeError:
        return
    assert from_described(decode(encoded)) == composite


@pytest.mark.parametrize("depth", [MAX_DEPTH, 2000])
def test_self_containing_composite_is_not_encoded(depth: int) -> None:
    state: object = ACCEPTED
    for _ in range(depth):
        state = TransactionalState(txn_id=b"1", outcome=state)
    with pytest.raises(EncodeError):
        encode(state)


# The short cuts: transfer and disposition.

TRANSFER = LAYOUTS[Transfer]
DISPOSITION = LAYOUTS[Disposition]

Reader = Callable[[bytes, int], tuple[object, int]]


def read_transfer_by_short_cut(frame: bytes, position: int) -> tuple[object, int]:
    """Read a transfer as a session does."""
    handle, delivery_id, tag, message_format, settled, start = read_whole_transfer(frame, position)
    if handle == UNUSUAL:
        return read_transfer(frame, position)
    return Transfer(handle, delivery_id, tag, message_format, settled), start


def read_transfer_by_table(frame: bytes, position: int) -> tuple[object, int]:
    return from_list(TRANSFER, decode_list(frame, position)), skip(frame, position)


def read_disposition_by_short_cut(frame: bytes, position: int) -> tuple[object, int]:
    return read_disposition(frame, position), len(frame)


def read_disposition_by_table(frame: bytes, position: int) -> tuple[object, int]:
    disposition = from_list(DISPOSITION, decode_list(frame, position))
    if skip(frame, position) != len(frame):
        raise DecodeError("nothing may follow a disposition")
    return disposition, len(frame)


READERS: dict[str, tuple[Reader, Reader]] = {
    TRANSFER.name: (read_transfer_by_short_cut, read_transfer_by_table),
    DISPOSITION.name: (read_disposition_by_short_cut, read_disposition_by_table),
}
"""For each performative, how it is read by the short cut, and how by the tables."""


def outcome_of(reader: Reader, frame: bytes, position: int) -> object:
    """Return the result of a reader, or the class of its error."""
    try:
        return identity(reader(frame, position))
    except ProtocolError as error:
        return type(error)


def read_alike(name: str, frame: bytes, position: int) -> bool:
    short_cut, by_table = READERS[name]
    return outcome_of(short_cut, frame, position) == outcome_of(by_table, frame, position)


def encodings_of(value: object, field: Field) -> list[bytes]:
    """All the ways to write the value of a field."""
    if value is None:
        return [b"\x40"]
    if isinstance(value, bool):
        forms = [b"\x41" if value else b"\x42", b"\x56" + bytes((value,))]
    elif isinstance(value, bytes):
        forms = [b"\xa0" + bytes((len(value),)) + value, b"\xb0" + len(value).to_bytes(4) + value]
    elif value == ACCEPTED:
        symbol = encode(Symbol("amqp:accepted:list"))
        descriptors = [b"\x00\x53\x24", b"\x00\x80" + (0x24).to_bytes(8), b"\x00" + symbol]
        forms = [descriptor + fields for descriptor in descriptors for fields in (b"\x45", b"\xc0\x01\x00")]
    elif isinstance(value, int) and isinstance(field.kind, AmqpType) and field.kind.name == "uint":
        forms = [b"\x70" + value.to_bytes(4)]
        if value < 256:
            forms.append(bytes((0x52, value)))
        if value == 0:
            forms.append(b"\x43")
    else:
        forms = [encode(UByte(value)) if isinstance(value, ReceiverSettleMode) else encode(value)]
    if value == field.default and not field.mandatory:
        forms.append(b"\x40")
    return forms


@st.composite
def written(draw: st.DrawFn, name: str) -> bytes:
    """The list of a performative, in any of its encodings."""
    layout = BY_NAME[name]
    composite = draw(st.one_of(composites(name), sparse_composites(name)))
    if draw(st.booleans()):
        composite = composite._replace(state=draw(st.sampled_from([None, ACCEPTED])))
    parts = [draw(st.sampled_from(encodings_of(getattr(composite, field.attribute), field))) for field in layout.fields]
    while parts[-1] == b"\x40" and draw(st.booleans()):
        parts.pop()
    body = b"".join(parts)
    if len(body) < 255 and draw(st.integers(0, 3)):
        return b"\xc0" + bytes((len(body) + 1, len(parts))) + body
    return b"\xd0" + (len(body) + 4).to_bytes(4) + len(parts).to_bytes(4) + body


@pytest.mark.parametrize("name", READERS)
@examples(300)
@given(data=st.data(), before=st.binary(max_size=4), payload=st.binary(max_size=12))
def test_fast_path_equals_tables(name: str, data: st.DataObject, before: bytes, payload: bytes) -> None:
    frame = before + data.draw(written(name))
    assert isinstance(outcome_of(READERS[name][0], frame, len(before)), tuple)
    assert read_alike(name, frame, len(before))
    assert read_alike(name, frame + payload, len(before))


@pytest.mark.parametrize("name", READERS)
@examples(60)
@given(data=st.data(), payload=st.binary(max_size=12))
def test_fast_path_rejects_truncated_bytes_as_tables_do(name: str, data: st.DataObject, payload: bytes) -> None:
    performative = data.draw(written(name))
    for end in range(len(performative)):
        assert outcome_of(READERS[name][0], performative[:end], 0) is DecodeError
        assert read_alike(name, performative[:end] + payload, 0)


@pytest.mark.parametrize("name", READERS)
@examples(500)
@given(data=st.data(), payload=st.binary(max_size=12))
def test_fast_path_reads_corrupted_bytes_as_tables_do(name: str, data: st.DataObject, payload: bytes) -> None:
    frame = bytearray(data.draw(written(name)) + payload)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(frame) - 1))
        frame[position] = data.draw(st.one_of(st.integers(0x40, 0x56), st.integers(0, 255)))
    assert read_alike(name, bytes(frame), 0)


def transfer(octets: str) -> tuple[str, bytes]:
    return TRANSFER.name, b"\x00\x53\x14" + bytes.fromhex(octets)


def disposition(octets: str) -> tuple[str, bytes]:
    return DISPOSITION.name, b"\x00\x53\x15" + bytes.fromhex(octets)


USUAL = {
    "transfer": (TRANSFER.name, write_transfer(0, 1, b"tag", 0, False, False, None)),
    "settled transfer": (TRANSFER.name, write_transfer(300, 2**32 - 1, b"", 1, True, False, None)),
    "transfer with all its fields": transfer("c0 0f 0b 43 5201 a00174 43 42 42 40 40 42 42 42"),
    "transfer with null for most of its fields": transfer("c0 0f 0b 43 5201 a00174 43 41 40 40 40 40 40 40"),
    "transfer with few fields": transfer("c0 09 05 43 5201 a00174 43 41"),
    "disposition": (DISPOSITION.name, write_disposition(True, 1, 1, True, encode_state(ACCEPTED))),
    "disposition for a range": (DISPOSITION.name, write_disposition(False, 0, 300, False, encode_state(ACCEPTED))),
    "disposition with all its fields": disposition("c0 0c 06 41 5201 5202 41 00532445 42"),
}
"""Performatives for which the short cuts are made."""

UNUSUAL_ONES = {
    "first of several transfers": (TRANSFER.name, write_transfer(0, 1, b"tag", 0, False, True, None)),
    "continuation": (TRANSFER.name, write_continuation(5, True)),
    "last continuation": (TRANSFER.name, write_continuation(5, False)),
    "transfer with a state": (TRANSFER.name, write_transfer(0, 1, b"t", 0, False, False, ACCEPTED)),
    "transfer without a format": transfer("c0 09 05 43 5201 a00174 40 41"),
    "transfer with a long boolean": transfer("c0 0a 05 43 5201 a00174 43 5601"),
    "transfer in a long list": transfer("d0 0000000c 00000005 43 5201 a00174 43 41"),
    "transfer that is aborted": transfer("c0 0e 0a 43 5201 a00174 43 42 42 40 40 42 41"),
    "disposition with another state": (DISPOSITION.name, write_disposition(True, 1, 2, True, encode(Rejected()))),
    "disposition without a state": disposition("c0 04 02 41 5201"),
}
"""Performatives that are read by the tables."""


@pytest.mark.parametrize("case", USUAL)
def test_fast_path_reads_every_single_byte_change_as_tables_do(case: str) -> None:
    name, encoded = USUAL[case]
    different = []
    for payload in (b"", b"\x00\x53\x75\xa0\x01p", b"\x42\x40\x41\x42\x52\x01\x45\x45"):
        for position, octet in itertools.product(range(3, len(encoded)), range(256)):
            frame = encoded[:position] + bytes((octet,)) + encoded[position + 1 :] + payload
            if not read_alike(name, frame, 3):
                different.append(frame.hex(" "))
    assert different == []


@pytest.mark.parametrize("case", USUAL | UNUSUAL_ONES)
def test_complete_plain_transfer_takes_fast_path(case: str) -> None:
    name, encoded = (USUAL | UNUSUAL_ONES)[case]
    frame = encoded
    assert read_alike(name, frame, 3)
    assert isinstance(outcome_of(READERS[name][0], frame, 3), tuple)
    if name == TRANSFER.name:
        assert (read_whole_transfer(frame, 3)[0] != UNUSUAL) == (case in USUAL)


NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1))


@examples(150)
@given(NUMBERS, NUMBERS, st.binary(max_size=32), NUMBERS, st.booleans(), st.booleans(), composites(TRANSFER.name))
def test_transfer_round_trips(
    handle: int, delivery_id: int, tag: bytes, message_format: int, settled: bool, more: bool, other: Transfer
) -> None:
    for state in (None, ACCEPTED, other.state):
        encoded = write_transfer(handle, delivery_id, tag, message_format, settled, more, state)
        expected = Transfer(handle, delivery_id, tag, message_format, settled, more, state=state)
        assert identity(from_described(decode(encoded))) == identity(expected)
        assert identity(read_transfer(encoded + b"payload", 3)) == identity((expected, len(encoded)))
    assert from_described(decode(write_continuation(handle, more))) == Transfer(handle, more=more)


@examples(150)
@given(st.booleans(), NUMBERS, NUMBERS, st.booleans(), composites(DISPOSITION.name))
def test_disposition_round_trips(role: bool, first: int, last: int, settled: bool, other: Disposition) -> None:
    for state in (ACCEPTED, other.state):
        encoded = write_disposition(role, first, last, settled, encode_state(state))
        expected = Disposition(role, first, None if first == last else last, settled, state)
        assert identity(from_described(decode(encoded))) == identity(expected)
        assert identity(read_disposition(encoded, 3)) == identity(expected)


@pytest.mark.parametrize("name", READERS)
def test_fast_path_reads_unusual_descriptor(name: str) -> None:
    layout = BY_NAME[name]
    fields = encode(smallest(layout))
    for descriptor in (
        encode(Symbol(name)),
        b"\x80" + layout.code.to_bytes(8),
        b"\xb3" + len(name).to_bytes(4) + name.encode(),
    ):
        frame = b"\x00" + descriptor + fields
        position = decode_at(frame, 1)[1]
        assert identity(READERS[name][0](frame, position)[0]) == identity(from_described(decode(frame)))


UINTS = st.integers(0, 2**32 - 1)


@examples(200)
@given(
    next_incoming_id=st.none() | UINTS,
    numbers=st.tuples(UINTS, UINTS, UINTS),
    link_state=st.none() | st.tuples(UINTS, st.none() | UINTS, UINTS, st.none() | UINTS, st.booleans()),
    echo=st.booleans(),
)
def test_flow_is_written_as_by_tables(
    next_incoming_id: int | None,
    numbers: tuple[int, int, int],
    link_state: tuple[int, int | None, int, int | None, bool] | None,
    echo: bool,
) -> None:
    written = decode(write_flow(next_incoming_id, *numbers, link_state, echo))
    handle, delivery_count, link_credit, available, drain = link_state or (None, None, None, None, False)
    assert from_described(written) == Flow(
        next_incoming_id=next_incoming_id,
        incoming_window=numbers[0],
        next_outgoing_id=numbers[1],
        outgoing_window=numbers[2],
        handle=handle,
        delivery_count=delivery_count,
        link_credit=link_credit,
        available=available,
        drain=drain,
        echo=echo,
    )
