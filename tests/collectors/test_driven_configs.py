"""Configs of games that external programs drive, and the error lines about mistakes in them."""

from typing import Any

from unstable.commands.prepare import check
from unstable.config import ConfigError, load

PPO = {"name": "ppo", "critic": None}
OFF = {"eval.exploitability.every": 0, "learner.algorithm": PPO}
KUHN = "driver:examples.drivers.kuhn:Kuhn"
ROWS: list[tuple[dict[str, Any], str]] = [
    ({}, "games.0.env = 'driver', but listen.port = 0"),
    ({"listen.port": 1, "listen.token_env": "NO_SUCH_VARIABLE"}, "not set; export the"),
    ({"listen.port": 1, "sampling.moves": "legal"}, "sampling.moves = legal: unsupported"),
    ({"listen.port": 1, "actors.policy_refresh": "turn"}, "policy_refresh = turn: unsupported"),
    ({"listen.port": 1, "eval": {"every": 1, "votes": 3}}, "eval.votes = 3: unsupported by g"),
    ({"listen.port": 1, "openings.share": 0.5}, "openings.share = 0.5: unsupported by g"),
    ({"listen.port": 1, "games.0.legal_moves": "a:b"}, "games.0.legal_moves = 'a:b': a game"),
    ({"games.0.env": "driver:no_such_module:X"}, "cannot import no_such_module"),
    ({"games.0.env": "driver:math:floor"}, ""),
    ({"games.0.env": "driver:fractions:Fraction"}, "no play method"),
    ({"games.0.env": KUHN, "games.0.args": {"a": 1}}, "its constructor accepts"),
    ({"listen.host": "0.0.0.0", "listen.port": 1}, "set token_env"),
    ({"games.0.env": KUHN, "eval.every": 1, "eval.opponents": ["expert"]}, "it plays only"),
    (
        {"games.0.env": KUHN, "eval.exploitability.every": 1},
        "no game of this run can be solved exactly",
    ),
]


def answer(changes: dict[str, Any]) -> str:
    """Return the error line for a changed config; empty if the config is valid."""
    try:
        check(load("tiny_kuhn", {"games.0.args": {}, "games.0.env": "driver", **OFF, **changes}))
    except ConfigError as error:
        return str(error)
    return ""


def test_config_errors_precede_model_loading() -> None:
    rows = [(answer(changes), line) for changes, line in ROWS]
    failed = [(found, line) for found, line in rows if line not in found or "\n" in found]
    assert failed == [] and [found for found, line in rows if found and not line] == []
