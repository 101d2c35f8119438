"""Names and addresses as Kubernetes and the Internet spell them."""

import ipaddress
import re
from urllib.parse import urlsplit

from weft.model import BadInputError
from weft.model.url_text import shown_url

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*/?")
EVERYWHERE = ("0.0.0.0", "::")


def is_label(text: str) -> bool:
    """True if it is a DNS label (RFC 1123), as a namespace's name is."""
    return _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """True if it is a DNS subdomain (RFC 1123), as most objects' names are."""
    return len(text) <= 253 and all(is_label(part) for part in text.split("."))


def is_host(text: str) -> bool:
    """True if it is an IP address or a host's name; `999.1.1.1` is neither."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        name = text.lower()
        return is_subdomain(name) and not name.rpartition(".")[2].isdecimal()
    return True


def check_url(text: str, where: str) -> None:
    """`BadInputError` unless it is http(s)://HOST[:PORT][/PATH], and nothing more."""
    try:
        parts = urlsplit(text)
        good = (
            parts.scheme in ("http", "https")
            and is_host(parts.hostname or "")
            and parts.port != 0
            and _PATH.fullmatch(parts.path) is not None
            and not (parts.query or parts.fragment or "@" in parts.netloc or "?" in text)
            and "#" not in text
            and not set(text) & set("\t\r\n")
        )
    except ValueError:
        good = False
    if not good:
        shown = f"{shown_url(text)!r} is no URL of a server; write http://HOST:PORT"
        if shown_url(text) != text:
            shown += ", and name users and passwords in settings of their own"
        raise BadInputError(where, shown)
