"""Logs a message once, however often its cause happens."""

MOST = 1_000


class LogOnce:
    """Remembers what was logged (`topics`); once it has `MOST` topics, nothing new is logged."""

    def __init__(self) -> None:
        self.topics: set[str] = set()

    def is_new(self, topic: str) -> bool:
        """Return True, and remember the topic, if it was not logged before."""
        if topic in self.topics or len(self.topics) >= MOST:
            return False
        self.topics.add(topic)
        return True

    def forget(self, prefix: str) -> bool:
        """Let topics with this prefix be logged again; return True if there were any."""
        over = {what for what in self.topics if what.startswith(prefix)}
        self.topics -= over
        return bool(over)
