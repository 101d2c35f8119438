"""Masks the user and password in URLs, so that the URLs can be shown."""

import re

# What follows :// up to the last @ before a slash: a password may hold an @ that nobody escaped,
# and slashes too where what stands behind the first colon is no port. A text that is a URL without
# its scheme is masked from its beginning.
_USERINFO = re.compile(
    r"(?<=://)(?:[^/?#\s'\"]*@|[^/?#:\s'\"]*:(?![0-9]*[/?#])[^\s'\"]*@)"
    r"|^[^/?#:@\s'\"]+:(?!//)[^\s'\"]*@"
)


def shown_url(text: str) -> str:
    """Return the text with `***` for the user and password of each URL in it."""
    return _USERINFO.sub("***@", text)
