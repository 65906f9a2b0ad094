"""Screening: play of a game before any model is loaded, since many envs fail only in play."""

import io
import logging
import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Literal

from unstable.config import GameConfig, InvalidMovesConfig
from unstable.config.plugins import described, faults_to
from unstable.games.environment import ServiceDownError
from unstable.games.game import Game
from unstable.games.services import lists_legal_moves
from unstable.prompts import observation_text
from unstable.types import Observation

logger = logging.getLogger(__name__)
SECONDS = 0.5
"""Time limit of a game's screening; it does not interrupt a running step or reset."""
NO_SERVICE = "a service that the game calls does not answer"
_GAMES = 3  # games to play
_MORE_GAMES = 24  # games to play while some seats have not moved
_TURNS = 400  # turns of a game, refused actions included
_RAISES = 20  # consecutive errors at a position that count as the game's fault
_TURNS_PER_SEAT = 10  # accepted actions after which each seat should have moved
_TRIES = 80  # actions tried to detect the action form without a list of moves
_TOKEN = re.compile(r"\[[^\[\]\n]{1,40}\]")
_QUOTED = re.compile(r"'([^'\n]{1,40})'")
_WORD = re.compile(r"\w+")
_PLACE = re.compile(r"\d+|\b[A-Z]\b|<[^<>]*>")  # variable parts of an action's form
_USUAL_FORMS = ("[0]", "[0 0]", "[0,0]", "[A0 B0]", "0", "yes", "")


_SAME_TURNS = 20  # turns to compare between games of one seed


class FormError(ValueError):
    """Raised if a game lists its legal moves in another form than it accepts."""


@dataclass(slots=True)
class _CheckGame:
    """Result of a game that was played as a check."""

    seats: set[int] = field(default_factory=set)  # seats that moved
    accepted: int = 0  # number of accepted actions
    is_over: bool = False  # the game reached its end
    raised: int = 0  # consecutive actions at which the env raised
    fault: str | None = None
    is_down: bool = False  # a service of the env does not answer


def screen(config: GameConfig) -> str | None:
    """Play a game at random and describe its fault in a few words, or return None.

    If the game lists its legal moves, play draws from them, and any error is the game's fault.
    Otherwise actions derive from texts in brackets, and an error is the action's fault, unless
    every game reaches a position at which many other actions raise, too.
    """
    deadline = time.monotonic() + SECONDS
    endless = InvalidMovesConfig(allowed=_TURNS)
    config = config.model_copy(update={"max_turns": _TURNS, "invalid_moves": endless})
    first = Game(config, seed=0)
    idle = set(range(config.seats))
    if missing := first.env.missing():
        return f"the environment does not create {_named(missing)}"
    listed = _lists_moves(first)
    trials: list[_CheckGame] = []
    for seed in range(_MORE_GAMES):
        if (seed >= _GAMES and not idle) or time.monotonic() > deadline:
            break
        trials.append(trial := _play(config, seed, listed, deadline))
        idle -= trial.seats
        if (listed or trial.is_down) and trial.fault:
            return trial.fault
    if faults := [trial.fault for trial in trials if trial.fault]:
        return faults[0] if len(faults) == len(trials) else None
    is_whole = listed and len(trials) == _MORE_GAMES and all(each.is_over for each in trials)
    turns = sum(trial.accepted for trial in trials)
    if idle and (is_whole or turns >= _TURNS_PER_SEAT * config.seats):
        return f"{_named(idle)} never moved in {len(trials)} games"
    return None


@contextmanager
def _caught(config: GameConfig) -> Iterator[list[BaseException]]:
    """Suppress a game's output, and collect and log its errors."""
    faults: list[BaseException] = []
    with redirect_stdout(io.StringIO()), faults_to(faults.append):
        yield faults
    for fault in faults:
        logger.debug("%s raises %r", config.env, fault)


def ignores_seed(config: GameConfig) -> bool:
    """Return whether games with equal seeds and actions differ, so that the env ignores seeds."""
    for seed in range(_GAMES):
        with _caught(config):
            one, other, rng = Game(config, seed), Game(config, seed), random.Random(seed)
            while not one.done and one.turns < _SAME_TURNS:
                seen = one.observe()
                if other.done or seen != other.observe():
                    return True
                action = _random_action(one, seen, rng)
                one.step(action)
                other.step(action)
    return False


def _random_action(game: Game, seen: Observation, rng: random.Random) -> str:
    """Draw a legal move, or, if the game lists none, an action that its text suggests."""
    listed = lists_legal_moves(game.config) and game.legal_moves()
    return rng.choice(listed or suggested(game, seen, rng))


def suggested(game: Game, seen: Observation, rng: random.Random) -> list[str]:
    """Return two actions by the examples in a text: in quotes if the env takes bare actions."""
    quotes = game.env.action_form == "bare"
    return actions(seen, rng, form=_QUOTED) if quotes else actions(seen, rng)


def pays_losers(config: GameConfig) -> bool:
    """Return whether a random game's payoffs order two seats opposite to the env's rewards."""
    deadline = time.monotonic() + SECONDS
    for seed in range(_GAMES):
        with _caught(config):
            game, rng = Game(config, seed), random.Random(seed)
            while not game.done and time.monotonic() < deadline:
                seen = game.observe()
                game.step(_random_action(game, seen, rng))
            rewards = game.own_rewards() if game.done and game.forfeit is None else None
            ends = list(zip(rewards or [], game.payoffs, strict=rewards is not None))
            if any((one[0] - other[0]) * (one[1] - other[1]) < 0 for one in ends for other in ends):
                return True
    return False


