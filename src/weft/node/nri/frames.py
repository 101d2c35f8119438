"""The bytes on the runtime's socket, and the calls and answers in them. Pure: no socket, no clock.

The multiplexer divides the socket into frames: 8 bytes (connection, length) and a payload. One
connection's payloads, concatenated, are a stream of ttrpc messages: 10 bytes (length, stream, type,
flags) and a body. All numbers are big-endian. A body is a `Request` or a `Response` of
`ttrpc.proto`.

[ 1 | 4096 ][..............] [ 2 | 31 ][ 21 | 1 | 2 | 0 ][ Response ] [ 1 | 77 ][......]

The runtime calls the plugin on connection 1, the plugin the runtime on 2.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from weft.model import WeftError

PLUGIN_CALLED, RUNTIME_CALLED = 1, 2
"""Connections: calls from the runtime to the plugin, and from the plugin to the runtime."""

REQUEST, RESPONSE = 1, 2
"""Types of messages; the third type, data streams, is not used by NRI."""

PLUGIN_SIDE = {PLUGIN_CALLED: REQUEST, RUNTIME_CALLED: RESPONSE}
RUNTIME_SIDE = {PLUGIN_CALLED: RESPONSE, RUNTIME_CALLED: REQUEST}
"""The type of message that either side receives on each connection."""

MOST_BODY_BYTES = 4 << 20
"""Largest size of a message's body: ttrpc's own limit."""

_FRAME = struct.Struct(">II")
_MESSAGE = struct.Struct(">IIBB")
_MOST_FRAME_BYTES = _MESSAGE.size + MOST_BODY_BYTES
_PIECE_BYTES = 4096
# The runtime reads a frame into a buffer of this size, and fails on a larger one. It also fails if
# more than 256 frames wait for its reader.
MOST_SENT_BYTES = 128 * _PIECE_BYTES


class BrokenFrameError(WeftError):
    """Received bytes are not valid NRI, so nothing after them can be read; or an answer is too
    large to be sent."""


class Message(NamedTuple):
    """One ttrpc message on a connection; the stream is the number of a call."""

    connection: int
    stream: int
    type: int
    body: bytes


class MessageReader:
    """Turns bytes into whole messages. `BrokenFrameError` if they cannot be messages.

    `expected` is the message type allowed on each connection.
    """

    def __init__(self, expected: Mapping[int, int]) -> None:
        self._expected = expected
        self._bytes = bytearray()
        self._streams = {connection: bytearray() for connection in expected}

    def feed(self, chunk: bytes) -> Iterator[Message]:
        """Yield the messages that these bytes complete."""
        self._bytes += chunk
        while len(self._bytes) >= _FRAME.size:
            connection, length = _FRAME.unpack_from(self._bytes)
            if length > _MOST_FRAME_BYTES:
                text = f"a frame has {length:,} bytes; at most {_MOST_FRAME_BYTES:,} are read"
                raise BrokenFrameError(text)
            end = _FRAME.size + length
            if len(self._bytes) < end:
                return
            payload = bytes(self._bytes[_FRAME.size : end])
            del self._bytes[:end]
            if connection in self._streams:  # other connections are of later NRI versions
                yield from self._messages(connection, payload)

    def _messages(self, connection: int, payload: bytes) -> Iterator[Message]:
        stream_bytes = self._streams[connection]
        stream_bytes += payload
        while len(stream_bytes) >= _MESSAGE.size:
            length, stream, kind, _ = _MESSAGE.unpack_from(stream_bytes)
            if length > MOST_BODY_BYTES:
                text = f"a message has {length:,} bytes; at most {MOST_BODY_BYTES:,} are read"
                raise BrokenFrameError(text)
            if kind != self._expected[connection]:
                text = f"a message on connection {connection} has type {kind}"
                raise BrokenFrameError(f"{text}, not {self._expected[connection]}")
            end = _MESSAGE.size + length
            if len(stream_bytes) < end:
                return
            body = bytes(stream_bytes[_MESSAGE.size : end])
            del stream_bytes[:end]
            yield Message(connection, stream, kind, body)


def encode(message: Message) -> bytes:
    """Encode a message in frames. `BrokenFrameError` if it is too large for the runtime."""
    header = _MESSAGE.pack(len(message.body), message.stream, message.type, 0)
    whole = header + message.body
    if len(whole) > MOST_SENT_BYTES:
        raise BrokenFrameError(
            f"an answer has {len(whole):,} bytes; the runtime reads at most {MOST_SENT_BYTES:,}"
        )
    pieces = (whole[at : at + _PIECE_BYTES] for at in range(0, len(whole), _PIECE_BYTES))
    return b"".join(_FRAME.pack(message.connection, len(p)) + p for p in pieces)
