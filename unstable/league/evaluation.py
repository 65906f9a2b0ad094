"""Games of an evaluation, and the scores, payoffs and gains that result from them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from unstable.config import RunConfig
from unstable.types import PAST, WORTH, EvalScore, GameResult, GameSpec, PlayerId, SeatSpec, Side
from unstable.types.intervals import Z, mean, mean_interval, student_interval
from unstable.types.seeds import derive_seed
from unstable.types.tallies import FEWEST

POWER_Z = 0.841621  # 80 % quantile of the standard normal distribution
DIFFERENCE = 0.05
"""Difference of scores that `EvalScore.needed` counts the games for."""
ALONE = "alone"
"""Name of the opponent in games with one seat."""


def evaluation_games(
    config: RunConfig, version: int, past: Sequence[PlayerId] = ()
) -> list[GameSpec]:
    """Return the specs of `eval.games` games per env, opponent and temperature, from every side.

    A side is a seat or a team; each deal is played once from every side, and the number of games is
    rounded up to whole rounds of sides. Specs are ordered by temperature, and depend on `version`
    only through the player's name. Games against `past`, the past versions from the oldest to the
    newest, come last, if `eval.opponents` contains it: the versions share the number of games
    evenly, so that each has at least `FEWEST` games or is the only one, and each has its own deals,
    since one score is of them all. All other opponents have the same deals.
    """
    named = [PlayerId(name) for name in config.eval.opponents if name != PAST]
    past = past if PAST in config.eval.opponents else ()
    specs: list[GameSpec] = []
    for of_past, temperature, game in product((False, True), config.eval.temperature, config.games):
        opponents, games = named, config.eval.games
        if of_past:
            opponents = _spread(past, games // FEWEST)
            games = math.ceil(games / max(1, len(opponents)))
        if len(game.sides) == 1:
            opponents = [] if of_past else [PlayerId(ALONE)]
        deals = math.ceil(games / len(game.sides))
        for (place, opponent), deal, side in product(
            enumerate(opponents), range(deals), game.sides
        ):
            number = place * deals + deal if of_past else deal
            spec = GameSpec(
                game_id=len(specs),
                purpose="eval",
                env=game.key,
                seed=derive_seed(config.seed, "eval", game.key, number),
                seats=_seats(config, version, opponent, side, game.seats, temperature),
                teams=game.teams,
            )
            specs.append(spec)
    return specs


def _spread(players: Sequence[PlayerId], count: int) -> list[PlayerId]:
    """Return `count` players or fewer, but one if any, evenly spaced from the last to the first."""
    count = min(max(1, count), len(players))
    step = (len(players) - 1) / max(1, count - 1)
    return [players[len(players) - 1 - round(step * number)] for number in range(count)]


def rated_games(config: RunConfig, version: int, results: Sequence[GameResult]) -> list[GameResult]:
    """Return the games that ratings use: the version's at the first temperature, unconstrained.

    With another temperature, constrained to legal moves, with votes or with best-of answers the
    version is another player.
    """
    if config.eval.constrained:
        return []
    rated = SeatSpec(player=PlayerId.policy(version), temperature=config.eval.temperature[0])
    return [result for result in results if rated in result.spec.seats]


def _seats(
    config: RunConfig,
    version: int,
    opponent: PlayerId,
    side: Side,
    num_seats: int,
    temperature: float,
) -> tuple[SeatSpec, ...]:
    fixed = config.fixed_opponents.get(opponent.name)
    own = getattr(fixed, "temperature", None)
    other = SeatSpec(player=opponent, temperature=temperature if own is None else own)
    # Greedy answers are identical: votes and best_of have no effect.
    votes, best_of = (config.eval.votes, config.eval.best_of.answers) if temperature else (1, 1)
    policy = SeatSpec(
        player=PlayerId.policy(version), temperature=temperature, votes=votes, best_of=best_of
    )
    return tuple(policy if seat in side else other for seat in range(num_seats))


def game_scores(version: int, results: Sequence[GameResult]) -> dict[int, float]:
    """Return a version's score by game id: 1 for a win, 0.5 for a draw, 0 for a loss."""
    return {
        result.spec.game_id: WORTH[result.standing(own_side(version, result)[0])]
        for result in results
    }


def game_payoffs(version: int, results: Sequence[GameResult]) -> dict[int, float]:
    """Return a version's payoff by game id, as `side_payoff` computes it.

    Games that are only won, drawn or lost are left out.
    """
    found = {each.spec.game_id: side_payoff(each, own_side(version, each)) for each in results}
    return {game: payoff for game, payoff in found.items() if payoff is not None}


