"""The part of a configuration that decides: no addresses, no files, nothing to log in with."""

from typing import Any

import msgspec

from weft.cluster.config.bounds import from_builtins
from weft.cluster.config.form import API_VERSION, KIND, Configuration
from weft.cluster.snapshot.file import lean
from weft.model import BadInputError

_SECTIONS = ("profiles", "gpushareUnit", "compat", "inventory", "limits", "seed")
_FACTOR = "volcanoMemoryFactor"  # only where it is not 1: older snapshots have none


def deciding_part(config: Configuration) -> dict[str, Any]:
    """These settings, as the configuration file has them."""
    whole = lean(msgspec.to_builtins(config))
    extender = {"enabled": config.extender.enabled, "routes": dict(config.extender.routes)}
    factor = {_FACTOR: whole[_FACTOR]} if config.volcano_memory_factor != 1 else {}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        **{section: whole[section] for section in _SECTIONS},
        **factor,
        "extender": {**extender, "interferenceTable": ""},
    }


def configuration_of(document: dict[str, Any], where: str) -> Configuration:
    """The configuration that a snapshot holds; `BadInputError` naming the field."""
    try:
        config = from_builtins(document)
    except BadInputError as error:
        raise BadInputError(f"{where}, field configuration.{error.where}", error.problem) from None
    if deciding_part(config) != document:
        wrong = "says more or less than a snapshot does; take the snapshot anew"
        raise BadInputError(f"{where}, field configuration", wrong)
    return config
