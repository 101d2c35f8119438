"""Validates names and addresses by the rules of Kubernetes and DNS."""

import ipaddress
import re
from urllib.parse import urlsplit

from weft.model import BadInputError
from weft.model.url_text import shown_url

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*/?")
EVERYWHERE = ("0.0.0.0", "::")


def is_label(text: str) -> bool:
    """Return True if the text is a DNS label (RFC 1123), such as a namespace's name."""
    return _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """Return True if the text is a DNS subdomain (RFC 1123), such as most objects' names."""
    return len(text) <= 253 and all(is_label(part) for part in text.split("."))


def is_host(text: str) -> bool:
    """Return True if the text is an IP address or a host name; `999.1.1.1` is neither."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        name = text.lower()
        return is_subdomain(name) and not name.rpartition(".")[2].isdecimal()
    return True


def check_url(text: str, where: str) -> None:
    """Raise `BadInputError` unless the text is http(s)://HOST[:PORT][/PATH] and nothing more."""
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
        shown = f"{shown_url(text)!r} is not a server's URL; write http://HOST:PORT"
        if shown_url(text) != text:
            shown += ", and put users and passwords into their own settings"
        raise BadInputError(where, shown)
