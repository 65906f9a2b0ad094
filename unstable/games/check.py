"""Whether a game can be played, found out before any model is loaded: by trying it."""

from typing import Any

import textarena

from unstable.config import ConfigError, GameConfig, nearest
from unstable.games.envs import env_class, known_ids, make_env
from unstable.games.game import Game
from unstable.games.services import lists_legal_moves, prompt_style
from unstable.plugins import check_target
from unstable.prompts import PARSERS, STYLES, PromptStyle

_MAX_REASON = 200  # characters of an env's own error that are quoted


def check_game(config: GameConfig, field: str = "games") -> None:
    """Raise `ConfigError` where the game cannot be played; makes the env and tries one step.

    `field` is the game's place in the config, such as games.0.
    """
    _check_id(config.env, field)
    try:
        cls = env_class(config)
    except ConfigError as error:
        raise ConfigError(f"{field}.env{str(error).removeprefix('target')}") from error
    except Exception as error:  # an env's module may raise anything, here and below
        raise _complaint(f"{field}.env", config.env, error) from error
    if not (isinstance(cls, type) and issubclass(cls, textarena.Env)):
        raise ConfigError(
            f"{field}.env = {config.env!r}: not a textarena.Env; give the class of one"
        )
    _check_targets(config, field)
    try:
        make_env(config)
    except TypeError as error:
        raise _complaint(f"{field}.args", config.args, error) from error
    except Exception as error:
        raise _complaint(f"{field}.env", config.env, error) from error
    try:
        game = Game(config, seed=0)
    except AssertionError as error:
        raise _complaint(f"{field}.seats", config.seats, error) from error
    except Exception as error:
        raise _complaint(f"{field}.env", config.env, error) from error
    try:
        game.observe()
        game.step("")
    except Exception as error:
        raise _complaint(f"{field}.env", config.env, error) from error


def _check_id(env: str, field: str) -> None:
    if ":" in env or env in (known := known_ids()):
        return
    for suffix in ("-train", "-raw"):
        if env.removesuffix(suffix) in known:
            raise ConfigError(
                f"{field}.env = {env!r}: leave {suffix} off; write {env.removesuffix(suffix)!r}"
            )
    raise ConfigError(f"{field}.env = {env!r}: no such TextArena id; {nearest(env, known)}")


def _check_targets(config: GameConfig, field: str) -> None:
    for name, target, built_in in (
        ("prompt", config.prompt, STYLES),
        ("parser", config.parser, ["auto", *PARSERS]),
    ):
        if target not in built_in:
            known = ", ".join(built_in)
            remedy = f"known: {known}, or module:function"
            check_target(f"{field}.{name}", target, remedy, also=PromptStyle)
    if config.legal_moves is not None:
        check_target(f"{field}.legal_moves", config.legal_moves, "give module:function(env)")
    if config.payoffs is not None:
        check_target(f"{field}.payoffs", config.payoffs, "give module:function(env)")


def check_constrained(game: GameConfig, field: str = "games") -> None:
    """Raise `ConfigError` where models cannot be held to the game's legal moves.

    `field` is the game's place in the config, such as games.0.
    """
    prefix = f"eval.constrained = true in {game.key}"
    if not lists_legal_moves(game):
        raise ConfigError(
            f"{prefix}: the game does not list its legal moves; "
            f"set {field}.legal_moves to module:function(env), or eval.constrained to false"
        )
    if prompt_style(game).reasoning:
        raise ConfigError(
            f"{prefix}: the prompt style {game.prompt!r} has the model reason before it moves; "
            f"set {field}.prompt to answer, or eval.constrained to false"
        )


def _complaint(path: str, value: Any, error: Exception) -> ConfigError:
    reason, remedy = _line(error), "choose another game"
    if isinstance(error, LookupError) and "nltk" in str(error):
        reason = "the game needs NLTK's word lists"
        remedy = "run: python -m nltk.downloader words averaged_perceptron_tagger_eng"
    elif "OPENROUTER_API_KEY" in str(error):
        reason, remedy = "the game asks a judge at OpenRouter", "set OPENROUTER_API_KEY"
    elif isinstance(error, SyntaxError):
        reason = f"its file does not parse on this Python ({error.msg})"
        remedy = "use Python 3.12 or choose another game"
    elif path.endswith(".args"):
        remedy = "give the arguments of the env's constructor"
    elif path.endswith(".seats"):
        remedy = "give the number of players that the game takes"
    return ConfigError(f"{path} = {value!r}: {reason}; {remedy}")


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}..."
