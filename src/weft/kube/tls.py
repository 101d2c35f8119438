"""TLS for connections to API servers: the cluster's own authority, and client certificates."""

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator

from weft.model import BadInputError


def client_tls(authority: bytes, where: str, *, verify: bool = True) -> ssl.SSLContext:
    """Return a context that trusts `authority` (PEM; the system's authorities if empty), or, if not
    `verify`, that checks no certificate. `where` names the setting in errors."""
    if authority:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=authority.decode("ascii"))
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise BadInputError(where, f"is not a certificate in PEM format: {error}") from error
    else:
        context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Clusters' own authorities often lack the extensions that the strict check wants, and may be
    # intermediate ones. Go accepts both, so clients of Kubernetes must as well.
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def load_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes, where: str) -> None:
    """Load a client certificate and its key (PEM) into the context.

    Python's ssl reads them only from a file: a file in memory where the system has such, since a
    container's root may be read-only; else a private file, removed right after.
    """
    with _as_file(certificate + b"\n" + key) as path:
        try:
            context.load_cert_chain(path)
        except ssl.SSLError as error:
            raise BadInputError(
                where, f"client certificate and key do not work together: {error}"
            ) from error


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Write the content to a private file, yield its path, and remove the file afterwards."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("client.pem"), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        path = os.path.join(folder, "client.pem")
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        yield path