def side_payoff(result: GameResult, side: Side) -> float | None:
    """Return a side's mean payoff per seat, in the game's unit; None if the game has no payoffs.

    A forfeit counts as in the exploitability: the side that forfeits loses the most that a seat can
    lose, and the other sides win that in equal parts.
    """
    if result.stakes is None:
        return None
    if result.forfeit is None:
        return mean(result.payoffs[seat] for seat in side)
    others = len(result.spec.sides) - 1
    return -result.stakes if result.forfeit in side else result.stakes / others


def evaluation_scores(
    version: int,
    results: Sequence[GameResult],
    first: Mapping[int, float] | None = None,
    first_payoffs: Mapping[int, float] | None = None,
) -> list[EvalScore]:
    """Return one row per env, opponent and temperature, in the order of their first games.

    `first` and `first_payoffs` are the scores and payoffs, by game id, of the version that gains
    are relative to; None leaves the gains out.
    """
    rows = []
    for key, games in by_opponent(version, results).items():
        row = _with_payoff(_score(version, *key, games), games, first_payoffs)
        rows.append(row if first is None else _with_gain(row, games, first))
    return rows


def by_opponent(
    version: int, results: Sequence[GameResult]
) -> dict[tuple[str, str, float], list[GameResult]]:
    """Return games by env, opponent and temperature, in the order of their first games.

    An opponent's name is `PAST` for a policy version, else the player's name.
    """
    policy = PlayerId.policy(version)
    tables: dict[tuple[str, str, float], list[GameResult]] = {}
    for result in results:
        seats, opponent = result.spec.seats, ALONE
        if others := [seat.player for seat in seats if seat.player != policy]:
            opponent = others[0].name if others[0].version is None else PAST
        temperature = seats[own_side(version, result)[0]].temperature
        tables.setdefault((result.spec.env, opponent, temperature), []).append(result)
    return tables


def _with_gain(
    row: EvalScore, results: Sequence[GameResult], first: Mapping[int, float]
) -> EvalScore:
    scores = game_scores(row.version, results)
    # A game that failed in either evaluation has no pair.
    gains = [score - first[game] for game, score in scores.items() if game in first]
    if not gains:
        return row
    count = min(row.distinct, len(gains))
    gain = mean_interval(gains, -1.0, 1.0, count)
    needed = _needed(_variance(gain.mean, gains, -1.0, 1.0)) if count == len(gains) else None
    return replace(row, gain=gain.mean, gain_low=gain.low, gain_high=gain.high, needed=needed)


def _with_payoff(
    row: EvalScore, results: Sequence[GameResult], first: Mapping[int, float] | None
) -> EvalScore:
    payoffs = game_payoffs(row.version, results)
    if not payoffs:
        return row
    count = math.ceil(row.distinct / len(results[0].spec.sides))
    own, low, high = _deals_interval(results, payoffs, count)
    row = replace(row, payoff=own, payoff_low=low, payoff_high=high)
    before = first or {}
    gains = {game: own - before[game] for game, own in payoffs.items() if game in before}
    if not gains:
        return row
    gain, low, high = _deals_interval(results, gains, count)
    return replace(row, payoff_gain=gain, payoff_gain_low=low, payoff_gain_high=high)


def _deals_interval(
    results: Sequence[GameResult], values: Mapping[int, float], distinct: int
) -> tuple[float, float | None, float | None]:
    """Return the mean of values by game id, and its 95 % interval, or None twice if it has none.

    A deal is one observation (`by_deal`); at most `distinct` observations count as independent.
    """
    observed = by_deal(results, values)
    found = student_interval(observed, min(distinct, len(observed)))
    return (mean(observed), None, None) if found is None else found


def by_deal(results: Sequence[GameResult], values: Mapping[int, float]) -> list[float]:
    """Return the mean per deal of values by game id; games without a value are left out.

    The games of a deal, one from every side, share the luck of the cards.
    """
    deals: dict[int, list[float]] = {}
    for result in results:
        if result.spec.game_id in values:
            deals.setdefault(result.spec.seed, []).append(values[result.spec.game_id])
    return [mean(deal) for deal in deals.values()]


def own_side(version: int, result: GameResult) -> Side:
    """Return the version's seats in a game."""
    policy = PlayerId.policy(version)
    return tuple(n for n, seat in enumerate(result.spec.seats) if seat.player == policy)


