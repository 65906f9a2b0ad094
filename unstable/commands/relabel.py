"""`--relabel N`: the games of a run beside the same games in other words, to compare its play.

The env `relabelled:SEED:ENV` is the game ENV in the words of a seed (docs/games.md).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count, islice
from statistics import fmean
from typing import NamedTuple

from unstable.config import ConfigError, GameConfig, RunConfig, shown
from unstable.games.textarena import env_class
from unstable.records.text import against, bounds
from unstable.types import EvalScore, Exploitability

_PREFIX = "relabelled:"
_IN_OWN_WORDS = ("info", "legal_moves")  # fields of functions that are written for a game's words
Ends = tuple[float, float]
"""The lower and the upper end of a figure."""


class Wordings(NamedTuple):
    """A game by the names of its entries: in the words that the run plays, and in others."""

    game: str
    own: list[str]
    other: list[str]


def with_other_words(
    config: RunConfig, number: int, games: Sequence[str] = ()
) -> tuple[RunConfig, list[Wordings]]:
    """Return the config of the `games` alone, each also under `number` seeds, and their names.

    Empty `games` are all. Seeds count from 1, without the run's own seeds. Raises
    `ConfigError` for a game that has no other words.
    """
    found: dict[str, list[GameConfig]] = {}  # entries that differ in their words alone
    for index, game in enumerate(config.games):
        if not games or game.key in games:
            _check(game, f"games.{index}", number)
            settings = repr(game.model_dump(exclude={"env", "name", "weight"}))
            found.setdefault(f"{_named(game.env)[1]} {settings}", []).append(game)
    entries, words = list[GameConfig](), list[Wordings]()
    for own in found.values():
        env = _named(own[0].env)[1]
        known = {_named(game.env)[0] for game in own}
        seeds = islice((seed for seed in count(1) if seed not in known), number)
        title = own[0].name or env
        other = [
            own[0].model_copy(
                update={"env": f"{_PREFIX}{seed}:{env}", "name": f"{_PREFIX}{seed}:{title}"}
            )
            for seed in seeds
        ]
        entries += [*own, *other]
        words.append(Wordings(title, [each.key for each in own], [each.key for each in other]))
    exact = {*config.eval.exploitability.games}
    measured = [name for each in words if exact & {*each.own} for name in [*each.own, *each.other]]
    return config.updated({"games": entries, "eval.exploitability.games": measured}), words


def _named(env: str) -> tuple[int | None, str]:
    """Return the seed of a relabelled env, else None, and the env in its own words."""
    if not env.startswith(_PREFIX):
        return None, env
    seed, _, own = env.removeprefix(_PREFIX).partition(":")
    return (int(seed) if seed.isdecimal() else None), own


def _check(game: GameConfig, field: str, number: int) -> None:
    place = f"--relabel = {number}"
    for name in _IN_OWN_WORDS:
        if (target := getattr(game, name)) is not None:
            raise ConfigError(
                f"{place}: {field}.{name} = {shown(target)} has the game's own words; set it to "
                "null, or leave out --relabel"
            )
    try:
        env_class(GameConfig(env=f"{_PREFIX}1:{_named(game.env)[1]}"))
    except ConfigError as error:
        raise ConfigError(f"{place}: {field}.env = {shown(game.env)}: {error}") from None


def exploited(words: Sequence[Wordings], found: Iterable[Exploitability]) -> list[str]:
    """Return a line per measured game: its exploitability in the run's words and in others."""
    return _lines("exploitability", words, {each.env: (each.low, each.high) for each in found})


def scored(words: Sequence[Wordings], scores: Iterable[EvalScore]) -> list[str]:
    """Return a line per opponent, temperature and game: its score in the run's words and others."""
    found: dict[str, dict[str, Ends]] = {}
    for each in scores:
        opponent = against(each.opponent, each.key.mode)
        found.setdefault(opponent, {})[each.env] = (each.score, each.score)
    each_line = (_lines(f"score against {name}", words, ends) for name, ends in found.items())
    return [*chain.from_iterable(each_line)]


def _lines(what: str, words: Sequence[Wordings], ends: Mapping[str, Ends]) -> list[str]:
    """Return a line per game with a figure: in the run's words, and mean and range in others.

    >>> ends = {"Nim": (0.25, 0.25), "1": (1.0, 1.0), "2": (0.5, 0.75)}
    >>> print(*_lines("exploitability", [Wordings("Nim", ["Nim"], ["1", "2"])], ends))
    other words · Nim: exploitability 0.250, in 2 others mean 0.750 to 0.875 (0.500 to 1.000)
    """
    lines = []
    for game, own, other in words:
        if ends.keys() >= {*own, *other}:
            lows, highs = zip(*(ends[name] for name in other), strict=True)
            mean, range_ = bounds(fmean(lows), fmean(highs)), bounds(min(lows), max(highs))
            low, high = (fmean(each) for each in zip(*(ends[name] for name in own), strict=True))
            lines.append(
                f"other words · {game}: {what} {bounds(low, high)}, in {len(other)} others mean "
                f"{mean} ({range_})"
            )
    return lines
