"""OpenSpiel's games: `games.env: open_spiel:NAME` or `open_spiel:NAME(parameter=value,...)`.

https://github.com/google-deepmind/open_spiel. A seat sees the game's own strings: the observation
in a game of perfect information, otherwise the information state, which has everything that the
seat has seen and done. Actions have OpenSpiel's names. In games with simultaneous moves, seats move
one after another, without seeing the choices of others in the same turn.
"""

import copy
import importlib
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from os.path import commonprefix
from typing import Any, Self

import pyspiel

from unstable.config import ConfigError, nearest
from unstable.config.plugins import import_users, load_target
from unstable.games.bridges.named import NamedEnvironment, in_line, position, told_apart
from unstable.games.bridges.questions import questions_of
from unstable.games.bridges.sizes import estimated, is_small, shows_all
from unstable.games.chance import weighted
from unstable.games.info import Compact, GameInfo, Payoffs, SmallTree, always, never

Text = Callable[[Any, int], str]
"""Function from an OpenSpiel state and a player to the text that the player sees."""
_Kind = pyspiel.GameType
_PLAYER = re.compile(r"\[[^\[\]]*\]\s*")  # prefix of an action's name, such as its player
_SPACES = re.compile(r"\s+")
_LABEL = re.compile(r".*[:\s]")
_SEED = "rng_seed"  # parameter of games with internal random draws


class OpenSpielEnvironment(NamedEnvironment):
    """One play of the game `spiel`. `environment_class` makes the class of each game.

    `text` names a function(state, player) that returns what a seat sees, instead of the game's own
    string; `rules` is a text.
    """

    spiel: Any
    """OpenSpiel's game."""
    board_is_state: bool
    """True if the game's own string is the whole position."""

    def __init__(self, text: str | None = None, rules: str = "") -> None:
        self.has_games_text = text is None
        if text is None and _string_of(self.spiel) is None:
            raise ConfigError(
                f"games.env = {self.info.name!r}: no observation text; set games.N.args.text to "
                "module:function(state, player)"
            )
        self._text: Text = partial(shown, self.spiel) if text is None else load_target(text)
        super().__init__(rules or rules_of(self.spiel))
        self._state: Any = None

    @property
    def state(self) -> Any:
        """OpenSpiel's state, after `reset`."""
        return self._state

    def reset(self, seats: int, seed: int) -> None:
        """Start a game, and make its first moves of chance."""
        assert seats == self.seats, f"{self.spiel} has {self.seats} seats"
        self._state = self._dealt(seed).new_initial_state()
        self._advance()
        if self._state.is_terminal():
            raise ValueError(f"{self.spiel} ends before any seat moves")

    def _dealt(self, seed: int) -> Any:
        """Return the game with this seed, if it draws by itself."""
        if _SEED not in self.spiel.get_type().parameter_specification:
            return self.spiel
        return with_parameter(self.spiel, _SEED, seed % 2**31)

    def _advance(self) -> None:
        """Make all moves of chance up to the next decision."""
        while self._state.is_chance_node():
            outcomes, probabilities = zip(*self._state.chance_outcomes(), strict=True)
            self._state.apply_action(outcomes[weighted(probabilities)])
        if not self._state.is_terminal():
            self._show()

    def _show(self) -> None:
        """Set the mover's view and its legal actions."""
        self._shown = self._text(self._state, self.mover)
        self._legal = dict(zip(_names(self._state), self._state.legal_actions(), strict=True))

    @property
    def mover(self) -> int:
        return max(0, self._state.current_player())

    @property
    def seats(self) -> int:
        return int(self.spiel.num_players())

    def _play(self, number: int) -> bool:
        """Make a move, and the moves of chance after it."""
        self._state.apply_action(number)
        self._advance()
        return bool(self._state.is_terminal())

    def whole_state(self) -> str:
        """Return the position or, in games that hide some of it, all moves, those of chance too.

        Moves include those of the current turn that are shown to nobody yet. Games that draw by
        themselves tell what each seat has seen, since their draws are no moves.
        """
        if self.board_is_state:
            return in_line(shown(self.spiel, self._state, self.mover))
        if _draws(self.spiel):
            return " / ".join(in_line(self._text(self._state, seat)) for seat in range(self.seats))
        return " ".join(_history(self._state))

    def payoffs(self) -> list[float]:
        return [float(each) for each in self._state.returns()]

    def scale(self) -> float | None:
        return scale_of(self.spiel)

    def copied(self) -> Self:
        made = copy.copy(self)
        made._state = self._state.clone()
        return made


