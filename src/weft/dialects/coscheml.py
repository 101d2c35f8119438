"""Co-scheML: gpushare pods whose container name says which application runs in them.

The name is that of the first container the original knows; the interference table spells two of
the twelve differently. Active only where an interference table is configured: without one the
identity serves nothing, and the pod is gpushare's.
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
    """Return the interference table's key for this pod; "" for an application it does not know."""
    for container in pod.spec.containers:
        if container.name in APPLICATIONS:
            return APPLICATIONS[container.name]
    return ""


class CoschemlDialect(Gpushare):
    """gpushare's contract with an application identity; its GPU choice and ties are gpushare's."""

    name = "coscheml"

    def carries(self, words: PodWords, settings: DialectSettings) -> bool:
        """A gpushare pod of a known application, where a table is configured."""
        return (
            settings.interference_table
            and bool(application_of(words.manifest))
            and super().carries(words, settings)
        )

    def parse(self, words: PodWords, settings: DialectSettings) -> PodRequest:
        """gpushare's request with the application in its shape."""
        return self._build(words, settings, application_of(words.manifest))
