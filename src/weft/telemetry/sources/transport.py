"""Sends requests to a metrics server over HTTP, with the configured credentials.

Every answer is limited in time and size, and every failure is a `TelemetryError`.
"""

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import aiohttp
import msgspec

from weft.kube.client import Credentials, FixedCredentials, PasswordFile, TokenFile, read_body
from weft.kube.clock import SystemClock
from weft.kube.errors import OversizedError
from weft.kube.tls import client_tls, load_certificate
from weft.model import BadInputError
from weft.model.url_text import shown_url
from weft.telemetry.meaning.answers import TelemetryError, shown

MIB = 1 << 20
_MOST_SHOWN = 500


class ServerCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials, and the certificate authority to trust. Files are PEM, except the password and
    the token.

    `headers` are sent with every request. `verify`: whether the server's certificate is
    verified."""

    username: str = ""
    password_file: str = ""
    bearer_token_file: str = ""
    authority_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    verify: bool = True
    headers: dict[str, str] = {}

    def credentials(self) -> Credentials:
        """Return the source of the Authorization header; a file with a token or password is read
        again when it is replaced."""
        if self.bearer_token_file:
            path, where = Path(self.bearer_token_file), "telemetry.bearerTokenFile"
            return TokenFile(path, SystemClock(), where)
        if self.username:
            path, where = Path(self.password_file), "telemetry.passwordFile"
            return PasswordFile(path, SystemClock(), where, self.username)
        return FixedCredentials()

    def tls(self) -> ssl.SSLContext:
        """Return the TLS settings; `BadInputError` names a file that is missing or wrong."""
        authority = _file(self.authority_file, "telemetry.authorityFile")
        context = client_tls(authority, "telemetry.authorityFile", verify=self.verify)
        if self.certificate_file:
            certificate = _file(self.certificate_file, "telemetry.certificateFile")
            key = _file(self.key_file, "telemetry.keyFile")
            load_certificate(context, certificate, key, "telemetry.certificateFile")
        return context


class ResponseLimits(NamedTuple):
    """Time and size limits of one answer."""

    timeout_s: float = 10.0
    most_mib: int = 256


NOBODY, USUAL = ServerCredentials(), ResponseLimits()
"""No credentials; the usual limits of one answer."""


class Transport(Protocol):
    """Sends queries to one server. Raises only `TelemetryError`."""

    async def request(self, path: str, form: Mapping[str, str]) -> tuple[int, bytes]:
        """Return HTTP status and body of the answer to `form`, at `path` below the server's
        address."""
        ...

    def refused(self) -> None:
        """Note that the server answered 401, so that credentials are read again."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class Direct:
    """A `Transport` to a server that is directly reachable; queries are sent by POST."""

    def __init__(self, url: str, access: ServerCredentials, limits: ResponseLimits = USUAL) -> None:
        """Raises `BadInputError` naming a file that is missing or wrong. `url` must not end with a
        slash."""
        self._url, self._limits, self._extra = url, limits, access.headers
        self._credentials = access.credentials()
        self._tls = True if url.startswith("http://") else access.tls()
        self._session: aiohttp.ClientSession | None = None

    async def request(self, path: str, form: Mapping[str, str]) -> tuple[int, bytes]:
        """Send a query by POST, as it may be longer than a URL allows."""
        return await self._send("POST", self._url + path, form)

    async def get(self, url: str) -> tuple[int, bytes]:
        """Return HTTP status and body of the page at this URL."""
        return await self._send("GET", url, None)

    def refused(self) -> None:
        """Read the credentials again before the next request."""
        self._credentials.refused()

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _send(
        self, method: str, url: str, form: Mapping[str, str] | None
    ) -> tuple[int, bytes]:
        limits, where = self._limits, shown_url(url)
        try:
            header = await self._credentials.authorization()
            headers = {**self._extra, **({"Authorization": header} if header else {})}
            async with (
                asyncio.timeout(limits.timeout_s),
                self._open().request(
                    method, url, data=form, headers=headers, allow_redirects=False
                ) as answer,
            ):
                return answer.status, await read_body(answer, limits.most_mib * MIB)
        except OversizedError as error:
            raise oversized(where, limits.most_mib) from error
        except TimeoutError as error:
            text = f"{where}: no answer in {limits.timeout_s:g} s"
            raise TelemetryError("timeout", text) from error
        except (aiohttp.ClientError, OSError, BadInputError) as error:
            text = f"{where}: {shown(shown_url(str(error)), _MOST_SHOWN) or type(error).__name__}"
            raise TelemetryError("unreachable", text) from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            limits = aiohttp.ClientTimeout(total=None, sock_connect=self._limits.timeout_s)
            self._session = aiohttp.ClientSession(
                timeout=limits, connector=aiohttp.TCPConnector(ssl=self._tls)
            )
        return self._session


def oversized(where: str, most_mib: int) -> TelemetryError:
    """Return the error for an answer larger than allowed."""
    return TelemetryError("oversized", f"{where}: the answer has more than {most_mib} MiB")


def _file(path: str, where: str) -> bytes:
    if not path:
        return b""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadInputError(where, f"cannot read {path}: {error.strerror}") from error
