"""`weft-compat`, the image's entry point: starts Weft with the original systems' command lines.

Their program names, arguments and environment become a Weft command and a configuration; flags
without effect in Weft are named in a warning. Any other command line is one of `weft`.

elastic-gpu-scheduler, gpushare-sche-extender, only flags or PORT   weft extender serve
genius, kube-scheduler                                              weft scheduler
elastic-gpu-agent, gpushare-device-plugin-v2                        weft agent --device-plugins
"""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft.cli.logs import LogFormat, LogLevel, set_up
from weft.model.errors import BadInputError

log = logging.getLogger("weft.compat")

_EXTENDER, _SCHEDULER, _AGENT = "extender", "scheduler", "agent"
PROGRAMS = {
    "elastic-gpu-scheduler": _EXTENDER,
    "gpushare-sche-extender": _EXTENDER,
    "genius": _SCHEDULER,
    "kube-scheduler": _SCHEDULER,
    "elastic-gpu-agent": _AGENT,
    "gpushare-device-plugin-v2": _AGENT,
}
DEFAULT_PORT = 39_999
LEVELS = {
    "TRACE": LogLevel.DEBUG,
    "DEBUG": LogLevel.DEBUG,
    "INFO": LogLevel.INFO,
    "NOTICE": LogLevel.INFO,
    "WARN": LogLevel.WARNING,
    "WARNING": LogLevel.WARNING,
    "ERROR": LogLevel.ERROR,
    "CRITICAL": LogLevel.ERROR,
    "ALERT": LogLevel.ERROR,
}
"""The values of LOG_LEVEL in gpushare and Co-scheML."""
_DEBUG_FROM = 4

_KLOG_SWITCHES = (
    *("logtostderr", "alsologtostderr", "skip_headers", "skip_log_headers", "add_dir_header"),
    "one_output",
)
_KLOG = (
    *(*_KLOG_SWITCHES, "stderrthreshold", "vmodule", "log_dir", "log_file", "log_file_max_size"),
    *("log_backtrace_at", "log-flush-frequency"),
)
_SWITCHES = frozenset(
    (
        *(*_KLOG_SWITCHES, "mps", "health-check", "query-kubelet", "leader-elect"),
        *("isLoadSchedule", "profiling", "authentication-skip-lookup"),
    )
)
_CARRIED_OVER = "carry it over with `weft config import`"
_NOT_NEEDED = {
    **dict.fromkeys(_KLOG, ""),
    "mode": "",
    "leader-elect": "",
    **dict.fromkeys(  # of kube-scheduler, on which Alnair and Genius are based
        ("authentication-kubeconfig", "authorization-kubeconfig", "authentication-skip-lookup"),
        "Weft asks the API server as its own service account",
    ),
    **dict.fromkeys(("bind-address", "secure-port", "port"), "see http in Weft's configuration"),
    "profiling": "",
    **dict.fromkeys(("policy-config-file", "policy-configmap"), _CARRIED_OVER),
    "gpuPluginName": "",
    "dbFile": "Weft keeps nothing on the node",
    "health-check": "",
    "mps": "set agent.mps in Weft's configuration",
    "query-kubelet": "",
    **dict.fromkeys(
        ("kubelet-address", "kubelet-port", "client-cert", "client-key", "token", "timeout"),
        "Weft's agent does not ask the kubelet's port",
    ),
    "policyConfigPath": _CARRIED_OVER,
    "isLoadSchedule": "Weft schedules by load if telemetry.url is configured",
    "instancePort": "see telemetry.names",
    "sync-period": "see telemetry.intervalSeconds",
}
"""Flags of the original programs that are accepted and ignored, with the reason that a warning
gives; "": no warning."""


class Started(NamedTuple):
    """A Weft command line, its configuration (None if it needs none), and warnings."""

    words: list[str]
    configuration: dict[str, Any] | None
    level: LogLevel
    warnings: list[str]
    log_format: LogFormat = LogFormat.TEXT


def translate(program: str, words: Sequence[str], environment: Mapping[str, str]) -> Started:
    """Translate the command line of an original program into one of Weft."""
    rest = list(words)
    name = Path(program).name
    if rest and rest[0] == "weft":
        return Started(rest[1:], None, LogLevel.INFO, [])
    if name not in PROGRAMS and rest and Path(rest[0]).name in PROGRAMS:
        name = Path(rest.pop(0)).name
    what = PROGRAMS.get(name, "")
    if not what and _is_weft(rest, environment):
        return Started(rest, None, LogLevel.INFO, [])
    flags, warnings = _flags(rest)
    level, form = _level(flags, environment, warnings), _format(flags, warnings)
    command, config = _COMMANDS[what or _EXTENDER](flags, environment, warnings)
    warnings += [_unused(flag, flags[flag]) for flag in flags]
    whole = {"apiVersion": "weft.dev/v1", "kind": "WeftConfiguration", **config}
    command += ["--log", level.value] if level is not LogLevel.INFO else []
    command += ["--log-format", form.value] if form is not LogFormat.TEXT else []
    return Started(command, whole, level, [text for text in warnings if text], form)