def action_form(config: GameConfig) -> Literal["brackets", "bare"]:
    """Return the form of an action that the env takes: in brackets, [3], or bare, 3.

    The form comes from the env's class (`Environment.action_form`) or its list of legal moves.
    Without a list, it is detected by playing words of the game's text; brackets if the env accepts
    both. Raises `FormError` if the env refuses a listed move but accepts its other form.
    """
    endless = InvalidMovesConfig(allowed=_TURNS)
    config = config.model_copy(update={"max_turns": _TURNS, "invalid_moves": endless})
    game = Game(config, seed=0)
    if game.env.action_form is not None:
        return game.env.action_form
    if _lists_moves(game):
        return _listed_form(game)
    rng, accepted, shows = random.Random(0), set[str](), False
    for _ in range(_TRIES):
        if game.done:
            game = Game(config, seed=len(accepted))
        observation = game.observe()
        text = observation_text(observation)
        shows |= bool(_TOKEN.search(text))
        shown = rng.choice([*actions(observation, rng), *rng.choices(_WORD.findall(text) or [""])])
        bare = shown.strip("[]")
        for action in (f"[{bare}]", bare):
            if action and not game.done and _is_accepted(game, action):
                accepted.add("brackets" if _TOKEN.fullmatch(action) else "bare")
        if "brackets" in accepted:
            return "brackets"
    # By default brackets, except for users' envs whose texts show none.
    return "bare" if accepted or (":" in config.env and not shows) else "brackets"


def _listed_form(game: Game) -> Literal["brackets", "bare"]:
    move = game.legal_moves()[0]
    form: Literal["brackets", "bare"] = "brackets" if "[" in move else "bare"
    other = move.strip("[]") if form == "brackets" else f"[{move}]"
    if not _is_accepted(game, move) and _is_accepted(game, other):
        raise FormError(f"lists {move!r}, but the game accepts only {other!r}")
    return form


def _is_accepted(game: Game, action: str) -> bool:
    """Return whether the env accepts an action; ends the game if the env raises."""
    with _caught(game.config):
        game.observe()
        return not game.step(action).invalid
    game.done = True
    return False


def fitting_seats(config: GameConfig) -> int | None:
    """Return a number of seats with which the game passes the screening, or None.

    Tries smaller numbers from the largest on, then one and two more.
    """
    deadline = time.monotonic() + 3 * SECONDS
    for seats in (*range(config.seats - 1, 0, -1), config.seats + 1, config.seats + 2):
        if time.monotonic() > deadline:
            break
        other = config.model_copy(update={"seats": seats})
        with _caught(config):
            if screen(other) is None:
                return seats
    return None


def _named(seats: set[int]) -> str:
    return f"seat{'s' * (len(seats) > 1)} {', '.join(map(str, sorted(seats)))}"


def _lists_moves(game: Game) -> bool:
    """Return whether this variant of the game lists its moves: a hidden board lists none."""
    game.observe()
    listed = False
    with _caught(game.config):  # a game of TextArena 1.x is played to find out
        listed = lists_legal_moves(game.config)
    try:
        return listed and bool(game.legal_moves())
    except ValueError:
        return False


def _play(config: GameConfig, seed: int, listed: bool, deadline: float) -> _CheckGame:
    """Play one game, up to its end, a fault or the deadline."""
    trial = _CheckGame()
    turns = 0
    with _caught(config) as faults:  # of reset, observe or legal_moves
        rng, game = random.Random(seed), Game(config, seed)
        while not game.done and time.monotonic() < deadline and trial.fault is None:
            observation, turns = game.observe(), game.turns
            trial.seats.add(game.seat)
            if game.observe() != observation:
                trial.fault = f"two calls of observe() after {turns} turns return unequal results"
                break
            moves = game.legal_moves() if listed else suggested(game, observation, rng)
            if listed and game.observe() != observation:
                trial.fault = f"legal_moves() after {turns} turns changes the position"
            elif moves:
                game = _step(trial, game, rng.choice(moves), listed)
            else:
                trial.fault = f"seat {game.seat} has no legal move after {turns} turns"
        trial.is_over = game.done
    for error in faults:
        trial.fault = f"after {turns} turns the environment raises {described(error)}"
    return trial


def _step(trial: _CheckGame, game: Game, action: str, listed: bool) -> Game:
    """Return the game after the action, or before it if the env raises and the game continues."""
    with _caught(game.config) as faults:
        if not game.step(action).invalid:
            trial.accepted, trial.raised = trial.accepted + 1, 0
        return game
    trial.raised += 1
    trial.is_down = isinstance(faults[0], ServiceDownError)
    if trial.is_down:
        trial.fault = f"{NO_SERVICE} ({described(faults[0])})"
    elif listed or trial.raised == _RAISES:
        what = f"the legal move {action}" if listed else "any action"
        what += f" of seat {game.seat} after {game.turns} turns"
        trial.fault = f"{what} raises {described(faults[0])}"
    return game if trial.fault else game.again()


def actions(
    observation: Observation, rng: random.Random, form: re.Pattern[str] = _TOKEN
) -> list[str]:
    """Return an example of an action and one with random numbers; `form` matches examples."""
    text = "\n".join(
        [observation.rules, *observation.events[-3:], observation.board, observation.notice]
    )
    example = rng.choice([*form.findall(text), rng.choice(_USUAL_FORMS)])
    most = rng.choice((3, 9, 30))
    return [example, _PLACE.sub(lambda _: str(rng.randint(0, most)), example)]