def _score(
    version: int, env: str, opponent: str, temperature: float, results: Sequence[GameResult]
) -> EvalScore:
    pairs = [(result, own_side(version, result)) for result in results]
    standings = [result.standing(side[0]) for result, side in pairs]
    turns = [turn for result, side in pairs for seat in side for turn in result.seat_turns(seat)]
    votes = results[0].spec.seats[pairs[0][1][0]].votes
    named = [turn.answer.votes / votes for turn in turns if turn.answer.votes is not None]
    distinct = distinct_games(version, results)
    scores = [WORTH[standing] for standing in standings]
    score = mean_interval(scores, 0.0, 1.0, distinct)
    other = score.mean + (DIFFERENCE if score.mean < 0.5 else -DIFFERENCE)
    spread = sum(_variance(mean, scores, 0.0, 1.0) for mean in (score.mean, other))
    return EvalScore(
        version=version,
        env=env,
        opponent=opponent,
        temperature=temperature,
        games=len(results),
        distinct=distinct,
        wins=standings.count("win"),
        draws=standings.count("draw"),
        losses=standings.count("loss"),
        forfeits=sum(result.forfeit in side for result, side in pairs),
        legal_moves=mean(not turn.invalid for turn in turns),
        votes=votes,
        agreement=mean(named) if named else None,
        score=score.mean,
        low=score.low,
        high=score.high,
        # Assumes another score nearer to 0.5, in unpaired games.
        needed=_needed(spread) if distinct == len(results) else None,
    )


def distinct_games(version: int, results: Sequence[GameResult]) -> int:
    """Return the number of games that are independent observations.

    All games count if any player answers by chance: equal games are then equal by luck. Otherwise,
    such as between two greedy models, a deal is always played in one way, and the distinct
    transcripts count, each with the version's side.
    """
    if _answer_by_chance(results):
        return len(results)
    transcripts = {
        (
            *own_side(version, result),
            *((turn.seat, turn.answer.observation, turn.answer.action) for turn in result.turns),
            *result.outcomes,
        )
        for result in results
    }
    return len(transcripts)


def _answer_by_chance(results: Sequence[GameResult]) -> bool:
    """Return whether a model was sampled, or another player gave two actions to one observation."""
    answers: dict[tuple[PlayerId, int, str], str] = {}
    for turn in (turn for result in results for turn in result.turns):
        if turn.answer.sampled is None:
            place = (turn.player, turn.seat, turn.answer.observation)
            if answers.setdefault(place, turn.answer.action) != turn.answer.action:
                return True
        elif turn.answer.sampled.temperature > 0:
            return True
    return False


def _variance(centre: float, values: Sequence[float], low: float, high: float) -> float:
    """Return the variance of values that have the mean `centre` and are spread like `values`.

    If all values are at `low` or `high`, this is p (1 - p) of a share; values in between reduce it.
    As in `mean_interval`, one more value counts as if it were at an end.
    """
    inner = sum((value - low) * (high - value) for value in values) / (len(values) + 1)
    return max(0.0, (centre - low) * (high - centre) - inner)


def _needed(variance: float) -> int:
    """Return the number of games that detect a true difference of `DIFFERENCE` in 80 % of cases.

    A difference is detected if its 95 % interval excludes 0. `variance` is the variance of one
    game's difference: of a gain, or of two scores together. Its least value is the variance if a
    share of `DIFFERENCE` of the games is won instead of lost, and all others are equal.
    """
    least = DIFFERENCE - DIFFERENCE**2
    return math.ceil(max(variance, least) * ((Z + POWER_Z) / DIFFERENCE) ** 2)


Named = list[tuple[str, float]]
"""Figures of games, each with the game's name."""


def named(config: RunConfig, by_game: Mapping[int, float]) -> Named:
    """Return pairs of name and figure, by id; a name states what version 0 plays in the game."""
    names = _names(config) if by_game else {}
    return [(names[number], figure) for number, figure in sorted(by_game.items())]


def numbered(config: RunConfig, figures: Iterable[tuple[str, float]]) -> dict[int, float]:
    """Return figures by the ids that games have in this config; names that it lacks are left out.

    Hence a version is compared with version 0 only in games that both played alike.
    """
    numbers = {name: number for number, name in _names(config).items()}
    return {numbers[name]: figure for name, figure in figures if name in numbers}


def _names(config: RunConfig) -> dict[int, str]:
    """Return the name of each evaluation game by id: env, deal, players and how they answer."""
    return {
        spec.game_id: repr(
            (
                *(spec.env, spec.seed, config.eval.constrained),
                *((seat.player.name, seat.temperature, seat.votes) for seat in spec.seats),
                *(f"best of {seat.best_of}" for seat in spec.seats if seat.best_of > 1),
            )
        )
        for spec in evaluation_games(config, version=0)
    }
