"""Says how a report was made, so that others can make it again."""

import msgspec


class HowMade(msgspec.Struct, frozen=True):
    """The command as a shell takes it, and with what, where and when it ran.

    `host` and `date` are empty where equal runs are to give equal pages.
    """

    command: str
    versions: str
    host: str = ""
    date: str = ""

    def rows(self) -> dict[str, str]:
        """Those that are known, by their titles."""
        rows = {"Versions": self.versions, "Host": self.host, "Date": self.date}
        return {title: text for title, text in rows.items() if text}
