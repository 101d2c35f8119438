"""Reads the job list of Ferikoglou et al.'s generator: programs, and how often each is run.

JSON: a list of `{model, memory_request_MiB, list: [{queries, replicas}]}`, with fields that their
images need (`MODEL_DIR`, `DATA_DIR`, `backend`, `scenario`, `image_name`, `container_name`)."""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from weft.files.reading import UNDECODABLE, read_bytes
from weft.model import BadInputError

FOR_IMAGES = (
    "MODEL_DIR",
    "DATA_DIR",
    "backend",
    "scenario",
    "container_name",
    "image_name",
    "memory_request_GB",
)
"""Fields that are needed to run a program, but not to simulate it."""


class QueriesAndReplicas(msgspec.Struct, frozen=True):
    """A number of replicas, with a number of queries each."""

    queries: Annotated[int, Meta(ge=1)]
    replicas: Annotated[int, Meta(ge=0, le=10_000)]


class GeneratedProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A program of the list."""

    model: str
    memory_mib: Annotated[int, Meta(ge=1)] = msgspec.field(name="memory_request_MiB")
    memory_gib: Annotated[int, Meta(ge=0)] = msgspec.field(name="memory_request_GB", default=0)
    runs: tuple[QueriesAndReplicas, ...] = msgspec.field(name="list")
    model_dir: str = msgspec.field(name="MODEL_DIR", default="")
    data_dir: str = msgspec.field(name="DATA_DIR", default="")
    backend: str = ""
    scenario: str = ""
    container_name: str = ""
    image_name: str = ""


def read_generated(path: Path, *, for_images: bool = False) -> tuple[GeneratedProgram, ...]:
    """Read the programs of the list; with `for_images`, check that fields for images are present.

    `BadInputError` names the entry and the field."""
    try:
        programs = msgspec.json.decode(read_bytes(path), type=tuple[GeneratedProgram, ...])
    except UNDECODABLE as error:
        what = f"is not a list of programs with model, memory_request_MiB and list: {error}"
        raise BadInputError(str(path), what) from None
    for number, program in enumerate(programs if for_images else ()):
        said = msgspec.to_builtins(program)
        absent = [name for name in FOR_IMAGES if not said[name]]
        if absent:
            raise BadInputError(f"{path}: [{number}].{absent[0]}", "is missing; a Job needs it")
    return programs
