"""Choices of output that several commands share."""

from enum import StrEnum


class ListOutput(StrEnum):
    """A list for people or for programs."""

    table = "table"
    json = "json"
