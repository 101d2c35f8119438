"""One connection to the runtime: answers its calls and makes calls to it, until it ends."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from google.protobuf.message import DecodeError

from weft.model import WeftError
from weft.node.nri.frames import (
    PLUGIN_CALLED,
    PLUGIN_SIDE,
    REQUEST,
    RESPONSE,
    RUNTIME_CALLED,
    BrokenFrameError,
    Message,
    MessageReader,
    encode,
)
from weft.node.nri.ttrpc_pb2 import Request, Response, Status

log = logging.getLogger("weft.agent")

# gRPC's status codes, which ttrpc shares
UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED = 2, 3, 4, 8
UNIMPLEMENTED, INTERNAL = 12, 13

_CHUNK_BYTES = 1 << 16
_MOST_CALLS = 64
"""Most calls answered at the same time; usually a runtime makes one call after the other."""
_STREAM_STEP = 2  # a caller's stream numbers are odd
_LAST_ANSWERS_S = 1.0
_MOST_LETTERS = 1000


class CallError(WeftError):
    """A call failed. `code` is a gRPC status code, sent to the runtime together with the message if
    the runtime made the call."""

    def __init__(self, message: str, code: int = UNKNOWN) -> None:
        super().__init__(message)
        self.code = code


class Call(NamedTuple):
    """A call from the runtime, which waits `timeout_s` for the answer (0: no limit)."""

    service: str
    method: str
    payload: bytes
    timeout_s: float


class RuntimeConnection:
    """Exchanges ttrpc messages with the runtime over a socket. `answer` answers the runtime's
    calls; an exception becomes an error answer: a `CallError` with its code, any other as an
    internal error."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: Callable[[Call], Awaitable[bytes]],
    ) -> None:
        self._reader, self._writer, self._answer = reader, writer, answer
        self._messages = MessageReader(PLUGIN_SIDE)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._stream = 1

    async def run(self) -> None:
        """Read until the runtime closes the connection; `BrokenFrameError` or `OSError` if it ends
        otherwise.

        Afterwards no call is being answered, and the connection is closed.
        """
        why = "the connection ended"
        try:
            while chunk := await self._reader.read(_CHUNK_BYTES):
                for message in self._messages.feed(chunk):
                    self._take(message)
        except (OSError, BrokenFrameError) as error:
            why = str(error)
            raise
        finally:
            await self._close(why)

    async def call(self, service: str, method: str, payload: bytes, timeout_s: float) -> bytes:
        """Call the runtime and return its answer. `CallError` for an error or a timeout."""
        stream, self._stream = self._stream, self._stream + _STREAM_STEP
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[stream] = answer
        request = Request(
            service=service, method=method, payload=payload, timeout_nano=int(timeout_s * 1e9)
        )
        try:
            self._write(Message(RUNTIME_CALLED, stream, REQUEST, request.SerializeToString()))
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise CallError(f"{method}: no answer", DEADLINE_EXCEEDED) from None
        finally:
            del self._waiting[stream]

    def _take(self, message: Message) -> None:
        try:
            if message.connection == RUNTIME_CALLED:
                self._answered(message.stream, Response.FromString(message.body))
                return
            request = Request.FromString(message.body)
        except DecodeError as error:
            raise BrokenFrameError(f"a message cannot be decoded: {error}") from None
        if len(self._answering) >= _MOST_CALLS:
            self._refuse(message.stream, CallError("too many calls", RESOURCE_EXHAUSTED))
            return
        call = Call(request.service, request.method, request.payload, request.timeout_nano / 1e9)
        task = asyncio.create_task(self._serve(message.stream, call))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _serve(self, stream: int, call: Call) -> None:
        try:
            payload = await self._answer(call)
            body = Response(payload=payload).SerializeToString()
            self._write(Message(PLUGIN_CALLED, stream, RESPONSE, body))
        except CallError as error:
            self._refuse(stream, error)
        except BrokenFrameError as error:
            self._refuse(stream, CallError(str(error), RESOURCE_EXHAUSTED))
        except Exception as error:
            log.exception("answering the runtime's %s failed", call.method)
            self._refuse(stream, CallError(f"Weft failed: {type(error).__name__}", INTERNAL))

    def _refuse(self, stream: int, error: CallError) -> None:
        status = Status(code=error.code, message=str(error)[:_MOST_LETTERS])
        body = Response(status=status).SerializeToString()
        self._write(Message(PLUGIN_CALLED, stream, RESPONSE, body))

    def _answered(self, stream: int, response: Response) -> None:
        waiting = self._waiting.get(stream)
        if waiting is None or waiting.done():
            return  # it arrived after the timeout
        if response.status.code:
            waiting.set_exception(CallError(response.status.message, response.status.code))
        else:
            waiting.set_result(response.payload)

    def _write(self, message: Message) -> None:
        """Write without waiting: answers are small, and the runtime waits for each."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def _close(self, why: str) -> None:
        if self._answering:  # without an answer a runtime may start the container unchanged
            _, late = await asyncio.wait(self._answering, timeout=_LAST_ANSWERS_S)
            for task in late:
                task.cancel()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(CallError(why))
        self._writer.close()
