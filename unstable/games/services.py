"""The services of a game, by its config or its env: the table of the games that are known."""

import math
import re
from collections.abc import Callable
from typing import Any

from unstable.config import GameConfig
from unstable.config.plugins import load_target
from unstable.games.catalog import (
    bargaining,
    cards,
    codenames,
    connect_four,
    dice,
    guessing,
    hanoi,
    kuhn,
    leduc,
    marks,
    nim,
    others,
    secret_mafia,
    tic_tac_toe,
)
from unstable.games.envs import env_class, make_env
from unstable.games.info import Compact, Events, Expert, GameInfo, Mix, Question
from unstable.prompts import PromptStyle, load_style

GAMES: tuple[GameInfo, ...] = (
    tic_tac_toe.INFO,
    tic_tac_toe.WILD,
    connect_four.INFO,
    nim.INFO,
    hanoi.INFO,
    kuhn.INFO,
    kuhn.TEXTARENA,
    leduc.INFO,
    dice.PIG,
    dice.LIARS,
    marks.TAK,
    marks.THREE_PLAYERS,
    guessing.MASTERMIND,
    guessing.NUMBER,
    bargaining.NEGOTIATION,
    bargaining.DILEMMA,
    *cards.GAMES,
    *others.GAMES,
    codenames.INFO,
    secret_mafia.INFO,
)
_BY_ENV = {info.env: info for info in GAMES}
EXPERT_GAMES = ", ".join(info.name for info in GAMES if info.expert is not None)
"""The games with an expert, for messages."""
RULE_GAMES = ", ".join(info.name for info in GAMES if info.rules is not None)
"""The games with a rule bot, for messages."""
EXACT_GAMES = ", ".join(info.name for info in GAMES if info.small_tree is not None)
"""The games that can be solved exactly, some in small variants alone, for messages."""
_NOTHING = GameInfo(env="", name="")
_LIST = re.compile(r"^(?:Available Moves|Valid moves):(.*)$", re.MULTILINE | re.IGNORECASE)


class SeatingError(ValueError):
    """That a user's `games.seating` does not say where the env's players sit."""


def game_info(env: type) -> GameInfo:
    """What is known of an env's class, or else of the nearest one that it extends."""
    return next((_BY_ENV[c.__name__] for c in env.__mro__ if c.__name__ in _BY_ENV), _NOTHING)


def lists_legal_moves(config: GameConfig) -> bool:
    """Whether `legal_moves` answers for this game."""
    if config.legal_moves is not None:
        return True
    info = game_info(env_class(config))
    return info.legal_moves is not None or info.prints_moves


def legal_moves(config: GameConfig, env: Any, board: str) -> list[str]:
    """Actions that the env accepts from the seat to move, who was last shown `board`.

    From a user's function, from the env's state, or from the list that it prints. Raises
    `ValueError` for a game that has none of them.
    """
    if config.legal_moves is not None:
        return list(load_target(config.legal_moves)(env))
    if (listed := game_info(type(env)).legal_moves) is not None:
        return listed(env)
    if found := _LIST.search(board):
        return re.findall(r"\[[^\[\]]+\]", found[1])
    raise ValueError(f"{config.key} does not list its legal moves; set games.legal_moves")


def teams(config: GameConfig, env: Any) -> tuple[tuple[int, ...], ...]:
    """The config's teams, or those that the env's game declares; () where each is for itself."""
    declared = game_info(type(env)).teams
    if config.teams or declared is None:
        return config.teams
    return declared.of(env, config.seats)


def with_teams(config: GameConfig) -> GameConfig:
    """The config with its teams, for those who see no env."""
    if game_info(env_class(config)).teams is None:
        return config
    return config.model_copy(update={"teams": teams(config, make_env(config))})


