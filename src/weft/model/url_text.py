"""URLs as they may be shown: without the user and the password that may stand in them."""

import re

# What follows :// up to the last @ before a slash. A password may hold an @ that nobody escaped.
_USERINFO = re.compile(r"(?<=://)[^/?#\s'\"]*@")


def shown_url(text: str) -> str:
    """The text with `***` for the user and password of each URL in it."""
    return _USERINFO.sub("***@", text)
