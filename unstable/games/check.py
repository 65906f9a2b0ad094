"""Checks that a game can be played, by trying it before any model is loaded."""

import inspect
import io
import logging
import random
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from functools import partial
from typing import Any, NoReturn

from unstable.config import ConfigError, GameConfig, MovesKept, nearest, shown
from unstable.config.plugins import (
    check_call,
    check_target,
    faults_to,
    load_target,
    refusing,
    time_limit,
)
from unstable.games.catalog.bare import GAME_ENV
from unstable.games.catalog.vetted import PACK
from unstable.games.game import Game, SeatingError
from unstable.games.info import Question
from unstable.games.screen import NO_SERVICE, FormError, action_form, fitting_seats, screen
from unstable.games.services import (
    compact,
    game_info,
    lists_legal_moves,
    make_environment,
    prompt_style,
    tells_state,
    with_teams,
)
from unstable.games.textarena import env_class, id_here, is_env, is_id, known_ids
from unstable.prompts import PARSERS, STYLES, PromptStyle
from unstable.types import Observation

log = logging.getLogger(__name__)
_MAX_REASON = 200  # maximum characters of an env's error in a message
_VERSION = re.compile(r"-v(\d+)(?:-\w+)*$")  # end of TextArena's ids: 0, or 1 in TextArena 1.x


def check_game(config: GameConfig, field: str = "games") -> None:
    """Raise `ConfigError` if the game cannot be played, which is tested by playing it.

    `field` is the game's place in the config, such as games.0. Suppresses an env's output. The
    check has the timeout of a game.
    """
    if config.is_driven:
        return _check_driven(config, field)
    with _tried(config, field):
        _check_targets(config, field)
        _check_start(config, field)
        _check_play(config, field)


def settled(config: GameConfig, field: str = "games") -> GameConfig:
    """Return the game with its env's teams and action form, for code without an env.

    Raises `ConfigError` if the env does not exist or cannot be constructed.
    """
    if config.is_driven:
        return config
    with _tried(config, field), _complaining(config, field):
        _make(config, field)
        try:
            config = with_teams(config)
            if config.action_form == "auto":
                config = config.model_copy(update={"action_form": _form(config, field)})
        except AssertionError as error:
            _complain(f"{field}.seats", config.seats, error)
    return config


def check_env(config: GameConfig, field: str, instead: str) -> None:
    """Raise `ConfigError` for a game without an env; `instead` is the remedy in the message."""
    if config.is_driven:
        raise ConfigError(
            f"{field}.env = {config.env!r}: a game driver plays {config.key}, which therefore has "
            f"no environment; {instead}"
        )


_UNDRIVEN = ("legal_moves", "payoffs", "info", "seating", "isolated")
"""Settings that need an env."""


def _check_driven(config: GameConfig, field: str) -> None:
    """Raise `ConfigError` for a missing or unusable driver, or for settings that need an env."""
    for name in _UNDRIVEN:
        if value := getattr(config, name):
            raise ConfigError(
                f"{field}.{name} = {shown(value)}: a game driver plays {config.key}, which "
                f"therefore has no environment; remove {field}.{name}"
            )
    if config.driver is None:
        return
    found = load_target(config.driver, f"{field}.env")
    place = f"{field}.env = {config.env!r}"
    if isinstance(found, type):
        remedy = "set games.N.args to arguments that its constructor accepts"
        check_call(place, found, remedy, **config.args)
        found = getattr(found, "play", None)
    if not callable(found):
        raise ConfigError(f"{place}: no play method; use a class with play(game), or a function")


def _form(config: GameConfig, field: str) -> str:
    try:
        return action_form(config)
    except FormError as error:
        place = "env" if config.legal_moves is None else "legal_moves"
        given = shown(getattr(config, place))
        raise ConfigError(f"{field}.{place} = {given}: {error}; list that form") from error


@contextmanager
def _tried(config: GameConfig, field: str) -> Iterator[None]:
    """Check an env's id and class, then limit the context to a game's timeout."""
    over = (
        f"{field}.env = {config.env!r}: its check timed out after {field}.timeout = "
        f"{config.timeout:g} s; fix the environment or increase {field}.timeout"
    )
    try:
        with redirect_stdout(io.StringIO()), time_limit(config.timeout, over):
            _check_id(config.env, field)
            _check_class(config, field)
            yield
    except TimeoutError as error:
        raise ConfigError(over) from error


