"""Errors between Weft and the API server, told apart by what they let one conclude."""

import msgspec

from weft.files.reading import UNDECODABLE
from weft.kube.structs import ApiStatus
from weft.model import WeftError

_status = msgspec.json.Decoder(ApiStatus)
_MOST_SHOWN = 500


class ApiError(WeftError):
    """The API server answered, and it was no success. `status` is its answer, decoded.

    `retry_after_s` is what the server asked for (0 if it asked for nothing).
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
        """The API's word for it: NotFound, Conflict, Expired …"""
        return self.status.reason


class ExpiredError(ApiError):
    """410: the version or the page asked for is gone; list again."""


class NotFoundError(ApiError):
    """404."""


class ConflictError(ApiError):
    """409: a precondition failed, or the object exists already."""

    @property
    def is_another(self) -> bool:
        """True if an object of this name has another UID than the one that was asked for: the API
        server says so in words alone, and in other ones where it finds it later."""
        return any(text in self.status.message for text in _OTHER_UID)


class UnauthorizedError(ApiError):
    """401: the API server does not know who asks."""


class NotSentError(WeftError):
    """No connection: the request never left, so nothing happened."""


class LostError(WeftError):
    """The request left and no answer came: it may have been carried out, or may yet be."""


class OversizedError(WeftError):
    """The answer is larger than the caller accepts; the rest of it was not read."""


_OTHER_UID = ("the UID in the precondition (", "UID in precondition: ")
_BY_CODE = {401: UnauthorizedError, 404: NotFoundError, 409: ConflictError, 410: ExpiredError}


def api_error(code: int, body: bytes, what: str = "", retry_after: str = "") -> ApiError:
    """Return the error for this answer; bodies that are no Status are quoted."""
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
