"""What a config's game offers: its env, legal moves, teams, prompt style, questions."""

from unstable.config import ConfigError, GameConfig, shown
from unstable.config.plugins import load_target, registered
from unstable.games.catalog.table import EXACT_GAMES, info_of
from unstable.games.environment import Environment
from unstable.games.info import Compact, GameInfo, Question, RuleBot
from unstable.games.textarena import TextArenaEnvironment, env_class
from unstable.prompts import CHAT, PromptStyle, load_style


def make_environment(config: GameConfig) -> Environment:
    """A new env, not yet reset; raises what its constructor raises."""
    cls = env_class(config)
    if not issubclass(cls, Environment):
        return TextArenaEnvironment(config, game_info(config))
    env = cls(**config.args)
    if config.info is not None:
        env.info = game_info(config)
    return env


def game_info(config: GameConfig, field: str = "games") -> GameInfo:
    """What is known of a config's game besides its env: `games.N.info`, or what the catalogue says.

    Raises `ConfigError`, with the game's `field`, where the config names what is no `GameInfo`.
    """
    if config.info is not None:
        found = load_target(config.info, f"{field}.info")
        if not isinstance(found, GameInfo):
            raise ConfigError(
                f"{field}.info = {shown(config.info)}: a {type(found).__name__}; name a GameInfo "
                "(from unstable.games import GameInfo)"
            )
        return found
    cls = env_class(config)
    return cls.info if issubclass(cls, Environment) else info_of(cls)


def rule_bot(info: GameInfo) -> RuleBot | None:
    """The rule bot of a game: its own, or the installed one of its name (`unstable.rules`)."""
    if info.rules is not None or info.name not in registered("rules"):
        return info.rules
    bot: RuleBot = registered("rules")[info.name].load()
    return bot


def lists_legal_moves(config: GameConfig) -> bool:
    """Whether `Game.legal_moves` answers for this game."""
    if config.legal_moves is not None:
        return True
    cls = env_class(config)
    if issubclass(cls, Environment):
        return cls.lists_moves
    info = game_info(config)
    return info.legal_moves is not None or info.prints_moves


def with_teams(config: GameConfig) -> GameConfig:
    """The config with the teams that its env declares, for those who see no env."""
    if config.teams:
        return config
    return config.model_copy(update={"teams": make_environment(config).teams(config.seats)})


def prompt_style(config: GameConfig) -> PromptStyle:
    """The game's prompt style; `answer` where it is `compact` and the game cannot be put so.

    It asks for actions as the env takes them (`action_form`; in brackets until that is found), and
    reads them by the game's parser.
    """
    if config.is_driven:
        return CHAT.of_game(config)
    fits = config.prompt != "compact" or compact(config, make_environment(config)) is not None
    return load_style(config.prompt if fits else "answer").of_game(config)


def compact(config: GameConfig, env: Environment) -> Compact | None:
    """The short form of a game that is played in the style `compact`, if it has one."""
    found = env.info.compact if config.prompt == "compact" else None
    return found if found is not None and found.fits(env.raw) else None


def game_questions(config: GameConfig) -> tuple[Question, ...]:
    """Questions about the game's rules; they read positions as the style `compact` puts them."""
    env = make_environment(config)
    return () if compact(config, env) is None else env.info.questions


def can_be_solved(config: GameConfig) -> bool:
    """Whether the variant's whole tree can be grown."""
    return why_not_solved(config) is None


def why_not_solved(config: GameConfig) -> str | None:
    """Why the variant's tree cannot be grown, to follow the game's name; None where it can."""
    if config.is_driven:
        return (
            "is played by a program outside; give an Environment that is the same game as "
            "games.N.env"
        )
    env = make_environment(config)
    tree = env.info.small_tree
    if tree is None:
        return (
            "is not known as a game that can be solved exactly; these can, some in small variants "
            f"alone: {EXACT_GAMES}, and your own by small_tree in its games.N.info"
        )
    if tree.fits(env.raw):
        return None
    fitting = f"set {tree.variants}" if tree.variants else "give a smaller one"
    return (
        f"can be solved exactly, but not in this variant (args = {shown(config.args)}), which is "
        f"too large; {fitting}"
    )


def is_zero_sum(config: GameConfig) -> bool:
    """False for a game that is known to pay its seats more, or less, than 0 together."""
    known = game_info(config).payoffs
    return config.payoffs is not None or known is None or known.zero_sum


def programs(config: GameConfig) -> list[str]:
    """The kinds of opponents that play a game as it comes, the strongest first."""
    info = game_info(config)
    play = {
        "expert": info.expert is not None,
        "rules": rule_bot(info) is not None,
        "random": lists_legal_moves(config),
    }
    return [kind for kind, plays in play.items() if plays]