def environment_class(name: str) -> type[OpenSpielEnvironment]:
    """Return the class of a game; raises `ConfigError` if it cannot be played."""
    game = load_game(name)
    is_open, seen = positions_are_shown(game), partial(shown, game)
    info = replace(
        info_of(game, f"open_spiel:{name}", is_open),
        compact=Compact(f"{name}. Answer with an action.", position),
        questions=() if _string_of(game) is None else questions_of(game, name, seen, _names),
    )
    own = {"spiel": game, "info": info, "__doc__": f"One play of {name}."}
    own["board_is_state"] = is_open or (_is_perfect(game) and estimated(game) == float("inf"))
    return type("OpenSpiel", (OpenSpielEnvironment,), own)


def info_of(game: Any, name: str, is_open: bool) -> GameInfo:
    """Return a game's metadata, without its texts; `is_open`: `positions_are_shown`."""
    declared = scale_of(game)
    return GameInfo(
        name=name,
        board_shows_all=always,
        perfect_information=always if _hides_nothing(game) else never,
        small_tree=None if _draws(game) else SmallTree(is_open, _fits(game, is_open)),
        payoffs=Payoffs(
            lambda env: env.payoffs(),
            lambda env: declared or 1.0,
            zero_sum=game.get_type().utility == _Kind.Utility.ZERO_SUM,
        ),
    )


def _hides_nothing(game: Any) -> bool:
    """Return whether a game has perfect information, and its seats move in turn."""
    is_open = game.get_type().information == _Kind.Information.PERFECT_INFORMATION
    return is_open and not _by_turns(game)


def _is_perfect(game: Any) -> bool:
    """Return whether a game's own string should hide nothing from the mover."""
    return _hides_nothing(game) and _string_of(game) is not None


def positions_are_shown(game: Any) -> bool:
    """Return whether equal texts mean equal positions; False for games too large to solve."""
    if not _is_perfect(game) or estimated(game) == float("inf"):
        return False
    return shows_all(game, partial(shown, game))


def _fits(game: Any, is_open: bool) -> Callable[[OpenSpielEnvironment], bool]:
    """Return a function that tests whether the tree can be grown; a custom text may hide state."""
    small = cache(lambda: is_small(game, partial(shown, game) if is_open else None))
    return lambda env: (env.has_games_text or not is_open) and small()


_PATIENCE_S = 30
_TRY = """
import importlib, random, sys
import pyspiel
import open_spiel.python.games
try:
    for module in sys.argv[2:]:
        importlib.import_module(module)
    state, rng = pyspiel.load_game(sys.argv[1]).new_initial_state(), random.Random(0)
    for _ in range(100):
        if state.is_terminal():
            break
        if state.is_simultaneous_node():
            seats = range(state.num_players())
            state.apply_actions([rng.choice(state.legal_actions(seat) or [0]) for seat in seats])
        else:
            state.apply_action(rng.choice(state.legal_actions()))
        str(state)
except Exception as error:
    sys.exit(print(f"{type(error).__name__}: {error}"[:500]) or 1)
"""
"""Script that plays a game at random, in a separate process."""


@cache
def fault_of(name: str, module: str = "") -> str:
    """Return why a game with these parameters cannot be played; empty if it can.

    Plays in a separate process, since OpenSpiel crashes or hangs with some parameters.
    """
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _TRY, name, *filter(None, [module])],
            capture_output=True,
            errors="replace",
            text=True,
            timeout=_PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        return f"a random game timed out after {_PATIENCE_S} s"
    if tried.returncode < 0:
        return f"its process crashed with signal {-tried.returncode}"
    return _SPACES.sub(" ", tried.stdout or tried.stderr).strip()[:200] if tried.returncode else ""


