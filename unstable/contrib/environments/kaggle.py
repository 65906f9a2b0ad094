"""Games of Kaggle's Game Arena: `games.env: kaggle:NAME` or `kaggle:NAME(parameter=value,...)`.

https://github.com/Kaggle/kaggle-environments. A game's harness there writes the prompts of the
public leaderboard and reads the answers; OpenSpiel has the rules. Seats with simultaneous moves
move one after another, without seeing the choices of others in the same turn.
"""

import importlib
import inspect
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from copy import copy
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Self

import pyspiel

from unstable.config import ConfigError, nearest
from unstable.config.plugins import described
from unstable.games.bridges.open_spiel import (
    OpenSpielEnvironment,
    fault_of,
    info_of,
    positions_are_shown,
    with_parameter,
)
from unstable.games.environment import EnvStep
from unstable.types import Observation

_PACKAGE = "kaggle_environments"
_ARENA = f"{_PACKAGE}.envs.open_spiel_env.open_spiel_env"
_GAMES = f"{_PACKAGE}.envs.open_spiel_env.games"
_MODEL_CALLS = ("litellm", "litellm.exceptions")
"""Modules that the package needs only to call models."""
_SEEDS = ("seed", "rng_seed")  # parameters of games that deal by themselves
_ODDS = "calcOddsNumSims"  # simulations for odds in poker's replays, which no prompt shows


class KaggleEnvironment(OpenSpielEnvironment):
    """One play of a game. `environment_class` makes the class of each game.

    A seat sees the prompt of the harness; with `list_moves`, the legal moves follow. An action is
    an answer that the harness can read, or a legal move.
    """

    writes_prompt = True
    action_form = "bare"
    harness: ModuleType
    seeded_by: str
    """Parameter that the game's seed sets in games that deal by themselves; empty in others."""

    def __init__(self, list_moves: bool = False) -> None:
        super().__init__()
        self._lists = list_moves
        self._moves: tuple[tuple[str, ...], ...] = ((),) * self.seats  # of each seat
        self._choices: tuple[int, ...] = ()  # of seats that have chosen in a simultaneous turn
        self._seen: dict[str, Any] = {}

    def _dealt(self, seed: int) -> Any:
        self._game = self.spiel
        if self.seeded_by:
            self._game = with_parameter(self.spiel, self.seeded_by, seed % 2**31)
        return self._game

    @property
    def mover(self) -> int:
        if not self._state.is_simultaneous_node():
            return super().mover
        return _choosers(self._state)[len(self._choices)]

    def _show(self) -> None:
        """Set the mover's observation for the harness, its legal moves and its prompt."""
        self._seen = self._observation()
        self._legal = {}
        for number, move in self.harness.get_legal_moves(self._seen).items():
            self._legal.setdefault(move, number)
        self._write()

    def _observation(self) -> dict[str, Any]:
        """Return the mover's observation in the form of Kaggle's environment."""
        state, seat = self._state, self.mover
        legal = state.legal_actions(seat)
        seen = {
            "observationString": state.observation_string(seat),
            "currentPlayer": state.current_player(),
            "playerId": seat,
            "isTerminal": False,
            "legalActions": legal,
            "legalActionStrings": [state.action_to_string(seat, number) for number in legal],
        }
        if not getattr(state, "hides_state_from_agents", bool)():
            seen["serializedGameAndState"] = pyspiel.serialize_game_and_state(self._game, state)
        return seen

    def _write(self, **refused: str | None) -> None:
        """Set the prompt, which is another one after a refused answer."""
        said = [*self._moves[self.mover]]
        self._shown = self.harness.generate_prompt(self._seen, said, **refused)
        if self._lists:
            self._shown += f"\n\nLegal moves: {' | '.join(self._legal)}"

    def observe(self) -> Observation:
        return Observation(seat=self.mover, rules="", events=[], board=self._shown, notice="")

    def step(self, action: str) -> EnvStep:
        """Make the move that the harness reads in an answer, or a legal move."""
        move = action.strip()
        if move not in self._legal:
            read = self._read(move)
            if read.legal_action not in self._legal:
                self._write(previous_response=move, previous_action=read.raw_action)
                why = "no move was found in the answer"
                if read.raw_action is not None:
                    why = f"{read.raw_action} is no legal move."
                return EnvStep(over=False, refused=True, reason=why)
            move = read.legal_action
        return super().step(move)

    def _read(self, answer: str) -> Any:
        """Return the harness's ParseResult of an answer."""
        parse = self.harness.parse_response
        takes = inspect.signature(parse).parameters
        known = {"observation": self._seen} if "observation" in takes else {}
        return parse(answer, [*self._legal], **known)

    def _play(self, number: int) -> bool:
        seat, moves = self.mover, [*self._moves]
        name = next(name for name, own in self._legal.items() if own == number)
        moves[seat] = (*moves[seat], name)
        self._moves = tuple(moves)
        if not self._state.is_simultaneous_node():
            return super()._play(number)
        self._choices = (*self._choices, number)
        seats = _choosers(self._state)
        if len(self._choices) < len(seats):
            self._show()
            return False
        chosen = dict(zip(seats, self._choices, strict=True))
        self._choices = ()
        self._state.apply_actions(
            [chosen.get(each, pyspiel.INVALID_ACTION) for each in range(self.seats)]
        )
        self._advance()
        return bool(self._state.is_terminal())

    def whole_state(self) -> str:
        """Return all moves by number, those of chance too, after the seed of a game that deals."""
        dealt = [self._game.get_parameters()[self.seeded_by]] if self.seeded_by else []
        return " ".join(map(str, [*dealt, *self._state.history(), *self._choices]))

    def teams(self, seats: int) -> tuple[tuple[int, ...], ...]:
        """Return the teams that the game's states name."""
        team_of = getattr(self.spiel.new_initial_state(), "team_of", None)
        if team_of is None:
            return ()
        teams: dict[int, list[int]] = {}
        for seat in range(self.seats):
            teams.setdefault(team_of(seat), []).append(seat)
        return tuple(map(tuple, teams.values()))

    def copied(self) -> Self:
        """Return a copy whose state replays all moves, since not all states can be cloned."""
        made = copy(self)
        made._state = _replayed(self._game, self._state.history())
        return made