def _check_class(config: GameConfig, field: str) -> None:
    try:
        cls = env_class(config)
    except ConfigError as error:
        cause = error.__cause__
        if isinstance(cause, LookupError | SyntaxError) or (cause and ":" not in config.env):
            _complain(f"{field}.env", config.env, cause)
        place, problem = f"{field}.env = {config.env!r}: ", str(error)
        _, found, rest = problem.partition("target = ")
        raise ConfigError(f"{field}.env = {rest}" if found else place + problem) from error
    if not is_env(cls):
        raise ConfigError(
            f"{field}.env = {config.env!r}: not a subclass of textarena.Env or Environment; "
            "use such a class"
        )


def _make(config: GameConfig, field: str) -> None:
    """Raise `ConfigError` if an env does not accept its arguments."""
    try:
        make_environment(config)
    except TypeError as error:
        _complain(f"{field}.args", config.args, error)


def _complaining(config: GameConfig, field: str) -> AbstractContextManager[None]:
    """Return a context that turns an env's errors into `ConfigError`, about its args if any."""
    name = "args" if config.args else "env"
    return faults_to(partial(_complain, f"{field}.{name}", getattr(config, name)))


def _check_start(config: GameConfig, field: str) -> None:
    """Construct and reset the env, and observe its first turn."""
    with _complaining(config, field):
        _make(config, field)
        try:
            game = Game(config, seed=0)
        except SeatingError as error:
            raise ConfigError(
                f"{field}.seating = {shown(config.seating)}: {error}; return the environment's "
                "number of each seat"
            ) from error
        except AssertionError as error:
            _complain(f"{field}.seats", config.seats, error)
        _try_info(config, field, game)
        observation = game.observe()
    _try_targets(config, field, game, observation)


def _check_play(config: GameConfig, field: str) -> None:
    if (fault := screen(config)) is None:
        return
    remedy = "fix the environment" if ":" in config.env else "choose another game"
    if fault.startswith(NO_SERVICE):
        remedy = "start the service, or export its key"
    elif (seats := fitting_seats(config)) is not None:
        raise ConfigError(
            f"{field}.seats = {config.seats}: in {config.key}, {fault}; set it to {seats}"
        )
    raise ConfigError(f"{field}.env = {shown(config.env)}: {fault}; {remedy}")


def _check_id(env: str, field: str) -> None:
    if ":" in env or is_id(env):
        return
    known = known_ids()
    for suffix in ("-train", "-raw"):
        if env.removesuffix(suffix) in known:
            raise ConfigError(
                f"{field}.env = {env!r}: unsupported suffix; use {env.removesuffix(suffix)!r}"
            )
    if (version := _VERSION.search(env)) and (version[1] == "0") == bool(GAME_ENV):
        here, ending = ("1.x", "-v1") if GAME_ENV else ("0.7", "-v0")
        remedy = repr(found) if (found := id_here(env)) else f"an id that ends in {ending}"
        raise ConfigError(
            f"{field}.env = {env!r}: not an id of TextArena {here}, which is installed; use "
            f"{remedy}, or write an Environment (docs/adding_a_game.md)"
        )
    ours = {each.config.env.partition(":")[2]: each.config.env for each in PACK}
    hint = f"did you mean {ours[env]!r}?" if env in ours else nearest(env, known)
    raise ConfigError(f"{field}.env = {env!r}: unknown TextArena id; {hint}")


def _check_targets(config: GameConfig, field: str) -> None:
    for name, target, built_in in (
        ("prompt", config.prompt, STYLES),
        ("parser", config.parser, ["auto", *PARSERS]),
    ):
        if target not in built_in:
            known = ", ".join(built_in)
            remedy = f"use one of {known}, or module:function"
            also = PromptStyle if name == "prompt" else None
            check_target(f"{field}.{name}", target, remedy, "given", also=also)
    for name in ("legal_moves", "payoffs", "seating"):
        if (own := getattr(config, name)) is not None:
            check_target(f"{field}.{name}", own, "use module:function(env)", "env")
    if config.info is not None:
        game_info(config, field)


def _try_info(config: GameConfig, field: str, game: Game) -> None:
    """Raise `ConfigError` if a function of a custom `GameInfo` fails at the first turn."""
    if config.info is None:
        return
    info, raw, place = game_info(config), game.env.raw, f"{field}.info = {shown(config.info)}: its"
    if (short := compact(config, game.env)) is not None:
        _try(f"{place} compact.position", partial(short.position, raw), "a string")
    if info.legal_moves is not None:
        _try(f"{place} legal_moves", partial(info.legal_moves, raw), "strings, at least one")
    if info.expert is not None:
        _try(f"{place} expert.moves", partial(info.expert.moves, raw), "a probability per move")
    for index, question in enumerate(info.questions):
        wanted = "a question and its correct answers, as strings"
        _try(f"{place} questions.{index}.draw", partial(_drawn, question), wanted)


