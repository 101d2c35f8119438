"""Decodes a metrics server's answers into arrays. Pure: bytes in, arrays out.

    {"status": "success", "data": {"resultType": "matrix", "result": [
        {"metric": {…labels…}, "values": [[seconds, "value"], …]}, …]}}

The labels of each series are kept as the bytes received: they identify the series, and are only
parsed when a series is seen for the first time (`join`). Numbers never become Python objects.
"""

import re
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from weft.model import WeftError

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_DROP = b'[]" \n\r\t'
_MOST_SHOWN, _MOST_WARNINGS = 200, 10


class TelemetryError(WeftError):
    """Metrics could not be read. `kind` is one of KINDS; the text says what, where and why."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


KINDS = ("nobody", "unreachable", "timeout", "refused", "status", "garbage", "oversized")
"""nobody: no server or exporter was found; unreachable: no connection; timeout: no answer in time;
refused: 401 or 403; status: another HTTP or API error; garbage: not a valid answer; oversized:
larger than allowed."""


class QueryResult(NamedTuple):
    """Samples of S series. Of `times` and `values`, the first `counts[0]` entries belong to series
    0, the next `counts[1]` to series 1, and so on.

    `labels` are JSON objects as received, with `__name__`. `times` are seconds since 1970.
    `warnings` are the server's own, for example about partial answers."""

    labels: list[bytes]
    counts: Counts
    times: Floats
    values: Floats
    warnings: tuple[str, ...] = ()


class _Series(msgspec.Struct, gc=False):
    metric: msgspec.Raw
    values: msgspec.Raw = msgspec.Raw(b"")
    value: msgspec.Raw = msgspec.Raw(b"")


class _Data(msgspec.Struct, rename={"kind": "resultType"}, gc=False):
    kind: str
    result: list[_Series]


class _Response(msgspec.Struct, rename={"kind": "errorType"}, gc=False):
    status: str
    data: _Data | None = None
    error: str = ""
    kind: str = ""
    warnings: tuple[str, ...] = ()


def shown(text: str | bytes, most: int = _MOST_SHOWN) -> str:
    """Return text from outside Weft for a log or a terminal: cut to `most` characters, unprintable
    characters escaped."""
    if isinstance(text, bytes):
        text = text[: 4 * most].decode("utf-8", "replace")
    cut = text[:most].strip()
    if not cut.isprintable():
        cut = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)
    return cut[:most]


_response = msgspec.json.Decoder(_Response)
_labels = msgspec.json.Decoder(dict[str, str])
_ESCAPED = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def labels_of(text: bytes) -> dict[str, str]:
    """Return a series' labels; empty if they cannot be read."""
    try:
        return _labels.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def readable(body: bytes) -> bytes:
    """Return the body with U+FFFD for every byte that is not UTF-8 and every escape of half a
    surrogate pair: labels may come from any user, and one bad label must not cost the whole
    answer."""
    if not body.isascii():
        body = body.decode("utf-8", "replace").encode()
    if _SURROGATE.search(body) is None:
        return body
    return _ESCAPED.sub(lambda match: rb"\ufffd" if match[1] else match[0], body)


def decode(body: bytes, where: str) -> QueryResult:
    """Return the answer of /api/v1/query or /query_range; `TelemetryError` says what is wrong with
    it."""
    try:
        response = _response.decode(readable(body))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = f"{shown(str(error))}: {shown(body)}"
        raise TelemetryError("garbage", f"{where}: not an answer to a query: {reason}") from None
    except RecursionError:
        reason = f"nested too deeply: {shown(body)}"
        raise TelemetryError("garbage", f"{where}: not an answer to a query: {reason}") from None
    if response.status != "success" or response.data is None:
        raise TelemetryError(
            "status", f"{where}: {shown(response.kind)}: {shown(response.error or response.status)}"
        )
    if response.data.kind not in {"matrix", "vector"}:
        raise TelemetryError(
            "garbage", f"{where}: the answer is a {shown(response.data.kind)}, not a list of series"
        )
    series = response.data.result
    texts = [bytes(item.values or item.value) for item in series]
    if any(text[:1] not in {b"[", b""} for text in texts):
        raise TelemetryError("garbage", f"{where}: the samples of a series are not a list")
    samples, counts = _numbers(texts, response.data.kind == "matrix", where)
    warnings = tuple(shown(warning) for warning in response.warnings[:_MOST_WARNINGS])
    labels = [bytes(item.metric) for item in series]
    return QueryResult(labels, counts, samples[0::2], samples[1::2], warnings)


def _numbers(texts: list[bytes], nested: bool, where: str) -> tuple[Floats, Counts]:
    """Return the numbers of all series in one array (time, value, time …), and each series' number
    of samples."""
    brackets = 1 if nested else 0
    counts = np.fromiter((text.count(b"[") - brackets for text in texts), np.int64, len(texts))
    numbers = b",".join(
        text for text, count in zip(texts, counts.tolist(), strict=True) if count > 0
    )
    plain = numbers.translate(None, _DROP)
    try:
        samples = np.fromstring(plain, dtype=np.float64, sep=",")
    except ValueError:
        samples = np.zeros(0)
    if len(samples) != 2 * int(counts.clip(0).sum()):
        raise TelemetryError("garbage", f"{where}: samples are not pairs of numbers")
    return samples, counts.clip(0)
