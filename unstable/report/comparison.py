"""Comparison of runs by their last evaluations, game by game if they played equal games."""

from collections.abc import Sequence
from typing import NamedTuple

from unstable.config import GameConfig
from unstable.records.games import read_games
from unstable.records.reading import Measured, Skipped
from unstable.records.text import fixed, interval, number, signed
from unstable.report.run import Run, against
from unstable.report.verdict import compared_exploitability
from unstable.types import BASE, PAST, WORTH, GameResult, PlayerId
from unstable.types.intervals import Interval, difference_interval, mean_interval
from unstable.types.metrics import EvalKey, ExploitKey, part, sampling_mode

MOST_NAMED = 3
"""Maximum number of other runs that the headline compares one by one with the first."""
ALONE = "alone"
CAPTION = (
    "Differences from the first run: the mean difference of paired games if both runs played the "
    "same deals from the same seats, else the difference of two scores. Parentheses: 95 % "
    "confidence interval over games; another seed of the same config may differ more."
)
_Game = tuple[int, tuple[int, ...]]  # seed, and seats of the run's version


class MeasureDifference(NamedTuple):
    """Measure of two runs, and the difference of the second from the first."""

    what: str
    first: str
    second: str
    difference: str
    games: str
    sign: int  # 1: the second is better, -1: the first, 0: no significant difference


def differences(first: Run, second: Run) -> list[MeasureDifference]:
    """Compare two runs by each evaluation, and each exploitability, that both have."""
    scores = {each.key: each for each in first.summary.latest}
    return [
        *(
            _of_scores(first, scores[each.key], second, each)
            for each in second.summary.latest
            if each.key in scores
            and each.key.opponent != PAST  # differs between runs
            and _is_same(first, second, each.key.env, each.key.opponent)
        ),
        *_exploitabilities(first, second),
    ]


def headline(runs: Sequence[Run]) -> str:
    """Return sentences on which run is better, one for each comparison with the first run."""
    first, *others = runs
    if len(others) > MOST_NAMED:
        return f"{len(runs)} runs compared"
    said = [_said(first, other, differences(first, other)) for other in others]
    return " ".join(said)


def difference_rows(runs: Sequence[Run]) -> list[list[str]]:
    """Return rows of a table: other run, measure, both figures, difference, games, better run."""
    first, *others = runs
    return [
        [
            *(other.label, each.what, each.first, each.second, each.difference, each.games),
            {1: other.label, -1: first.label, 0: "–"}[each.sign],
        ]
        for other in others
        for each in differences(first, other)
    ]


def _said(first: Run, other: Run, found: Sequence[MeasureDifference]) -> str:
    names = f"{first.label} and {other.label}"
    if not found:
        return f"{names} have no common evaluation."
    better, worse = (sum(each.sign == sign for each in found) for sign in (1, -1))
    if better and worse:
        of = f"{better} of {len(found)} measures, worse on {worse}"
        return f"{names}: {other.label} is better on {of}."
    if not better and not worse:
        return f"No significant difference between {names}."
    ahead, behind = (other, first) if better else (first, other)
    count = max(better, worse)
    by = "" if count == len(found) else f" on {count} of {len(found)} measures"
    return f"{ahead.label} is better than {behind.label}{by}."


def _is_same(first: Run, second: Run, env: str, opponent: str = "") -> bool:
    """Return whether the game, and the opponent, of a name are equal in both runs."""

    def what(run: Run) -> list[object]:
        games = [game for game in run.config.games if part(game.key) == env]
        known = {part(key): each.player for key, each in run.config.fixed_opponents.items()}
        model = run.config.model
        base = (model.name, model.quantize) if opponent == BASE.name else None
        return [*map(identity, games), known.get(opponent), base]

    return what(first) == what(second)


def identity(game: GameConfig) -> tuple[object, ...]:
    """Return the settings of a game that must be equal for two games to be comparable."""
    return game.env, game.args, game.seats, game.teams, game.payoffs


def _of_scores(
    first: Run, own: Measured[EvalKey], second: Run, other: Measured[EvalKey]
) -> MeasureDifference:
    before, after = _scores(first, own), _scores(second, other)
    shared = [game for game in after if game in before]
    distinct = min(len(shared), *(int(each.figures["distinct"]) for each in (own, other)))
    if shared and len(shared) >= min(len(before), len(after)) / 2:
        gains = [after[game] - before[game] for game in shared]
        found = mean_interval(gains, -1.0, 1.0, distinct)
        games = f"{len(shared)}, paired"
    else:
        found = difference_interval(*(_interval(each) for each in (own, other)))
        games = ", ".join(number(each.figures["games"]) for each in (own, other))
    return MeasureDifference(
        what=f"against {against(first, own.key)}",
        first=f"{interval(*_interval(own))} at version {own.version}",
        second=f"{interval(*_interval(other))} at version {other.version}",
        difference=interval(*found, signed),
        games=games,
        sign=1 if found.low > 0 else -1 if found.high < 0 else 0,
    )


def _interval(each: Measured[EvalKey]) -> Interval:
    return Interval(*(each.figures[name] for name in ("score", "low", "high")))


def _scores(run: Run, found: Measured[EvalKey]) -> dict[_Game, float]:
    """Return the scores of an evaluation's games; {} if they were not recorded."""
    path = run.folder.games("eval", found.version)
    scores = {}
    games = read_games(path, Skipped()) if path.is_file() else ()  # `survey` counts damaged games
    for result in games:
        key, side = _key(result, found.version)
        if side and key == found.key:
            scores[result.spec.seed, side] = WORTH[result.standing(side[0])]
    return scores


def _key(result: GameResult, version: int) -> tuple[EvalKey, tuple[int, ...]]:
    """Return the key of a game's evaluation, and the seats of the version in it."""
    policy, seats = PlayerId.policy(version), result.spec.seats
    side = tuple(number for number, seat in enumerate(seats) if seat.player == policy)
    others = [seat.player.name for seat in seats if seat.player != policy]
    temperature = seats[side[0]].temperature if side else 1.0
    opponent = others[0] if others else ALONE
    return EvalKey(result.spec.env, opponent, sampling_mode(temperature)), side


def _exploitabilities(first: Run, second: Run) -> list[MeasureDifference]:
    """Compare the last exploitabilities in games that both runs have measured."""
    measured = first.summary.exploitability
    found = []
    for key, (*_, other) in second.summary.exploitability.items():
        if key in measured and _is_same(first, second, key.env):
            own = measured[key][-1]
            (low, high), ends = _ends(own), _ends(other)
            sign, why = compared_exploitability((low, high), ends)
            each = MeasureDifference(
                what=f"exploitability in {key.env}",
                first=f"{fixed(high, 3)} at version {own.version}",
                second=f"{fixed(ends[1], 3)} at version {other.version}",
                difference=why,
                games="",
                sign=sign,
            )
            found.append(each)
    return found


def _ends(found: Measured[ExploitKey]) -> tuple[float, float]:
    return found.figures["low"], found.figures["high"]
