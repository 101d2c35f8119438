"""TLS contexts of a server: its certificate, and the authority of client certificates."""

import asyncio
import logging
import ssl
from pathlib import Path

from weft.model import BadInputError

_LOOK_S = 10.0


def server_tls(certificate: Path, key: Path, client_authority: Path | None) -> ssl.SSLContext:
    """Build a context from PEM files; with `client_authority`, client certificates are verified.

    They are requested, not required: the kubelet's health checks have none. `AccessRule` rejects
    other clients without one.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise BadInputError(
            f"{certificate}, {key}", f"are not a certificate and its private key: {error}"
        ) from error
    if client_authority is not None:
        try:
            context.load_verify_locations(client_authority)
        except (OSError, ssl.SSLError) as error:
            raise BadInputError(f"{client_authority}", f"no PEM certificate: {error}") from error
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    return context


async def follow_certificate(
    tls: ssl.SSLContext,
    certificate: Path,
    key: Path,
    log: logging.Logger,
    *,
    look_s: float = _LOOK_S,
) -> None:
    """Reload the certificate whenever its files change, for later connections; runs until
    cancelled.

    Files that do not match, such as while they are being written, are tried again.
    """
    loaded, told = _state(certificate, key), ""
    while True:
        await asyncio.sleep(look_s)
        now = _state(certificate, key)
        if now == loaded:
            continue
        try:
            # Tried in a new context first, as a mismatched pair would replace the present one.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            tls.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            if str(error) != told:
                told = str(error)
                log.warning("%s: the new certificate cannot be loaded: %s", certificate, error)
            continue
        loaded, told = now, ""
        log.info("%s: a new certificate is used from now on", certificate)


def _state(*files: Path) -> list[tuple[int, int, int] | None]:
    """Return the modification time, inode and size of each file, which identify its present
    content; None for a file that cannot be read."""
    return [_of_file(file) for file in files]


def _of_file(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
