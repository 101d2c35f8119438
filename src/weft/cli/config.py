"""`weft config`: checks a configuration file, converts those of other schedulers, and shows the
defaults and their reasons."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option, Typer

from weft.cli.options import Output
from weft.cli.output import ListOutput, json_text
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.cluster.config.form import ExtenderSettings, TelemetrySettings


class ImportOutput(StrEnum):
    """The output format of an imported configuration."""

    yaml = "yaml"
    json = "json"


config_app = Typer(help="The configuration file: check it, see its defaults.", no_args_is_help=True)


@config_app.command("check")
def check(file: Annotated[Path, Argument(help="The configuration file, YAML.")]) -> None:
    """Read the file as the scheduler would; exit code 1 with the field that is wrong."""
    from weft.cli.policies import registry
    from weft.cluster.config.made_profiles import profiles
    from weft.cluster.config.read import read

    configuration = read(file)
    made = profiles(configuration, registry(), str(file))
    _check_extender(configuration.extender, str(file))
    _check_telemetry(configuration.telemetry, str(file))
    print(f"{file}: valid; profiles {', '.join(profile.name for profile in made)}")


def _check_extender(settings: "ExtenderSettings", where: str) -> None:
    """Check the extender's certificate and interference table, which are otherwise read at its
    start."""
    from weft.cli.policies import registry
    from weft.cluster.extender.setup import listening_of, routes_of
    from weft.cluster.http.tls import server_tls

    wish = listening_of(settings)
    try:
        if wish.certificate is not None and wish.key is not None:
            server_tls(wish.certificate, wish.key, wish.client_authority)
    except BadInputError as error:
        raise BadInputError(f"{where}: extender: {error.where}", error.problem) from error
    try:
        if settings.enabled:
            routes_of(settings, registry().names())
    except BadInputError as error:
        raise BadInputError(f"{where}: {error.where}", error.problem) from error


def _check_telemetry(settings: "TelemetrySettings", where: str) -> None:
    """Check telemetry's certificates, token and password, which are otherwise read at the start."""
    from weft.cluster.telemetry.metric_sources import access_of

    try:
        access_of(settings).tls()
        access_of(settings).credentials()
    except BadInputError as error:
        raise BadInputError(f"{where}: {error.where}", error.problem) from error


@config_app.command("import")
def import_old(
    file: Annotated[
        Path,
        Argument(
            help="--policy-config-file (JSON), a KubeSchedulerConfiguration, Elastic GPU's "
            "load-aware policy, or a ConfigMap of one; - reads standard input.",
            allow_dash=True,
        ),
    ],
    output: Annotated[
        ImportOutput, Option("--output", "-o", help="yaml: two documents; json: one object.")
    ] = ImportOutput.yaml,
) -> None:
    """Convert the configuration of another GPU scheduler, or of an older kube-scheduler.

    Prints a KubeSchedulerConfiguration v1 and a WeftConfiguration, each if the file has settings
    for it; settings that neither supports go to standard error, with the reason. Exit code 0:
    everything was converted; 3: some settings were not; 1: the file cannot be read.
    """
    import yaml

    from weft.cluster.config.old_schedulers import import_configuration
    from weft.files.reading import read_bytes

    text = read_bytes(file)
    imported = import_configuration(text, str(file))
    if output is ImportOutput.json:
        print(json_text(imported))
    else:
        documents = [each for each in (imported.kube_scheduler, imported.weft) if each is not None]
        print(yaml.safe_dump_all(documents, sort_keys=False, width=100), end="")
    for left in imported.left_out:
        value = f" ({left.value})" if left.value else ""
        print(f"not carried over: {left.where}{value}: {left.why}", file=sys.stderr)
    if imported.left_out:
        raise Exit(3)


@config_app.command("defaults")
def defaults() -> None:
    """Print the default configuration as a file, with the reason for each setting."""
    from weft.cluster.config.form import Configuration
    from weft.cluster.config.show import as_yaml

    print(as_yaml(Configuration()), end="")


@config_app.command("explain")
def explain_setting(
    path: Annotated[
        str,
        Argument(metavar="SETTING", help="A setting, such as lease.renewSeconds. [default: all]"),
    ] = "",
    output: Output = ListOutput.table,
) -> None:
    """Explain a setting, and the reason for its default."""
    from weft.cluster.config import show

    known = show.explain(path)
    if output is ListOutput.json:
        keys = "setting", "default", "reason"
        print(json_text([dict(zip(keys, setting, strict=True)) for setting in known]))
        return
    for name, default, reason in known:
        shown = f" = {default}" if default else ""
        print(f"{name}{shown}\n    {reason}")
