"""Services of a config's game: its env, legal moves, teams, prompts, questions."""

from typing import Any

from unstable.config import ConfigError, GameConfig, RunConfig, shown
from unstable.config.plugins import load_target, registered
from unstable.games.catalog.bare import GAME_ENV
from unstable.games.catalog.table import EXACT_GAMES, info_of
from unstable.games.environment import Environment
from unstable.games.info import Compact, GameInfo, Question, RuleBot
from unstable.games.textarena import TextArenaEnvironment, env_class
from unstable.games.textarena1 import BareTextArenaEnvironment, prints_moves
from unstable.prompts import CHAT, OWN, PromptBuilder, PromptStyle, load_style


def make_environment(config: GameConfig) -> Environment:
    """Construct an env before its reset; errors of its constructor propagate."""
    cls = env_class(config)
    if issubclass(cls, GAME_ENV):
        return BareTextArenaEnvironment(config, game_info(config))
    if not issubclass(cls, Environment):
        return TextArenaEnvironment(config, game_info(config))
    env = cls(**config.args)
    if config.info is not None:
        env.info = game_info(config)
    return env


def game_info(config: GameConfig, field: str = "games") -> GameInfo:
    """Return the metadata of a config's game: `games.N.info`, or the env's or catalog's.

    Raises `ConfigError`, with the game's `field`, if the config names an object of another type.
    """
    if config.info is not None:
        found = load_target(config.info, f"{field}.info")
        if not isinstance(found, GameInfo):
            raise ConfigError(
                f"{field}.info = {shown(config.info)}: {type(found).__name__} instead of GameInfo; "
                "name a GameInfo (from unstable.games import GameInfo)"
            )
        return found
    cls = env_class(config)
    return cls.info if issubclass(cls, Environment) else info_of(cls)


def rule_bot(info: GameInfo) -> RuleBot | None:
    """Return the rule bot of a game: its own, or the one installed under its name, or None."""
    if info.rules is not None or info.name not in registered("rules"):
        return info.rules
    bot: RuleBot = registered("rules")[info.name].load()
    return bot


def lists_legal_moves(config: GameConfig) -> bool:
    """Return whether `Game.legal_moves` is available for this game."""
    if config.legal_moves is not None:
        return True
    cls = env_class(config)
    if issubclass(cls, Environment):
        return cls.lists_moves
    info = game_info(config)
    if info.legal_moves is not None or info.prints_moves:
        return True
    return issubclass(cls, GAME_ENV) and prints_moves(config)


def tells_state(config: GameConfig) -> bool:
    """Return whether the game tells its whole state; else a critic of it sees the seat's view."""
    if config.is_driven:
        return False
    cls, info = env_class(config), game_info(config)
    if info.state is not None or (info.small_tree is not None and info.small_tree.is_open):
        return True
    return not issubclass(cls, Environment) or cls.whole_state is not Environment.whole_state


def with_teams(config: GameConfig) -> GameConfig:
    """Return the config with the teams that its env declares, for code without an env."""
    if config.teams:
        return config
    return config.model_copy(update={"teams": make_environment(config).teams(config.seats)})


def prompt_style(config: GameConfig) -> PromptStyle:
    """Return the game's prompt style; `answer` if it is `compact` but the game has no such form,
    or `OWN` if its env writes the prompts.

    It requests actions in the env's form (`action_form`; in brackets until it is detected), and
    reads them by the game's parser.
    """
    if config.is_driven:
        return CHAT.of_game(config)
    if config.prompt != "compact" or compact(config, env := make_environment(config)) is not None:
        return load_style(config.prompt).of_game(config)
    return (OWN if env.writes_prompt else load_style("answer")).of_game(config)


def prompts_of(config: RunConfig, game: GameConfig, tokenizer: Any) -> PromptBuilder:
    """Return the builder of a game's prompts in play."""
    limit = config.sampling.max_prompt_tokens
    template, thoughts = config.model.template_arguments, config.sampling.thoughts
    builder = PromptBuilder(tokenizer, prompt_style(game), template, limit, thoughts)
    needed = (thoughts.budget or 0) + len(builder.encode_ending())
    if thoughts.budget is not None and needed >= config.sampling.max_tokens:
        raise ConfigError(
            f"sampling.thoughts.budget = {thoughts.budget}: no token left for the action after "
            f"{needed - thoughts.budget} tokens that end the thought; set sampling.max_tokens to "
            f"more than {needed}"
        )
    return builder


def compact(config: GameConfig, env: Environment) -> Compact | None:
    """Return the compact form of a game; None without one, or in another prompt style."""
    found = env.info.compact if config.prompt == "compact" else None
    return found if found is not None and found.fits(env.raw) else None


def game_questions(config: GameConfig) -> tuple[Question, ...]:
    """Return questions about the game's rules, which have the format of the style `compact`."""
    env = make_environment(config)
    return () if compact(config, env) is None else env.info.questions


def can_be_solved(config: GameConfig) -> bool:
    """Return whether the variant's whole tree can be grown."""
    return why_not_solved(config) is None


def why_not_solved(config: GameConfig) -> str | None:
    """Return why the variant's tree cannot be grown, to follow its name; None if it can."""
    if config.is_driven:
        return "is played by a game driver; set games.N.env to an Environment with the same rules"
    env = make_environment(config)
    tree = env.info.small_tree
    if tree is None:
        return (
            f"cannot be solved exactly; use one of {EXACT_GAMES} (some only in small variants), or "
            "declare small_tree in games.N.info"
        )
    if tree.fits(env.raw):
        return None
    fitting = f"set {tree.variants}" if tree.variants else "use a smaller variant"
    return (
        f"can be solved exactly, but this variant (args = {shown(config.args)}) is too large; "
        f"{fitting}"
    )


def is_zero_sum(config: GameConfig) -> bool:
    """Return False if the payoffs of the game are known to have a total other than 0."""
    known = game_info(config).payoffs
    return config.payoffs is not None or known is None or known.zero_sum


def programs(config: GameConfig) -> list[str]:
    """Return the kinds of built-in opponents of a game, strongest first."""
    info = game_info(config)
    play = {
        "expert": info.expert is not None,
        "rules": rule_bot(info) is not None,
        "random": lists_legal_moves(config),
    }
    return [kind for kind, plays in play.items() if plays]
