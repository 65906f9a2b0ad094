"""Test checks of games and opponents: unplayable ones are rejected in one line, others pass."""

from tests.helpers.games import COUNT_UP, LISTED, MIXED
from tests.helpers.hostile import adapter_files
from tests.helpers.mistakes import line_of
from tests.helpers.rows import every_row
from unstable.collectors.players import player_class
from unstable.config import (
    CheckpointOpponent,
    ExpertOpponent,
    FixedOpponent,
    GameConfig,
    OpenAIOpponent,
    PythonOpponent,
    RandomOpponent,
    RulesOpponent,
)
from unstable.games.check import check_game
from unstable.games.textarena import known_ids


def takes_anything(text):
    return text


@every_row(
    "config, words",
    ({"env": "TicTacTo-v0"}, "did you mean 'TicTacToe-v0'?"),
    ({"env": "TicTacToe-v0-train"}, "unsupported suffix; use 'TicTacToe-v0'"),
    ({"env": "TicTacToe-v0-raw"}, "TicTacToe-v0-raw': unsupported suffix"),
    ({"env": "nowhere.to:Find"}, "games.env = 'nowhere.to:Find': cannot import nowhere.to"),
    ({"env": f"{__name__}:Missing"}, "has no Missing"),
    ({"env": "unstable.config:GameConfig"}, "not a subclass of textarena.Env"),
    ({"env": f"{__name__}:takes_anything"}, "not a subclass of textarena.Env"),
    ({"env": "Nim-v0", "args": {"pile": 3}}, "games.args = {'pile': 3}: "),
    ({"env": "TicTacToe-v0", "seats": 3}, "games.seats = 3: The number of players has to be 2"),
    ({"env": COUNT_UP, "seats": 4}, "games.seats = 4: at most 3"),
    ({"env": "Klondike-v0"}, "syntax error in the game's file"),
    ({"env": "CharacterConclave-v0", "seats": 3}, "any action of seat 0 after 0 turns raises"),
    ({"env": "UsedCar-v0-balanced"}, "needs textarena.envs.UsedCar, which is not installed; "),
    ({"env": "UsedCarNegotiation-v0"}, "needs a file that its package lacks; choose"),
    ({"env": "GuessWho-v0", "seats": 1}, "set OPENROUTER_API_KEY"),
    ({"prompt": "unstable.nowhere:style"}, "games.prompt = 'unstable.nowhere:style'"),
    ({"prompt": "anser"}, "use one of answer, compact, think, or module:function"),
    (
        {"parser": "bracket"},
        "use one of auto, brackets, exact, bare, plain, boxed, raw, or module:function",
    ),
    ({"legal_moves": f"{__name__}:nothing"}, "games.legal_moves"),
    ({"legal_moves": f"{__name__}:COUNT_UP"}, "not callable"),
)
def test_unplayable_config_is_rejected_in_one_line(config, words, monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    said = line_of(check_game, GameConfig(**config))
    assert words in said
    assert len(said) < 400


@every_row("env, seats", *LISTED, (COUNT_UP, 1), (COUNT_UP, 3))
def test_playable_games_pass_check(env, seats):
    check_game(GameConfig(env=env, seats=seats))


def test_known_ids_exclude_variants():
    assert "TicTacToe-v0" in known_ids() and "TicTacToe-v0-train" not in known_ids()
    assert len(known_ids()) > 200


def check_opponent(opponent: FixedOpponent, game: GameConfig) -> None:
    player_class(opponent).check(opponent, game, "opponents.fixed.0")


class Bot:
    def __call__(self, observation):
        return "[0]"


@every_row(
    "opponent, env, words",
    (RandomOpponent(), "Chopsticks-v0", "set games.legal_moves"),
    (RulesOpponent(), "Chopsticks-v0", "; choose another opponent"),
    (RulesOpponent(), "Nim-v0", "; choose another opponent, such as expert or random"),
    (ExpertOpponent(), "Codenames-v0", "; choose another opponent, such as rules or random"),
    (RulesOpponent(), "Nim-v0", "in Nim-v0: it plays only Codenames, Iterated"),
    (ExpertOpponent(), "PigDice-v0", "'expert' in PigDice-v0: it plays only TicTacToe, "),
    (PythonOpponent(target="nowhere:Bot"), "Nim-v0", "fixed.0.target = 'nowhere:Bot'"),
    (PythonOpponent(target=f"{__name__}:Missing"), "Nim-v0", "has no Missing"),
    (OpenAIOpponent(model="m", api_key_env="UNSET_KEY"), "Nim-v0", "'UNSET_KEY': not set"),
)
def test_unplayable_opponents_are_rejected_in_one_line(opponent, env, words):
    assert words in line_of(check_opponent, opponent, GameConfig(env=env))


def test_playable_opponents_pass_check(monkeypatch, tmp_path):
    monkeypatch.setenv("A_KEY", "anything")
    adapter_files(tmp_path)
    monkeypatch.setattr("unstable.collectors.players.openai.silence", lambda _: None)
    for opponent in (
        RandomOpponent(),
        ExpertOpponent(),
        PythonOpponent(target=f"{__name__}:Bot"),
        OpenAIOpponent(model="m", api_key_env="A_KEY"),
        CheckpointOpponent(path=str(tmp_path)),
    ):
        check_opponent(opponent, GameConfig())
    check_opponent(RandomOpponent(), MIXED[-1])
