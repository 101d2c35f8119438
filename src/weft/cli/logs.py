"""Logging of daemons: text lines, or one JSON object per line (`--log-format json`).

`kube/log_lines.py` defines the format of a line. With JSON nothing else is written to stderr:
Python's warnings, tracebacks of threads and the error that ends the process are lines too."""

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

from typer import Exit, Option

from weft.model.errors import BadInputError, PolicyError

log = logging.getLogger("weft")


class LogLevel(StrEnum):
    """The least severe level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


Log = Annotated[LogLevel, Option("--log", help="How much is logged.")]
Format = Annotated[
    LogFormat, Option("--log-format", help="Lines for people, or one JSON object a line.")
]


def set_up(log_format: LogFormat, level: LogLevel = LogLevel.INFO, *, node: str = "") -> None:
    """Configure logging to stderr."""
    from weft.kube.log_lines import TEXT_FORM, JsonFormatter  # for daemons alone

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
    """Configure logging; with JSON, an error that ends the process is the last line."""
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
        log.critical("ended by an error in Weft: %s", error, exc_info=error)
        raise Exit(1) from error


def _of_thread(args: threading.ExceptHookArgs) -> None:
    name = args.thread.name if args.thread is not None else "of unknown name"
    if args.exc_value is not None and args.exc_type is not SystemExit:
        log.error("thread %s failed: %s", name, args.exc_value, exc_info=args.exc_value)


def _unraisable(args: Any) -> None:
    what = args.err_msg or "ignored"
    log.error("%s: %r: %s", what, args.object, args.exc_value, exc_info=args.exc_value)
