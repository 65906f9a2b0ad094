"""Screening: a game is played before any model is loaded, since many an env fails only in play."""

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
from unstable.games.game import Game
from unstable.games.services import lists_legal_moves
from unstable.prompts import observation_text
from unstable.types import Observation

logger = logging.getLogger(__name__)
SECONDS = 0.5
"""The most that the screening of a game may take, but for the step or the reset that it is in."""
_GAMES = 3  # that are played
_MORE_GAMES = 24  # as long as there are seats that have not come to move
_TURNS = 400  # of a game, refused actions included
_RAISES = 20  # at a position, by actions of which none is known to be legal
_TURNS_PER_SEAT = 10  # accepted actions after which each seat should have come to move
_TRIES = 80  # actions by which a form is looked for in a game that does not list its moves
_TOKEN = re.compile(r"\[[^\[\]\n]{1,40}\]")
_WORD = re.compile(r"\w+")
_PLACE = re.compile(r"\d+|\b[A-Z]\b|<[^<>]*>")  # what an action's form leaves open
_USUAL_FORMS = ("[0]", "[0 0]", "[0,0]", "[A0 B0]", "0", "yes", "")


_SAME_TURNS = 20  # of games of one seed that are compared


class FormError(ValueError):
    """Legal moves are listed in another form than the game takes them."""


@dataclass(slots=True)
class _CheckGame:
    """The result of a game that was played as a check."""

    seats: set[int] = field(default_factory=set)  # that came to move
    accepted: int = 0  # actions
    is_over: bool = False  # the game came to its end
    raised: int = 0  # by actions at the position, without one that was accepted
    fault: str | None = None


def screen(config: GameConfig) -> str | None:
    """What is wrong with a game as it is played, in a few words, or None.

    A game that lists its legal moves is played by any of them: whatever it raises is its own fault.
    Else actions are made of what the game's text shows in brackets. An error is then the action's
    fault, unless none of many other actions gets past that position, in each of the games.
    """
    deadline = time.monotonic() + SECONDS
    endless = InvalidMovesConfig(allowed=_TURNS)
    config = config.model_copy(update={"max_turns": _TURNS, "invalid_moves": endless})
    first = Game(config, seed=0)
    idle = set(range(config.seats))
    if missing := first.env.missing():
        return f"never comes to move: {_named(missing)}, which the env does not make"
    listed = _lists_moves(first)
    trials: list[_CheckGame] = []
    for seed in range(_MORE_GAMES):
        if (seed >= _GAMES and not idle) or time.monotonic() > deadline:
            break
        trials.append(trial := _play(config, seed, listed, deadline))
        idle -= trial.seats
        if listed and trial.fault:
            return trial.fault
    if faults := [trial.fault for trial in trials if trial.fault]:
        return faults[0] if len(faults) == len(trials) else None
    is_whole = listed and len(trials) == _MORE_GAMES and all(each.is_over for each in trials)
    turns = sum(trial.accepted for trial in trials)
    if idle and (is_whole or turns >= _TURNS_PER_SEAT * config.seats):
        return f"never came to move in {len(trials)} games: {_named(idle)}"
    return None


@contextmanager
def _caught(config: GameConfig) -> Iterator[list[BaseException]]:
    """Drop what a game prints, and collect and log what it raises."""
    faults: list[BaseException] = []
    with redirect_stdout(io.StringIO()), faults_to(faults.append):
        yield faults
    for fault in faults:
        logger.debug("%s raises %r", config.env, fault)


def ignores_seed(config: GameConfig) -> bool:
    """Whether games of one seed differ, by the same random actions: the env draws elsewhere."""
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
    """Draw a legal move, or where the game lists none one of the actions that its text suggests."""
    listed = lists_legal_moves(game.config) and game.legal_moves()
    return rng.choice(listed or actions(seen, rng))


def pays_losers(config: GameConfig) -> bool:
    """Return whether a random game's pay-offs order two seats against the env's own rewards."""
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
    """How the env takes an action, found by playing: in brackets, [3], or bare, 3.

    As its class says (`Environment.action_form`), or as the game lists its legal moves; without a
    list as it accepts what its text shows and words of it, in brackets where it accepts both
    forms. Raises `FormError` where what is listed is refused and the other form of it accepted.
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
    # Without a clue: TextArena's own games take brackets, and so does one whose text shows some.
    return "bare" if accepted or (":" in config.env and not shows) else "brackets"


def _listed_form(game: Game) -> Literal["brackets", "bare"]:
    move = game.legal_moves()[0]
    form: Literal["brackets", "bare"] = "brackets" if "[" in move else "bare"
    other = move.strip("[]") if form == "brackets" else f"[{move}]"
    if not _is_accepted(game, move) and _is_accepted(game, other):
        raise FormError(f"lists {move!r}, which the game refuses, and it takes {other!r}")
    return form


def _is_accepted(game: Game, action: str) -> bool:
    """Whether the env takes the action; where it raises, the game is not to be played on."""
    with _caught(game.config):
        game.observe()
        return not game.step(action).invalid
    game.done = True
    return False


def fitting_seats(config: GameConfig) -> int | None:
    """A number of seats with which the game passes the screening, if any.

    The largest smaller one; or else one or two more, as where a game of three is given two.
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
    """Whether this variant of the game does: a board that is not shown lists none."""
    game.observe()
    try:
        return lists_legal_moves(game.config) and bool(game.legal_moves())
    except ValueError:
        return False


def _play(config: GameConfig, seed: int, listed: bool, deadline: float) -> _CheckGame:
    """One game, to its end, a fault or the deadline."""
    trial = _CheckGame()
    turns = 0
    with _caught(config) as faults:  # of a reset, an observation, or a list of legal moves
        rng, game = random.Random(seed), Game(config, seed)
        while not game.done and time.monotonic() < deadline and trial.fault is None:
            observation, turns = game.observe(), game.turns
            trial.seats.add(game.seat)
            if game.observe() != observation:
                trial.fault = f"observe() called twice after {turns} turns shows two positions"
                break
            moves = game.legal_moves() if listed else actions(observation, rng)
            if listed and game.observe() != observation:
                trial.fault = f"legal_moves() after {turns} turns changes the position"
            elif moves:
                game = _step(trial, game, rng.choice(moves), listed)
            else:
                trial.fault = (
                    f"seat {game.seat} is to move after {turns} turns and has no legal move"
                )
        trial.is_over = game.done
    for error in faults:
        trial.fault = f"after {turns} turns it raises {described(error)}"
    return trial


def _step(trial: _CheckGame, game: Game, action: str, listed: bool) -> Game:
    """The game after the action, or where it was before one that raises."""
    with _caught(game.config) as faults:
        if not game.step(action).invalid:
            trial.accepted, trial.raised = trial.accepted + 1, 0
        return game
    trial.raised += 1
    if listed or trial.raised == _RAISES:
        what = f"the legal move {action}" if listed else "any action"
        what += f" of seat {game.seat} after {game.turns} turns"
        trial.fault = f"{what} raises {described(faults[0])}"
        return game
    return game.again()


def actions(observation: Observation, rng: random.Random) -> list[str]:
    """What the game's text shows in brackets, and usual forms, as they stand or with numbers."""
    text = "\n".join(
        [observation.rules, *observation.events[-3:], observation.board, observation.notice]
    )
    forms = [*_TOKEN.findall(text), rng.choice(_USUAL_FORMS)]
    form = rng.choice(forms)
    most = rng.choice((3, 9, 30))
    return [form, _PLACE.sub(lambda _: str(rng.randint(0, most)), form)]
