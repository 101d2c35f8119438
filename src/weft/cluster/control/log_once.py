"""Logs a thing once, however often it happens."""

MOST = 1_000


class LogOnce:
    """Remembers what was logged; of more than `MOST` different things nothing is."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def is_new(self, topic: str) -> bool:
        """True if this is to be logged now: it was not yet."""
        if topic in self._logged or len(self._logged) >= MOST:
            return False
        self._logged.add(topic)
        return True

    def forget(self, prefix: str) -> bool:
        """Log what begins so anew when it happens again; whether anything did."""
        over = {what for what in self._logged if what.startswith(prefix)}
        self._logged -= over
        return bool(over)
