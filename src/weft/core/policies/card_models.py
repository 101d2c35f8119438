"""Card models as NVIDIA's data sheets describe them, for Genius' missing model map."""

import numpy as np
import numpy.typing as npt

from weft.model.model_names import normalized

Floats = npt.NDArray[np.float64]

MODELS: dict[str, tuple[int, int, int, int]] = {
    "1070 Ti": (19, 1, 2, 256),
    "2080 Ti": (68, 1, 1, 616),
    "3090": (82, 1, 1, 936),
    "4090": (128, 1, 2, 1008),
    "A2": (10, 2, 1, 200),
    "A10": (72, 2, 1, 600),
    "A16": (10, 2, 1, 200),
    "A30": (56, 4, 0, 933),
    "A40": (84, 2, 1, 696),
    "A100": (108, 5, 0, 1555),
    "A100-80": (108, 5, 0, 2039),
    "A100-SXM4-80": (108, 5, 0, 2039),
    "A100-PCIE-80": (108, 5, 0, 1935),
    "H100": (132, 7, 0, 3350),
    "H100 PCIe": (114, 7, 0, 2039),
    "H200": (132, 7, 0, 4800),
    "L4": (58, 4, 2, 300),
    "L40": (142, 3, 3, 864),
    "P4": (20, 1, 2, 192),
    "P40": (30, 1, 2, 346),
    "P100": (56, 1, 3, 732),
    "T4": (40, 2, 1, 320),
    "V100": (80, 1, 3, 900),
}
"""Multiprocessors, decoders, encoders, memory bandwidth in GB/s, by a part of the model's name."""


def features(model: str) -> Floats:
    """Multiprocessors, decoders, encoders, bandwidth of a model, NaN for unknown ones, [4].

    The longest entry that the name contains as whole words wins; case, blanks and dashes do not
    matter.
    """
    name = f" {normalized(model).lower()} "
    models = [key for key in MODELS if _has(name, normalized(key).lower())]
    if not models:
        return np.full(4, np.nan)
    return np.array(MODELS[max(models, key=len)], dtype=np.float64)


def _has(name: str, key: str) -> bool:
    """True if the key is in the name, and no digit follows: A10 is not A100."""
    _, separator, rest = name.partition(f" {key}")
    return bool(separator) and not rest[:1].isdigit()
