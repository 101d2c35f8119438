"""NRI's bytes: as containerd writes them, cut anywhere, and never more than there is room for."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many

from weft.node.nri.frames import (
    MOST_BODY_BYTES,
    MOST_SENT_BYTES,
    PLUGIN_CALLED,
    PLUGIN_SIDE,
    REQUEST,
    RESPONSE,
    RUNTIME_CALLED,
    RUNTIME_SIDE,
    BrokenFrameError,
    Message,
    MessageReader,
    encode,
)

CHUNKS = st.lists(st.integers(1, 5000), max_size=30)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    chunks = []
    for size in sizes:
        chunks.append(data[:size])
        data = data[size:]
    return [*chunks, data]


def test_a_message_is_what_the_protocol_says() -> None:
    """By hand: connection 2, then length, stream, type, flags; all big-endian."""
    wire = bytes.fromhex("00000002 0000000d 00000003 00000007 01 00 616263".replace(" ", ""))
    assert encode(Message(RUNTIME_CALLED, 7, REQUEST, b"abc")) == wire
    assert list(MessageReader(RUNTIME_SIDE).feed(wire)) == [
        Message(RUNTIME_CALLED, 7, REQUEST, b"abc")
    ]


@settings(max_examples=few_or_many(40, 1000))
@given(
    st.lists(
        st.tuples(st.integers(1, 2**32 - 1), st.binary(max_size=9000), st.booleans()), max_size=6
    ),
    CHUNKS,
)
def test_messages_come_out_as_they_went_in_however_they_are_cut(
    sent: list[tuple[int, bytes, bool]], sizes: list[int]
) -> None:
    messages = [
        Message(PLUGIN_CALLED, stream, REQUEST, body)
        if asks
        else Message(RUNTIME_CALLED, stream, RESPONSE, body)
        for stream, body, asks in sent
    ]
    reader = MessageReader(PLUGIN_SIDE)
    wire = b"".join(map(encode, messages))
    assert [m for chunk in cut(wire, sizes) for m in reader.feed(chunk)] == messages


@settings(max_examples=few_or_many(100, 3000))
@given(st.binary(max_size=200), CHUNKS)
def test_garbage_is_an_error_or_waits_for_more(data: bytes, sizes: list[int]) -> None:
    reader = MessageReader(PLUGIN_SIDE)
    with suppress(BrokenFrameError):
        for chunk in cut(data, sizes):
            for message in reader.feed(chunk):
                assert PLUGIN_SIDE[message.connection] == message.type


def test_no_frame_is_larger_than_the_runtime_reads() -> None:
    wire = encode(Message(PLUGIN_CALLED, 1, RESPONSE, bytes(10_000)))
    lengths, at = [], 0
    while at < len(wire):
        lengths.append(int.from_bytes(wire[at + 4 : at + 8], "big"))
        at += 8 + lengths[-1]
    assert lengths == [4096, 4096, 1818]
    with pytest.raises(BrokenFrameError, match="the runtime reads at most"):
        encode(Message(PLUGIN_CALLED, 1, RESPONSE, bytes(MOST_SENT_BYTES)))


@pytest.mark.parametrize(
    ("wire", "why"),
    [
        ("00000001 00500000", "a frame has 5,242,880 bytes"),
        ("00000001 0000000a 00400001 00000001 0100", "a message has 4,194,305 bytes"),
        ("00000001 0000000a 00000000 00000001 0300", "on connection 1 has type 3, not 1"),
        ("00000002 0000000a 00000000 00000001 0100", "on connection 2 has type 1, not 2"),
    ],
)
def test_what_cannot_be_is_refused_before_it_is_kept(wire: str, why: str) -> None:
    with pytest.raises(BrokenFrameError, match=why):
        list(MessageReader(PLUGIN_SIDE).feed(bytes.fromhex(wire.replace(" ", ""))))


def test_other_connections_are_skipped() -> None:
    """They are reserved for later versions of NRI."""
    other = bytes.fromhex("00000007 00000003 ffffff".replace(" ", ""))
    reader = MessageReader(PLUGIN_SIDE)
    message = Message(PLUGIN_CALLED, 1, REQUEST, bytes(MOST_BODY_BYTES // 1000))
    assert list(reader.feed(other + encode(message) + other)) == [message]
