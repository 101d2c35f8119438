"""TLS of the server: its certificate, and whose clients it trusts."""

import ssl
from pathlib import Path

from weft.model import BadInputError


def server_tls(certificate: Path, key: Path, client_authority: Path | None) -> ssl.SSLContext:
    """A context from PEM files; with `client_authority`, client certificates are looked at.

    They are asked for, not required: the kubelet's health checks have none. The server turns away
    whoever else comes without.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise BadInputError(
            f"{certificate}, {key}", f"no certificate with its key: {error}"
        ) from error
    if client_authority is not None:
        try:
            context.load_verify_locations(client_authority)
        except (OSError, ssl.SSLError) as error:
            raise BadInputError(f"{client_authority}", f"no PEM certificate: {error}") from error
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    return context
