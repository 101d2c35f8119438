"""The part of a configuration that affects decisions: no addresses, files or credentials."""

from typing import Any

import msgspec

from weft.cluster.config.bounds import from_builtins
from weft.cluster.config.form import API_VERSION, KIND, Configuration
from weft.cluster.snapshot.file import lean
from weft.files.queue_settings import QueueingSettings, QueuesSettings
from weft.model import BadInputError
from weft.model.request import PREFERENCES_PERCENT

_SECTIONS = ("profiles", "gpushareUnit", "compat", "inventory", "limits", "seed")
_FACTOR = "volcanoMemoryFactor"  # only where it is not 1: older snapshots have none
_QUEUES = "queues"  # only if any are configured
_QUEUE = "queue"  # only if it is not the default
_PREFERENCES = "preferences"  # of a profile; only if it is not the default


def deciding_part(config: Configuration) -> dict[str, Any]:
    """Return the settings that affect decisions, in the configuration file's form."""
    whole = lean(msgspec.to_builtins(config))
    extender = {"enabled": config.extender.enabled, "routes": dict(config.extender.routes)}
    factor = {_FACTOR: whole[_FACTOR]} if config.volcano_memory_factor != 1 else {}
    queues = {_QUEUES: whole[_QUEUES]} if config.queues != QueuesSettings() else {}
    if config.queue != QueueingSettings():
        queues[_QUEUE] = whole[_QUEUE]
    for profile in whole["profiles"]:
        if profile[_PREFERENCES] == PREFERENCES_PERCENT:
            del profile[_PREFERENCES]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        **{section: whole[section] for section in _SECTIONS},
        **factor,
        **queues,
        "extender": {**extender, "interferenceTable": ""},
    }


def configuration_of(document: dict[str, Any], where: str) -> Configuration:
    """Read the configuration of a snapshot; `BadInputError` names the wrong field."""
    try:
        config = from_builtins(document)
    except BadInputError as error:
        raise BadInputError(f"{where}, field configuration.{error.where}", error.problem) from None
    if deciding_part(config) != document:
        wrong = "has other settings than a snapshot of this version; take the snapshot again"
        raise BadInputError(f"{where}, field configuration", wrong)
    return config
