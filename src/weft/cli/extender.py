"""`weft extender`: Weft as an extender of kube-scheduler."""

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from typer import Option, Typer

from weft.cli import logs, options
from weft.cli.options import MissingOptionError
from weft.cli.output import print_warning
from weft.cli.scheduler import configuration, run, with_extender

if TYPE_CHECKING:
    from weft.cluster.extender.scheduler_config import TlsFiles

# kube-scheduler multiplies scores by the weight; up to this weight no product overflows 64 bits.
_MOST_WEIGHT = 2**31 - 1

_Authority = Annotated[
    Path | None, Option(help="The authority of Weft's certificate; makes kube-scheduler use HTTPS.")
]
_Certificate = Annotated[
    Path | None, Option(help="kube-scheduler's own certificate, with --key-file.")
]
_Profiles = Annotated[
    bool,
    Option(
        "--profiles/--no-profiles",
        help="Whether kube-scheduler also serves the schedulerNames of these systems.",
    ),
]
extender_app = Typer(no_args_is_help=True)


@extender_app.callback()
def root() -> None:
    """Weft as an extender of the stock kube-scheduler."""


@extender_app.command("serve")
def serve(
    config: options.ConfigFile = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = "",
    port: Annotated[
        int | None,
        Option(min=0, max=65535, help="The port to listen on.  [default: as configured, 39999]"),
    ] = None,
    address: options.Address = "",
    priority: options.Priority = None,
    original_ports: options.OriginalPorts = False,
    leader_elect: options.LeaderElect = None,
    http_port: options.HttpPort = None,
    decisions: options.Decisions = None,
    decisions_mib: options.DecisionsMib = options.MOST_MIB,
    log_level: logs.Log = logs.LogLevel.INFO,
    log_format: logs.Format = logs.LogFormat.TEXT,
) -> None:
    """Answer kube-scheduler as its extender; schedule no pods by schedulerName.

    `weft scheduler --extender-port` does both on one ledger; run both commands only with the same
    lease.
    """
    from msgspec.structs import replace

    from weft.host.plan import Hosting

    with logs.daemon(log_format, log_level):
        settings = configuration(config, leader_elect, http_port)
        settings = with_extender(settings, port, address, original_ports, priority)
        settings = replace(settings, extender=replace(settings.extender, enabled=True))
        paths, where = (kubeconfig,) if kubeconfig else (), str(config or "")
        run(settings, Hosting(paths, context, where, decisions, decisions_mib, schedules=False))


@extender_app.command("config")
def config(
    dialects: Annotated[
        str, Option(help="Systems whose pods Weft serves, separated by commas.")
    ] = "weft,elastic,gpushare,alnair",
    url: Annotated[
        str, Option(help="Weft's URL for kube-scheduler, without a path.")
    ] = "http://127.0.0.1:39999",
    ca_file: _Authority = None,
    cert_file: _Certificate = None,
    key_file: Annotated[Path | None, Option(help="The certificate's key.")] = None,
    server_name: Annotated[
        str, Option(help="The name in Weft's certificate, if it differs from the URL's.")
    ] = "",
    weight: Annotated[
        int, Option(min=1, max=_MOST_WEIGHT, help="Weight of Weft's scores among the plugins'.")
    ] = 1,
    timeout_s: Annotated[int, Option(min=1, max=3_600, help="How long one call may take.")] = 30,
    unreported: Annotated[
        bool,
        Option(
            "--unreported",
            help="Nodes do not report the systems' resources, as with Weft's agent through NRI.",
        ),
    ] = False,
    profiles: _Profiles = True,
) -> None:
    """Print a KubeSchedulerConfiguration v1 with Weft as its extender.

    One entry serves all systems, because kube-scheduler allows only one extender that binds. Merge
    the output into the file with which kube-scheduler is started (`--config`).
    """
    import yaml

    from weft.cluster.config.addresses import check_url
    from weft.cluster.extender import scheduler_config

    check_url(url, "--url")
    tls = _tls(url, ca_file, cert_file, key_file, server_name)
    names = tuple(filter(None, (name.strip() for name in dialects.split(","))))
    wishes = scheduler_config.SchedulerConfigOptions(
        names, url, tls, weight, timeout_s, not unreported, profiles
    )
    print(yaml.safe_dump(scheduler_config.configuration(wishes), sort_keys=False), end="")
    _warn_of_open_door(url, tls)
    _warn(scheduler_config.taken_twice(wishes))


def _warn_of_open_door(url: str, tls: "TlsFiles | None") -> None:
    """Warn if Weft would refuse kube-scheduler: other machines need a client certificate by
    default."""
    from weft.cluster.http.access import is_loopback

    if is_loopback(urlsplit(url).hostname or "") or (tls is not None and tls.certificate):
        return
    lacking = "--cert-file and --key-file" if tls else "--ca-file, --cert-file and --key-file"
    print_warning(
        f"without {lacking} Weft refuses kube-scheduler, unless it is on the "
        "same machine or extender.anyoneMayBind is true in Weft's configuration"
    )


def _warn(twice: list[str]) -> None:
    if twice:
        print_warning(
            f"`weft scheduler` also serves the schedulerNames {', '.join(twice)}. Either run "
            "`weft extender serve` with this configuration, or leave them out with --no-profiles"
        )


def _tls(
    url: str, authority: Path | None, certificate: Path | None, key: Path | None, server_name: str
) -> "TlsFiles | None":
    """Return the TLS files, with paths on kube-scheduler's machine; None for plain HTTP."""
    from weft.cluster.extender.scheduler_config import TlsFiles
    from weft.model import BadInputError

    if (certificate is None) != (key is None):
        raise BadInputError("--cert-file", "requires --key-file; specify both")
    if authority is None and (certificate is not None or server_name):
        raise MissingOptionError(
            "--ca-file", "is missing: without it kube-scheduler speaks plain HTTP"
        )
    scheme = "https://" if authority else "http://"
    if not url.startswith(scheme):
        raise BadInputError("--url", f"is {url!r}; with these options it starts with {scheme}")
    if authority is None:
        return None
    return TlsFiles(
        PurePosixPath(authority),
        PurePosixPath(certificate) if certificate else None,
        PurePosixPath(key) if key else None,
        server_name,
    )