def _drawn(question: Question) -> list[str]:
    """Return a question's text and its correct answers, with a fixed seed."""
    asked, answers = question.draw(random.Random(0))
    return [asked, *answers] if answers else []


def _try_targets(config: GameConfig, field: str, game: Game, observation: Observation) -> None:
    """Raise `ConfigError` if a custom prompt, parser or legal moves fail at the first turn."""
    trials: list[tuple[str, str | None, Callable[[], Any], str]] = [
        ("prompt", config.prompt, lambda: prompt_style(config).body(observation), "a string"),
        ("parser", config.parser, lambda: load_target(config.parser)("[0]"), "a string or None"),
        ("legal_moves", config.legal_moves, game.legal_moves, "strings, at least one"),
    ]
    for name, target, call, wanted in trials:
        if target is not None and ":" in target:
            _try(f"{field}.{name} = {shown(target)}:", call, wanted, " at the first turn")


def _try(place: str, call: Callable[[], Any], wanted: str, when: str = "") -> None:
    """Raise `ConfigError` that begins with `place` if a call fails or returns another type."""
    with refusing(place, when):
        given = call()
    if inspect.iscoroutine(given):
        given.close()  # avoids Python's warning "never awaited"
    is_right = isinstance(given, str) or (given is None and wanted == "a string or None")
    if not wanted.startswith("a string"):
        texts = list(given) if isinstance(given, list | tuple | dict) else []
        is_right = bool(texts) and all(isinstance(text, str) for text in texts)
    if not is_right:
        raise ConfigError(f"{place} returned {shown(given)}; return {wanted}")


def check_constrained(game: GameConfig, field: str = "games") -> None:
    """Raise `ConfigError` if models cannot be constrained to the game's legal moves.

    `field` is the game's place in the config, such as games.0.
    """
    prefix = f"eval.constrained = true in {game.key}"
    if not lists_legal_moves(game):
        raise ConfigError(
            f"{prefix}: the game does not list its legal moves; "
            f"set {field}.legal_moves to module:function(env), or eval.constrained to false"
        )
    if (style := prompt_style(game)).reasoning:
        raise ConfigError(
            f"{prefix}: the prompt style {style.name!r} makes the model reason before it moves; "
            f"set {field}.prompt to answer, or eval.constrained to false"
        )


def check_moves(game: GameConfig, moves: MovesKept, field: str = "games") -> None:
    """Raise `ConfigError` if legal moves cannot be recorded with the model's turns.

    `field` is the game's place in the config, such as games.0.
    """
    prefix = f"sampling.moves = {moves!r} in {game.key}"
    if moves != "none" and not lists_legal_moves(game):
        raise ConfigError(
            f"{prefix}: the game does not list its legal moves; set {field}.legal_moves to "
            "module:function(env), or choose another algorithm"
        )
    if moves != "none" and (style := prompt_style(game)).reasoning:
        raise ConfigError(
            f"{prefix}: the prompt style {style.name!r} makes the model reason, so its answers "
            f"are not moves; set {field}.prompt to answer, or choose another algorithm"
        )
    if moves == "state" and not tells_state(game):
        log.warning("%s: the game does not tell its state; the critic sees the seat's view", prefix)
    if moves == "expert" and game_info(game).expert is None:
        raise ConfigError(
            f"{prefix}: the game has no expert; choose another teacher or a game with an expert"
        )


def _complain(path: str, value: Any, error: BaseException) -> NoReturn:
    """Raise `ConfigError` from an error, which may be of any type, with a remedy."""
    if isinstance(error, ConfigError):
        raise error
    reason, remedy = _line(error), "choose another game"
    if "OPENROUTER_API_KEY" in str(error):
        reason, remedy = "API key of the game's OpenRouter judge missing", "set OPENROUTER_API_KEY"
    elif isinstance(error, SyntaxError):
        reason = f"syntax error in the game's file on this Python version ({error.msg})"
        if "f-string" in reason:
            remedy = "use Python 3.12 or choose another game"
    elif isinstance(error, ImportError) and error.name:
        reason = f"the game needs {error.name}, which is not installed"
    elif isinstance(error, FileNotFoundError):
        reason = "the game needs a file that its package lacks"
    elif path.endswith(".args"):
        remedy = "use arguments that the environment's constructor accepts"
    elif path.endswith(".seats"):
        remedy = "use a number of players that the game supports"
    raise ConfigError(f"{path} = {shown(value)}: {reason}; {remedy}") from error


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, KeyError):  # its text is only the key
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}..."
