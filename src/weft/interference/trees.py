"""Gradient-boosted quantiles over solo profiles, where LightGBM is installed and profiles exist.

Three small forests predict the 10 %, 50 % and 90 % quantiles of log slowdown from the target's
features and the sum and maximum of its neighbours', so that they work for any number of neighbours.
They are stored as LightGBM's own text.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.interference.features import Floats

QUANTILES = (0.1, 0.5, 0.9)
ROUNDS = 150
_SETTINGS = {
    "objective": "quantile",
    "learning_rate": 0.05,
    "num_leaves": 8,
    "min_data_in_leaf": 8,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "feature_fraction": 0.7,
    "verbosity": -1,
    "num_threads": 1,
    "seed": 7,
    "deterministic": True,
    "force_row_wise": True,
}


def available() -> bool:
    """Return True if LightGBM (Weft's extra `interference`) and the libraries it needs are
    installed."""
    try:
        import lightgbm  # noqa: F401
    except (ImportError, OSError):
        return False
    return True


def readable(texts: Sequence[str]) -> bool:
    """Return True if `texts` are empty or three forests; without LightGBM only their first line is
    checked."""
    if not texts:
        return True
    if len(texts) != len(QUANTILES) or not all(text.startswith("tree\n") for text in texts):
        return False
    if not available():
        return True
    import lightgbm

    try:
        QuantileForests.read(texts)
    except lightgbm.basic.LightGBMError:
        return False
    return True


class QuantileForests:
    """Three LightGBM forests, one for each of `QUANTILES`."""

    def __init__(self, boosters: Sequence[Any]) -> None:
        self._boosters = boosters

    @classmethod
    def read(cls, texts: Sequence[str]) -> "QuantileForests":
        """Read the forests from their `texts`."""
        import lightgbm

        return cls([lightgbm.Booster(model_str=text) for text in texts])

    @property
    def texts(self) -> tuple[str, ...]:
        """The forests in LightGBM's text form."""
        return tuple(booster.model_to_string() for booster in self._boosters)

    @classmethod
    def fitted(cls, rows: Floats, slower: Floats) -> "QuantileForests":
        """Fit to rows of `features.pair_rows` and their log slowdowns."""
        import lightgbm

        dataset = lightgbm.Dataset(rows, slower, params=_SETTINGS, free_raw_data=False)
        settings: list[dict[str, Any]] = [{**_SETTINGS, "alpha": alpha} for alpha in QUANTILES]
        # Without keep_training_booster LightGBM would serialise each forest and parse it again.
        return cls(
            [
                lightgbm.train(params, dataset, ROUNDS, keep_training_booster=True)
                for params in settings
            ]
        )

    def predict(self, rows: Floats) -> Floats:
        """Return the three quantiles of log slowdown for each row, sorted, [3, n]."""
        quantiles = np.array([np.asarray(b.predict(rows, num_threads=1)) for b in self._boosters])
        return np.sort(quantiles, axis=0)

    def contributions(self, row: Floats) -> Floats:
        """Return each column's contribution to the predicted median for one row, [columns], without
        the base value."""
        contributions = self._boosters[1].predict(row[None], pred_contrib=True)
        return np.asarray(contributions, dtype=np.float64)[0, :-1]
