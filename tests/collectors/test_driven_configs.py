"""What a config says of games that programs outside play, and the lines about mistakes in it."""

import pytest

from unstable.commands.prepare import check
from unstable.config import ConfigError, load

OFF = {"eval.exploitability.every": 0}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "games.0.env = 'driver', but listen.port = 0"),
        (
            {"listen.port": 1, "listen.token_env": "NO_SUCH_VARIABLE"},
            "is not set; export the",
        ),
        (
            {"listen.port": 1, "sampling.moves": "legal"},
            "sampling.moves = legal: a program",
        ),
        ({"listen.port": 1, "openings.share": 0.5}, "openings.share = 0.5: a program outside"),
        ({"listen.port": 1, "games.0.legal_moves": "a:b"}, "games.0.legal_moves = 'a:b': a prog"),
        ({"games.0.env": "driver:no_such_module:X"}, "cannot import no_such_module"),
        ({"games.0.env": "driver:math:floor"}, None),
        ({"games.0.env": "driver:fractions:Fraction"}, "has no method play"),
        (
            {"games.0.env": "driver:examples.drivers.kuhn:Kuhn", "games.0.args": {"a": 1}},
            "its constructor takes",
        ),
        ({"listen.host": "0.0.0.0", "listen.port": 1}, "set token_env"),
        (
            {
                "games.0.env": "driver:examples.drivers.kuhn:Kuhn",
                "eval.every": 1,
                "eval.opponents": ["expert"],
            },
            "it plays only",
        ),
        (
            {
                "games.0.env": "driver:examples.drivers.kuhn:Kuhn",
                "eval.exploitability.every": 1,
            },
            "no game of this run can be solved exactly",
        ),
    ],
)
def test_a_mistake_is_one_line_before_a_model_is_loaded(changes, line):
    try:
        check(load("tiny_kuhn", {"games.0.args": {}, "games.0.env": "driver", **OFF, **changes}))
    except ConfigError as error:
        assert line is not None and line in str(error), str(error)
        assert "\n" not in str(error)
    else:
        assert line is None