def _is_weft(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return True for Weft's own command line: a command, help or version, or no words while the
    environment has no PORT."""
    if not words:
        return "PORT" not in environment
    own = ("--help", "--version", "--install-completion", "--show-completion")
    return not words[0].startswith("-") or words[0] in own


def _flags(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Parse flags as Go programs do: one dash or two, value after `=` or in the next word."""
    flags, warnings = dict[str, str](), list[str]()
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-"):
            warnings.append(f"{word}: ignored; the original programs have no such argument")
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals and name not in _SWITCHES and left and not left[0].startswith("-"):
            value = left.pop(0)
        flags[name] = value or "true"
    return flags, warnings


def _level(flags: dict[str, str], environment: Mapping[str, str], warnings: list[str]) -> LogLevel:
    """Return the log level: klog's -v takes precedence over LOG_LEVEL."""
    verbosity = flags.pop("v", "")
    if verbosity.isdecimal():
        return LogLevel.DEBUG if int(verbosity) >= _DEBUG_FROM else LogLevel.INFO
    said = environment.get("LOG_LEVEL", "info")
    if said.upper() not in LEVELS:
        warnings.append(f"LOG_LEVEL={said}: not one of {', '.join(LEVELS)}; using INFO")
    return LEVELS.get(said.upper(), LogLevel.INFO)


def _format(flags: dict[str, str], warnings: list[str]) -> LogFormat:
    """Return the log format from kube-scheduler's --logging-format."""
    said = flags.pop("logging-format", LogFormat.TEXT.value)
    if said in list(LogFormat):
        return LogFormat(said)
    warnings.append(f"--logging-format={said}: not one of {', '.join(LogFormat)}; using text")
    return LogFormat.TEXT


def _extender(
    flags: dict[str, str], environment: Mapping[str, str], warnings: list[str]
) -> tuple[list[str], dict[str, Any]]:
    """Translate the flags of Elastic GPU's, gpushare's or Co-scheML's extender.

    One port serves the paths of all three, and any client may bind."""
    words = ["extender", "serve"]
    port = environment.get("PORT", "")
    extender: dict[str, Any] = {"address": "0.0.0.0", "anyoneMayBind": True}
    extender["port"] = int(port) if port.isdigit() else DEFAULT_PORT
    if port and not port.isdigit():
        warnings.append(f"PORT={port}: not a number; using {DEFAULT_PORT}, like the original")
    if not environment.get("THREADNESS", "1").isdigit():
        warnings.append(f"THREADNESS={environment['THREADNESS']}: not a number; ignored")
    if priority := flags.pop("priority", ""):
        if priority not in ("binpack", "spread", "random"):
            raise BadInputError("-priority", f"is {priority}; write binpack, spread or random")
        words += ["--priority", priority]
    words += _kubeconfig(flags)
    config: dict[str, Any] = {"extender": extender}
    if url := flags.pop("prometheusUrl", ""):
        config["telemetry"] = {"url": url}
    return words, config


def _scheduler(
    flags: dict[str, str], environment: Mapping[str, str], warnings: list[str]
) -> tuple[list[str], dict[str, Any]]:
    """Translate the flags of Genius' and Alnair's kube-schedulers.

    Built-in profiles have their schedulerNames, so no configuration is needed."""
    if file := flags.pop("config", ""):
        hint = "carry it over with `weft config import`, and start `weft scheduler --config`"
        warnings.append(f"--config={file}: kube-scheduler's form is not read; {hint}")
    return ["scheduler", *_kubeconfig(flags)], {}


def _agent(
    flags: dict[str, str], environment: Mapping[str, str], warnings: list[str]
) -> tuple[list[str], dict[str, Any]]:
    """Translate the flags of the originals' device plugins.

    Shares are delivered through the kubelet, for which the originals' mounts suffice."""
    words = ["agent", "--device-plugins"]
    if name := flags.pop("nodeName", "") or environment.get("NODE_NAME", ""):
        words += ["--node-name", name]
    unit = flags.pop("memory-unit", "")
    if unit and unit not in ("GiB", "MiB"):
        warnings.append(f"--memory-unit={unit}: using GiB, like the original")
    config = {"gpushareUnit": unit if unit == "MiB" else "GiB"} if unit else {}
    return [*words, *_kubeconfig(flags)], config


_COMMANDS = {_EXTENDER: _extender, _SCHEDULER: _scheduler, _AGENT: _agent}


def _kubeconfig(flags: dict[str, str]) -> list[str]:
    """Return the option for a kubeconfig flag; the environment's KUBECONFIG needs none."""
    path = flags.pop("kubeconf", "") or flags.pop("kubeconfig", "")
    return ["--kubeconfig", path] if path else []


def _unused(flag: str, value: str) -> str:
    if flag not in _NOT_NEEDED:
        return f"-{flag}={value}: not a flag of the original programs; ignored"
    why = _NOT_NEEDED[flag]
    return f"-{flag}={value}: not needed; {why}" if why and value != "false" else ""


def main() -> None:
    """Run the image's entry point."""
    from weft.cli.main import main as weft_main

    try:
        started = translate(sys.argv[0], sys.argv[1:], os.environ)
    except BadInputError as error:
        sys.stderr.write(f"weft: error: {error}\n")
        sys.exit(1)
    words = started.words
    if started.configuration is not None:
        set_up(started.log_format, started.level)
        for text in started.warnings:
            log.warning("%s", text)
        words = [*words, "--config", _in_memory(started.configuration)]
        log.info("running weft %s", " ".join(words))
    sys.argv = ["weft", *words]
    weft_main()


def _in_memory(configuration: Mapping[str, Any]) -> str:
    """Write the configuration into an in-memory file and return its path, as the image's root may
    be read-only."""
    import yaml

    descriptor = os.memfd_create("weft.yaml", 0)
    os.write(descriptor, yaml.safe_dump(dict(configuration)).encode())
    return f"/proc/self/fd/{descriptor}"


if __name__ == "__main__":
    main()
