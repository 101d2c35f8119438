"""How daemons log: lines for people, or one JSON object a line (`--log-format json`).

    {"time": "2026-03-01T12:00:00.123Z", "level": "info", "logger": "weft.cluster",
     "message": "…", "pod": "team/train-0", "podUID": "…", "node": "gpu-1", "cycle": 17}

The last four are there where a line is about a pod, a node or a decision: `model/log_fields.py`.
`error` is a traceback. Nothing else reaches stderr then: Python's warnings, tracebacks of threads
and the error that ends the process are lines too.
"""

import contextlib
import datetime
import logging
import sys
import threading
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from typer import Exit, Option

from weft.model.errors import BadInputError, PolicyError
from weft.model.log_fields import FIELDS, NODE

log = logging.getLogger("weft")
TEXT_FORM = "%(asctime)s %(levelname)s %(name)s %(message)s"


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a line looks."""

    TEXT = "text"
    JSON = "json"


Log = Annotated[LogLevel, Option("--log", help="How much is logged.")]
Format = Annotated[
    LogFormat, Option("--log-format", help="Lines for people, or one JSON object a line.")
]


class JsonFormatter(logging.Formatter):
    """One JSON object a line; `node` is where all that is logged happens."""

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._always = {NODE: node} if node else {}

    def format(self, record: logging.LogRecord) -> str:
        """The record's line, without its end."""
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
        except UnicodeEncodeError:  # half a character of somebody's name
            shown = {key: _shown(value) for key, value in line.items()}
            return msgspec.json.encode(shown).decode()


def _shown(value: object) -> object:
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def set_up(log_format: LogFormat, level: LogLevel = LogLevel.INFO, *, node: str = "") -> None:
    """Log to stderr like this from now on."""
    if log_format is LogFormat.TEXT:
        logging.basicConfig(level=level.value.upper(), format=TEXT_FORM, force=True)
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(node))
    logging.basicConfig(level=level.value.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    threading.excepthook = _of_thread
    sys.unraisablehook = _unraisable


@contextlib.contextmanager
def daemon(log_format: LogFormat, level: LogLevel, *, node: str = "") -> Iterator[None]:
    """Log like this in here; in JSON an error that ends the process is the last line."""
    set_up(log_format, level, node=node)
    if log_format is LogFormat.TEXT:
        yield
        return
    try:
        yield
    except Exit:
        raise
    except (BadInputError, PolicyError) as error:
        log.critical("%s", error)
        raise Exit(1) from error
    except Exception as error:
        log.critical("ended by a mistake in Weft: %s", error, exc_info=error)
        raise Exit(1) from error


def _of_thread(args: threading.ExceptHookArgs) -> None:
    name = args.thread.name if args.thread is not None else "a thread"
    if args.exc_value is not None and args.exc_type is not SystemExit:
        log.error("%s broke: %s", name, args.exc_value, exc_info=args.exc_value)


def _unraisable(args: Any) -> None:
    what = args.err_msg or "ignored"
    log.error("%s: %r: %s", what, args.object, args.exc_value, exc_info=args.exc_value)
