"""Formats a line of a log: as text, or as one JSON object.

    {"time": "2026-03-01T12:00:00.123Z", "level": "info", "logger": "weft.cluster",
     "message": "…", "pod": "team/train-0", "podUID": "…", "node": "gpu-1", "cycle": 17}

The last four fields are there if the line is about a pod, a node or a decision
(`model/log_fields.py`). A field `error` has the traceback of an exception.
"""

import datetime
import logging

import msgspec

from weft.model.log_fields import FIELDS, NODE

TEXT_FORM = "%(asctime)s %(levelname)s %(name)s %(message)s"


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object; `node` is the node of this process, if it has one."""

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._always = {NODE: node} if node else {}

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line, without a newline."""
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "time": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._always,
        }
        line |= {key: record.__dict__[key] for key in FIELDS if key in record.__dict__}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(line).decode()
        except UnicodeEncodeError:  # half a surrogate pair in a name
            shown = {key: _shown(value) for key, value in line.items()}
            return msgspec.json.encode(shown).decode()


def _shown(value: object) -> object:
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
