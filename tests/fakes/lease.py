"""A lease without an API server."""

from collections.abc import Callable


class LeaseStub:
    """Held while `may_bind` says so; `other` names another process that has it."""

    def __init__(
        self, may_bind: Callable[[float], bool] = lambda seconds: True, other: str = ""
    ) -> None:
        self.may_bind, self.other = may_bind, other