def _choosers(state: Any) -> list[int]:
    """Return the seats that choose at a simultaneous turn."""
    return [seat for seat in range(state.num_players()) if state.legal_actions(seat)]


def _replayed(game: Any, moves: Sequence[int]) -> Any:
    """Return the state of a game after these moves of players and chance."""
    state, left, seats = game.new_initial_state(), [*moves], game.num_players()
    while left:
        if state.is_simultaneous_node():
            state.apply_actions(left[:seats])
            del left[:seats]
        else:
            state.apply_action(left.pop(0))
    return state


def environment_class(name: str) -> type[KaggleEnvironment]:
    """Return the class of a game; raises `ConfigError` if it cannot be played."""
    place = f"target = {f'kaggle:{name}'!r}"
    arena, short = _arena(place), name.partition("(")[0]
    known = sorted(path.parent.name for path in arena.GAMES_DIR.glob("*/harness.py"))
    if short not in known:
        raise ConfigError(
            f"{place}: unknown game, or one without a harness; {nearest(short, known)}"
        )
    given = _parameters(name, place)
    base = game = _loaded(arena, name, given, place)
    if (arena.GAMES_DIR / short / f"{short}_proxy.py").is_file():
        game = pyspiel.load_game(f"{short}_proxy", base.get_parameters())
    seeds = _seeds(base)
    if base.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:
        base = pyspiel.convert_to_turn_based(base)
    info = info_of(base, f"kaggle:{name}", not seeds and positions_are_shown(base))
    own = {
        "spiel": game,
        "harness": importlib.import_module(f"{_GAMES}.{short}.harness"),
        "seeded_by": next((each for each in seeds if each not in given), ""),
        "info": replace(info, small_tree=None) if seeds else info,
        "__doc__": f"One play of {name}.",
    }
    return type("Kaggle", (KaggleEnvironment,), own)


def _seeds(game: Any) -> list[str]:
    """Return the parameters that seed a game's deal, if it has no moves of chance."""
    if game.get_type().chance_mode == pyspiel.GameType.ChanceMode.EXPLICIT_STOCHASTIC:
        return []
    return [each for each in _SEEDS if each in game.get_parameters()]


def _arena(place: str) -> Any:
    """Import Kaggle's environment of OpenSpiel's games; raises `ConfigError` if it is missing."""
    try:
        with redirect_stdout(io.StringIO()), _callable_without_models():
            importlib.import_module(f"{_PACKAGE}.core_harness")
            return importlib.import_module(_ARENA)
    except ImportError as error:
        raise ConfigError(
            f"{place}: a package of kaggle is not installed ({described(error)}); run: pip install "
            "--no-deps kaggle-environments"
        ) from None


class _Placeholder(ModuleType):
    """Module with an exception for each name."""

    def __getattr__(self, name: str) -> type[Exception]:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {})


@contextmanager
def _callable_without_models() -> Iterator[None]:
    """Replace modules for calling models within the context, if they are not installed."""
    made = {name: _Placeholder(name) for name in _MODEL_CALLS}
    if _MODEL_CALLS[0] in sys.modules or find_spec(_MODEL_CALLS[0]) is not None:
        made = {}
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]


def _parameters(name: str, place: str) -> dict[str, Any]:
    """Return the parameters in a name; raises `ConfigError` if it cannot be read."""
    try:
        found: dict[str, Any] = pyspiel.game_parameters_from_string(name)
    except pyspiel.SpielError as error:
        raise ConfigError(f"{place}: cannot be read ({error}); write NAME(key=value,...)") from None
    found.pop("name", None)
    return found


def _loaded(arena: Any, name: str, given: dict[str, Any], place: str) -> Any:
    """Load OpenSpiel's game with Kaggle's parameters, except the parameters in the name."""
    short = name.partition("(")[0]
    if short.startswith("python_"):
        importlib.import_module("open_spiel.python.games")
    if (arena.GAMES_DIR / short / f"{short}_proxy.py").is_file():
        importlib.import_module(f"{_GAMES}.{short}.{short}_proxy")
    default = next(each for each in arena.GAMES_LIST if each.partition("(")[0] == short)
    default = default.replace(f"{_ODDS}=1000000", f"{_ODDS}=1")
    parameters = pyspiel.load_game(default).get_parameters() | given
    whole = pyspiel.game_parameters_to_string({"name": short, **parameters})
    if given and (reason := fault_of(whole, _ARENA)):
        raise ConfigError(f"{place}: OpenSpiel rejects it ({reason}); fix its parameters")
    return pyspiel.load_game(short, parameters)
