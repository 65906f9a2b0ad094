"""Catalog: metadata of each game, such as legal moves, compact positions and experts.

Its functions take a raw env. `table.py` lists the games, `vetted.yaml` the recommended ones, and
`defects.yaml` the known defects of TextArena's games.
"""

import sys
from importlib.util import find_spec
from typing import Any


def _import_nltk() -> None:
    """Import NLTK, as TextArena would, without scipy.stats, which takes 0.6 s.

    NLTK needs it for one test of word pairs, which imports it at its first call instead, and for
    scikit-learn, if that is installed.
    """
    sys.modules["scipy.stats"] = None  # type: ignore[assignment]  # an import now fails
    try:
        from nltk.metrics import association
    finally:
        del sys.modules["scipy.stats"]
    association.fisher_exact = _fisher_exact


def _fisher_exact(*args: Any, **options: Any) -> Any:
    from scipy.stats import fisher_exact

    return fisher_exact(*args, **options)


if not {"nltk", "scipy.stats"} & sys.modules.keys() and find_spec("sklearn") is None:
    _import_nltk()
