"""Co-scheML: gpushare pods whose container names say which application they run.

The first container name that Co-scheML knows counts (`APPLICATIONS`). This dialect is used only if
an interference table is configured; otherwise such pods are read as gpushare's.
"""

from weft.dialects.dialect import DialectSettings
from weft.dialects.gpushare import Gpushare
from weft.dialects.resources import PodWords
from weft.model import PodManifest, PodRequest

# Container name → the interference table's key.
APPLICATIONS = {
    "lammps": "LAMMPS",
    "gromacs": "GROMACS",
    "hoomd": "HOOMD",
    "qmcpack": "QMCPACK",
    "cnn": "CNN",
    "google": "Googlenet",
    "alex": "Alexnet",
    "vgg16": "vgg16",
    "vgg11": "vgg11",
    "classification": "classification",
    "multiout": "multiout",
    "regression": "regression",
}


def application_of(pod: PodManifest) -> str:
    """Return the interference table's key for this pod; "" if no container has the name of a known
    application."""
    for container in pod.spec.containers:
        if container.name in APPLICATIONS:
            return APPLICATIONS[container.name]
    return ""


class CoschemlDialect(Gpushare):
    """gpushare's dialect with an application in each request; GPUs are chosen, and ties broken, as
    in gpushare."""

    name = "coscheml"

    def carries(self, words: PodWords, settings: DialectSettings) -> bool:
        """Return True for a gpushare pod of a known application, if an interference table is
        configured."""
        return (
            settings.interference_table
            and bool(application_of(words.manifest))
            and super().carries(words, settings)
        )

    def parse(self, words: PodWords, settings: DialectSettings) -> PodRequest:
        """Return gpushare's request with the application in its shape."""
        return self._build(words, settings, application_of(words.manifest))
