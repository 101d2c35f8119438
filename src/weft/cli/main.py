"""`weft`: the commands, and the handling of errors."""

import errno
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

from typer import Argument, Exit, Option, Typer, echo
from typer.main import get_command

import weft
from weft.cli import standard_streams
from weft.cli.examples import add_examples
from weft.cli.grouped_help import CommandGroup
from weft.cli.options import MissingOptionError
from weft.files.writing import ANYWHERE, what_may_help
from weft.model.errors import BadInputError, PolicyError
from weft.model.number_text import is_text

app = Typer(
    name="weft",
    cls=CommandGroup,
    help="GPU sharing for Kubernetes: read GPU pods of any system, decide, simulate, explain.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        echo(f"weft {weft.__version__}")
        raise Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        Option("--version", help="Print the version and exit.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Handle the options that precede a command."""


INTERRUPTED = 130
"""Exit code after Ctrl-C; for commands that clean up, after SIGTERM too."""

USAGE = 2
"""Exit code if an option is wrong or missing."""

READER_GONE = 141
"""Exit code if the reader of the output has ended, as with `| head`; other tools use it too."""

_Commands = dict[str, Typer | Callable[..., None]]


def _register() -> None:
    for task, commands in (_without_a_cluster() | _on_a_cluster() | _about_gpus()).items():
        _add(task, commands)


def _without_a_cluster() -> dict[str, _Commands]:
    from weft.cli.experiment import experiment_app
    from weft.cli.generate import generate_app
    from weft.cli.policies import policies
    from weft.cli.simulate import simulate
    from weft.cli.trace import trace_app

    return {
        "Compare policies without a cluster": {
            "generate": generate_app,
            "trace": trace_app,
            "simulate": simulate,
            "policies": policies,
            "experiment": experiment_app,
        }
    }


def _on_a_cluster() -> dict[str, _Commands]:
    from weft.cli.admission import admission, webhook
    from weft.cli.adopt import adopt
    from weft.cli.agent import agent
    from weft.cli.cluster import cluster_app
    from weft.cli.config import config_app
    from weft.cli.console import console
    from weft.cli.decisions import explain_app, replay
    from weft.cli.defrag import defrag_app
    from weft.cli.doctor import doctor
    from weft.cli.extender import extender_app
    from weft.cli.inspect import inspect
    from weft.cli.parse import parse
    from weft.cli.queues import queues
    from weft.cli.scheduler import scheduler
    from weft.cli.shadow import shadow
    from weft.cli.snapshot import snapshot
    from weft.cli.status import status
    from weft.cli.usage import usage

    return {
        "Run on a cluster": {
            "parse": parse,
            "config": config_app,
            "scheduler": scheduler,
            "extender": extender_app,
            "agent": agent,
            "admission": admission,
            "webhook": webhook,
            "adopt": adopt,
            "shadow": shadow,
        },
        "See why": {
            "console": console,
            "status": status,
            "inspect": inspect,
            "queues": queues,
            "usage": usage,
            "doctor": doctor,
            "explain": explain_app,
            "cluster": cluster_app,
            "defrag": defrag_app,
            "snapshot": snapshot,
            "replay": replay,
        },
    }


def _about_gpus() -> dict[str, _Commands]:
    from weft.cli.interference import interference_app
    from weft.cli.metrics import metrics
    from weft.cli.profile import profile_app

    return {
        "Know GPUs and applications": {
            "metrics": metrics,
            "profile": profile_app,
            "interference": interference_app,
        }
    }


def _add(task: str, commands: _Commands) -> None:
    for name, command in commands.items():
        if isinstance(command, Typer):
            app.add_typer(command, name=name, cls=CommandGroup, rich_help_panel=task)
        else:
            app.command(name, rich_help_panel=task)(command)


_register()


@app.command("help", hidden=True)
def show_help(
    command: Annotated[list[str], Argument(help="A command.")] = [],  # noqa: B006
) -> None:
    """Show a command's help: `weft help explain pod` is `weft explain pod --help`."""
    _commands().main([*command, "--help"], prog_name="weft", standalone_mode=True)


@app.command("version", hidden=True)
def show_version() -> None:
    """Print the version, as --version does."""
    _version(wanted=True)


@cache
def _commands() -> Any:
    """Build the command tree once: building it takes longer than most commands run."""
    tree = get_command(app)
    add_examples(tree)
    return tree


def _check_arguments(argv: list[str]) -> None:
    """Refuse arguments that are not valid UTF-8: they could be neither printed nor looked up."""
    for text in argv:
        if not is_text(text):
            raise BadInputError(ascii(text), "is not UTF-8 text; give the file or pod another name")


def main() -> None:
    """Run `weft`: bad input gives one line on stderr and exit code 1, never a traceback."""
    # Matrices are small: further BLAS threads mostly wait, and on a busy machine they make learning
    # ten times slower.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    standard_streams.prepare()
    try:
        code = _exit_code()
        sys.stdout.flush()
    except standard_streams.OutputError as fault:
        if fault.error.errno == errno.EPIPE:
            code = READER_GONE
        else:
            code = _refused(f"standard output cannot be written: {what_may_help(fault.error)}")
    except KeyboardInterrupt:
        code = _interrupted()
    sys.exit(code)


def _exit_code() -> int | str | None:
    """Run the command, print errors on stderr, and return the exit code."""
    try:
        _check_arguments(sys.argv)
        _commands()(prog_name="weft")
    except PolicyError as error:
        return _refused(str(error))
    except MissingOptionError as error:
        return _refused(str(error), USAGE)
    except BadInputError as error:
        where = re.sub(r"^-(?=$|[,:])", "standard input", error.where)
        return _refused(str(BadInputError(where, error.problem)))
    except OSError as error:
        if error.errno not in ANYWHERE:
            raise
        return _refused(str(BadInputError(error.filename or "a file", what_may_help(error))))
    except SystemExit as ended:
        # typer turns Ctrl-C into this exit code
        return _interrupted() if ended.code == INTERRUPTED else ended.code
    return 0


def _interrupted() -> int:
    print("weft: interrupted", file=sys.stderr)
    return INTERRUPTED


def _refused(why: str, code: int = 1) -> int:
    print(f"weft: error: {why}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
