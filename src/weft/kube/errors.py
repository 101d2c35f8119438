"""Errors between Weft and the API server, distinguished by what the caller may conclude."""

import msgspec

from weft.files.reading import UNDECODABLE
from weft.kube.structs import ApiStatus
from weft.model import WeftError

_status = msgspec.json.Decoder(ApiStatus)
_MOST_SHOWN = 500


class ApiError(WeftError):
    """The API server answered with an error. `status` is the decoded answer.

    `retry_after_s` is the wait that the server asked for (0 for none).
    """

    def __init__(self, status: ApiStatus, what: str = "", retry_after_s: float = 0) -> None:
        text = status.message or status.reason or "no message"
        super().__init__(f"{what}: {status.code} {text}" if what else f"{status.code} {text}")
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def code(self) -> int:
        """HTTP status code."""
        return self.status.code

    @property
    def reason(self) -> str:
        """Kubernetes' reason: NotFound, Conflict, Expired …"""
        return self.status.reason


class ExpiredError(ApiError):
    """410: the requested version or page is no longer available; list the objects again."""


class NotFoundError(ApiError):
    """404: there is no such object."""


class ConflictError(ApiError):
    """409: a precondition failed, or the object exists already."""

    @property
    def is_another(self) -> bool:
        """True if an object of this name has another UID than the precondition's. The API server
        says so only in its message, in one of two texts."""
        return any(text in self.status.message for text in _OTHER_UID)


class UnauthorizedError(ApiError):
    """401: the API server does not accept the credentials."""


class NotSentError(WeftError):
    """No connection: the request was not sent, so nothing happened."""


class LostError(WeftError):
    """The request was sent and no answer came: it may have been carried out, or may yet be."""


class OversizedError(WeftError):
    """The answer is larger than the caller accepts; the remainder was not read."""


_OTHER_UID = ("the UID in the precondition (", "UID in precondition: ")
_BY_CODE = {401: UnauthorizedError, 404: NotFoundError, 409: ConflictError, 410: ExpiredError}


def api_error(code: int, body: bytes, what: str = "", retry_after: str = "") -> ApiError:
    """Return the error for an HTTP answer with this code; a body that is not a Status is quoted."""
    try:
        status = _status.decode(body)
    except UNDECODABLE:
        text = body[:_MOST_SHOWN].decode("utf-8", "replace").strip()
        status = ApiStatus(message=text)
    retry_after_s = float(retry_after) if retry_after.isdecimal() else 0.0
    if not retry_after_s and status.details is not None:
        retry_after_s = float(status.details.retry_after_seconds)
    return from_status(msgspec.structs.replace(status, code=code), what, retry_after_s)


def from_status(status: ApiStatus, what: str = "", retry_after_s: float = 0) -> ApiError:
    """Return the error for a Status, by its code."""
    return _BY_CODE.get(status.code, ApiError)(status, what, retry_after_s)
