"""Weft's exceptions. A pod that does not fit is a `Reason`, never an exception."""


def install_extra(extra: str) -> str:
    """Return how to install one of Weft's extras: from a checkout, as Weft is on no package index
    yet."""
    return f"in Weft's checkout: pip install -e '.[{extra}]'"


class WeftError(Exception):
    """Base of everything Weft raises on purpose."""


class PolicyError(WeftError):
    """A policy failed, or returned something that its contract forbids: `what` describes the
    error, `hook` names the policy's method."""

    def __init__(self, policy: str, hook: str, what: str) -> None:
        super().__init__(f"policy {policy}, {hook}: {what}")
        self.policy, self.hook, self.what = policy, hook, what

    def __reduce__(self) -> tuple[type["PolicyError"], tuple[str, str, str]]:
        """Support pickling, as errors cross process boundaries (`--jobs`)."""
        return type(self), (self.policy, self.hook, self.what)


class BadInputError(WeftError):
    """A file, field or value that people wrote is wrong; the message names it and a remedy.

    `where` is the place (file, line, field); `problem` says what is wrong and how to fix it.
    """

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}" if where else problem)
        self.where = where
        self.problem = problem

    def __reduce__(self) -> tuple[type["BadInputError"], tuple[str, str]]:
        """Support pickling, as errors cross process boundaries (`--jobs`)."""
        return type(self), (self.where, self.problem)
