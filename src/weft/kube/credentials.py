"""Credentials: how a kubeconfig or a pod authenticates at the API server."""

import asyncio
import base64
import datetime
import os
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from weft.files.reading import UNDECODABLE
from weft.kube.clock import Clock
from weft.kube.tls import load_certificate
from weft.model import BadInputError

# A service account's token is replaced on disk long before it ends; client-go looks as often.
REREAD_S = 60.0
# A token is not used in its last seconds: the request must arrive before it ends.
SPARE_S = 30.0
EXEC_LIMIT_S = 60.0


class Credentials(Protocol):
    """Supplies the Authorization header; called before every request, so it must be cheap."""

    async def authorization(self) -> str:
        """Return the header's value; "" for none (a client certificate, or no authentication)."""
        ...

    def refused(self) -> None:
        """Note that the server answered 401: these credentials must not be offered again."""
        ...


class FixedCredentials:
    """A token, or user and password, that never changes."""

    def __init__(self, header: str = "") -> None:
        self._header = header

    @classmethod
    def bearer(cls, token: str) -> "FixedCredentials":
        """Return a bearer token."""
        return cls(f"Bearer {token}")

    @classmethod
    def basic(cls, username: str, password: str) -> "FixedCredentials":
        """Return credentials with HTTP's basic authentication."""
        return cls(basic(username, password))

    async def authorization(self) -> str:
        """Return the header, which never changes."""
        return self._header

    def refused(self) -> None:
        """Do nothing: there are no other credentials to try."""


def basic(username: str, password: str) -> str:
    """Return the header of HTTP's basic authentication."""
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


class TokenFile:
    """A bearer token in a file that another process renews (a pod's service account)."""

    _what = "token"

    def __init__(self, path: Path, clock: Clock, where: str) -> None:
        self._path = path
        self._clock = clock
        self._where = where
        self._header = ""
        self._read_at = 0.0
        self._read()

    async def authorization(self) -> str:
        """Return the token, reread at most every `REREAD_S` seconds."""
        if not self._header or self._clock.monotonic() - self._read_at >= REREAD_S:
            self._read()
        return self._header

    def refused(self) -> None:
        """Read the file again before the next request."""
        self._read_at = self._clock.monotonic() - REREAD_S

    def _read(self) -> None:
        self._read_at = self._clock.monotonic()
        try:
            text = self._path.read_text().strip()
        except OSError as error:
            if self._header:  # the file is being replaced: the old token still holds
                return
            why = f"cannot read the {self._what} in {self._path}: {error.strerror}"
            raise BadInputError(self._where, why) from error
        if text:
            self._header = self._header_of(text)
        elif not self._header:
            raise BadInputError(self._where, f"the {self._what} file {self._path} is empty")

    def _header_of(self, text: str) -> str:
        return f"Bearer {text}"


class PasswordFile(TokenFile):
    """A user's password in a file that may be replaced (a mounted Secret)."""

    _what = "password"

    def __init__(self, path: Path, clock: Clock, where: str, username: str) -> None:
        self._username = username
        super().__init__(path, clock, where)

    def _header_of(self, text: str) -> str:
        return basic(self._username, text)


class ExecStatus(msgspec.Struct, rename="camel"):
    """status of an ExecCredential."""

    token: str = ""
    expiration_timestamp: datetime.datetime | None = None
    client_certificate_data: str = ""
    client_key_data: str = ""


class ExecCredential(msgspec.Struct, rename="camel"):
    """An exec plugin's output."""

    status: ExecStatus | None = None


class ExecPlugin:
    """A command that prints an ExecCredential; run again when its token expires or is refused.

    A client certificate that it prints is loaded into `tls`, for later connections.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        clock: Clock,
        where: str,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._argv = list(argv)
        self._env = {**os.environ, **env}
        self._clock = clock
        self._tls = tls
        self._where = where
        self._found: ExecStatus | None = None
        self._lock = asyncio.Lock()

    async def authorization(self) -> str:
        """Return the token, running the command first if there is none or it expires soon."""
        async with self._lock:
            if self._found is None or self._ends_soon(self._found):
                self._found = await self._run()
                self._take_certificate(self._found)
            return f"Bearer {self._found.token}" if self._found.token else ""

    def refused(self) -> None:
        """Run the command again before the next request."""
        self._found = None

    def _take_certificate(self, status: ExecStatus) -> None:
        if not status.client_certificate_data:
            return
        if self._tls is None:
            text = "printed a client certificate, but the server is not https"
            raise BadInputError(self._where, text)
        certificate, key = status.client_certificate_data, status.client_key_data
        load_certificate(self._tls, certificate.encode(), key.encode(), self._where)

    def _ends_soon(self, status: ExecStatus) -> bool:
        end = status.expiration_timestamp
        return end is not None and (end - self._clock.wall()).total_seconds() < SPARE_S

    async def _run(self) -> ExecStatus:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._argv,
                env=self._env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            text = f"cannot run {self._argv[0]!r}: {error.strerror}"
            raise BadInputError(self._where, text) from error
        try:
            out, err = await asyncio.wait_for(process.communicate(), EXEC_LIMIT_S)
        except TimeoutError as error:
            process.kill()
            await process.wait()
            text = f"{self._argv[0]!r} printed no credential in {EXEC_LIMIT_S:.0f} s"
            raise BadInputError(self._where, text) from error
        if process.returncode:
            text = err.decode("utf-8", "replace").strip()[-300:]
            what = f"{self._argv[0]!r} ended with {process.returncode}: {text}"
            raise BadInputError(self._where, what)
        return self._read(out)

    def _read(self, out: bytes) -> ExecStatus:
        try:
            status = msgspec.json.decode(out, type=ExecCredential).status
        except UNDECODABLE as error:
            text = f"{self._argv[0]!r} printed no ExecCredential: {error}"
            raise BadInputError(self._where, text) from error
        if status is None or not (status.token or status.client_certificate_data):
            text = f"{self._argv[0]!r} printed neither a token nor a client certificate"
            raise BadInputError(self._where, text)
        return status
