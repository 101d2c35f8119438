"""Logs a thing once, however often it happens."""

MOST = 1_000


class LogOnce:
    """Remembers what was logged (`topics`); of more than `MOST` different things nothing is."""

    def __init__(self) -> None:
        self.topics: set[str] = set()

    def is_new(self, topic: str) -> bool:
        """Return True if this is to be logged now: it was not yet."""
        if topic in self.topics or len(self.topics) >= MOST:
            return False
        self.topics.add(topic)
        return True

    def forget(self, prefix: str) -> bool:
        """Log messages that begin so again next time; True if any were logged before."""
        over = {what for what in self.topics if what.startswith(prefix)}
        self.topics -= over
        return bool(over)