def load_game(name: str) -> Any:
    """Load OpenSpiel's game, with simultaneous moves made sequential; raises `ConfigError`."""
    place = f"target = {f'open_spiel:{name}'!r}"
    module, colon, _ = name.partition("(")[0].rpartition(":")
    if module:  # a user's module, which registers the game
        import_users(module, place)
        name = name.removeprefix(module + colon)
    short = name.partition("(")[0]
    if short.startswith("python_"):
        importlib.import_module("open_spiel.python.games")  # registers games in Python
    if short not in (known := pyspiel.registered_names()):
        raise ConfigError(f"{place}: unknown OpenSpiel game; {nearest(short, known)}")
    if name != short and (reason := fault_of(name, module)):
        raise ConfigError(f"{place}: OpenSpiel rejects it ({reason}); fix its parameters")
    try:
        game = pyspiel.load_game(name)
    except (pyspiel.SpielError, RuntimeError, ValueError) as error:
        reason = _SPACES.sub(" ", str(error))[:200]
        raise ConfigError(f"{place}: OpenSpiel rejects it ({reason}); fix its parameters") from None
    kind = game.get_type()
    if kind.dynamics == _Kind.Dynamics.MEAN_FIELD:
        raise ConfigError(f"{place}: mean field games are unsupported; choose another game")
    if kind.dynamics == _Kind.Dynamics.SIMULTANEOUS:
        game = pyspiel.convert_to_turn_based(game)
    return game


def with_parameter(game: Any, name: str, value: Any) -> Any:
    """Return a game with another value of a parameter."""
    return pyspiel.load_game(game.get_type().short_name, game.get_parameters() | {name: value})


def _by_turns(game: Any) -> bool:
    """Return whether the game was converted from one with simultaneous moves."""
    return bool(game.get_type().short_name.startswith("turn_based"))


def _draws(game: Any) -> bool:
    """Return whether a game draws by itself, instead of by moves of chance."""
    return bool(game.get_type().chance_mode == _Kind.ChanceMode.SAMPLED_STOCHASTIC)


def _string_of(game: Any) -> Callable[[Any, int], str] | None:
    """Return the method of a state that gives a seat's information; None if there is none."""
    kind = game.get_type()
    is_open = kind.information == _Kind.Information.PERFECT_INFORMATION
    if kind.provides_observation_string and (is_open or not kind.provides_information_state_string):
        return lambda state, player: state.observation_string(player)
    if kind.provides_information_state_string:
        return lambda state, player: state.information_state_string(player)
    return (lambda state, player: str(state)) if is_open and not _by_turns(game) else None


def shown(game: Any, state: Any, player: int) -> str:
    """Return the game's own string for a player."""
    string = _string_of(game)
    assert string is not None, "game without observation text"
    return string(state, player).strip()


def names_of(state: Any, player: int, numbers: Sequence[int]) -> list[str]:
    """Return one-line names of actions, without brackets, and with numbers if names are equal."""
    texts = [state.action_to_string(player, number) for number in numbers]
    names = [_SPACES.sub(" ", _PLAYER.sub("", text)).strip() for text in texts]
    return told_apart(names, numbers)


def _names(state: Any) -> list[str]:
    """Return the names of a state's legal actions."""
    return names_of(state, state.current_player(), state.legal_actions())


def _history(state: Any) -> list[str]:
    """Return the name of each move so far, without the label that it shares with alternatives.

    ["0", "2", "Pass", "Bet"] in Kuhn poker: Deal:0 Deal:2 Pass Bet.
    """
    at, found = state.get_game().new_initial_state(), []
    for move in state.full_history():
        numbers = at.legal_actions()
        names = names_of(at, at.current_player(), numbers)
        label = _LABEL.match(commonprefix(names))
        name = names[numbers.index(move.action)].removeprefix(label[0] if label else "")
        found.append(name.replace(" ", "_"))
        at.apply_action(move.action)
    return found


def rules_of(game: Any) -> str:
    """Return the default rules of a game: its name."""
    return f"You are playing {game.get_type().long_name}: {game} of OpenSpiel."


def scale_of(game: Any) -> float | None:
    """Return the maximum payoff or loss of a seat; None if it is not finite."""
    most = max(abs(game.max_utility()), abs(game.min_utility()))
    return float(most) if 0 < most < float("inf") else None