def seating(config: GameConfig, env: Any) -> list[int]:
    """For each seat the number that an env has given it in its reset.

    Raises `SeatingError` where a user's function does not give each number once.
    """
    same, declared = list(range(config.seats)), game_info(type(env)).teams
    if config.seating is not None:
        numbers = list(load_target(config.seating)(env))
    elif declared is not None and declared.seating is not None:
        numbers = declared.seating(env)
    else:
        return same
    if sorted(numbers) != same:
        raise SeatingError(f"gave {numbers}, which is not each number from 0 to {same[-1]} once")
    return numbers


def payoffs(config: GameConfig, env: Any) -> tuple[list[float], float]:
    """What an env that is over is worth to each number, and the scale that makes outcomes of it.

    By a user's function, as the game declares it, or the env's rewards. Raises `ValueError` for
    anything but a finite number a seat, and where a game of ours exceeds its scale.
    """
    own = game_info(type(env)).payoffs
    if config.payoffs is not None:
        values = load_target(config.payoffs)(env)
    elif own is not None:
        values = own.of(env)
    else:
        rewards = env.state.rewards or {}
        values = [rewards.get(seat, 0.0) for seat in range(config.seats)]
    worth = [float(value) for value in values]
    if len(worth) != config.seats or not all(map(math.isfinite, worth)):
        raise ValueError(f"{config.key} pays {values!r}; it must be a number for each seat")
    if config.payoffs is None and own is not None:
        scale = own.scale(env)
        if max(map(abs, worth)) > scale:
            raise ValueError(f"{config.key} pays {values!r}, more than its scale of {scale:g}")
        return worth, scale if config.payoff_scale is None else config.payoff_scale
    return worth, 1.0 if config.payoff_scale is None else config.payoff_scale


def prompt_style(config: GameConfig) -> PromptStyle:
    """The game's prompt style; `answer` where it is `compact` and the game cannot be put so."""
    fits = config.prompt != "compact" or compact(config, make_env(config)) is not None
    return load_style(config.prompt if fits else "answer")


def compact(config: GameConfig, env: Any) -> Compact | None:
    """The short form of a game that is played in the style `compact`, if it has one."""
    found = game_info(type(env)).compact if config.prompt == "compact" else None
    return found if found is not None and found.fits(env) else None


def game_questions(config: GameConfig) -> tuple[Question, ...]:
    """Questions about the game's rules; they read positions as the style `compact` puts them."""
    has_form = compact(config, make_env(config)) is not None
    return game_info(env_class(config)).questions if has_form else ()


def has_expert(config: GameConfig) -> bool:
    """Whether `expert` answers for this game."""
    return game_info(env_class(config)).expert is not None


def expert(config: GameConfig, env: Any) -> Expert:
    """The expert of an env; `ValueError` for a game without one."""
    found = game_info(type(env)).expert
    if found is None:
        raise ValueError(f"{config.key} has no expert; these games have one: {EXPERT_GAMES}")
    return found


def action_values(env: Any) -> dict[str, float] | None:
    """Outcome of each legal action for the seat to move, if all play perfectly after it.

    None for a game that is not solved.
    """
    solved = game_info(type(env)).action_values
    return None if solved is None else solved(env)


def can_be_solved(config: GameConfig) -> bool:
    """Whether the variant's whole tree can be grown."""
    env = make_env(config)
    small = game_info(type(env)).small_tree
    return small is not None and small.fits(env)


def is_open(config: GameConfig) -> bool:
    """Whether it is known that every seat sees the whole position."""
    small = game_info(env_class(config)).small_tree
    return small is not None and small.is_open


def rules(config: GameConfig) -> Callable[[Any, Events], Mix] | None:
    """The rule bot of a game, if it has one."""
    return game_info(env_class(config)).rules


def programs(config: GameConfig) -> list[str]:
    """The kinds of opponents that play a game as it comes, the strongest first."""
    play = {
        "expert": has_expert(config),
        "rules": rules(config) is not None,
        "random": lists_legal_moves(config),
    }
    return [kind for kind, plays in play.items() if plays]


def board_shows_all(env: Any) -> bool:
    """Whether the board is known to show all that has happened and still matters."""
    shows = game_info(type(env)).board_shows_all
    return shows is not None and shows(env)
