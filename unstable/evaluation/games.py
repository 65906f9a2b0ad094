"""Which games an evaluation consists of, and what they amount to."""

import math
from collections.abc import Iterable, Sequence

from unstable.config import RunConfig
from unstable.seeds import derive_seed
from unstable.types import EvalScore, GameResult, GameSpec, SeatSpec, policy_player

ALONE = "alone"
"""The opponent's name in games with one seat."""


def evaluation_games(config: RunConfig, version: int) -> list[GameSpec]:
    """`eval.games` games in each env against each opponent: each deal once from every seat.

    The number is rounded up to whole rounds of seats. Specs depend on `version` only by the
    player's name.
    """
    specs: list[GameSpec] = []
    for game in config.games:
        opponents = config.eval.opponents if game.seats > 1 else [ALONE]
        deals = math.ceil(config.eval.games / game.seats)
        for opponent in opponents:
            for deal in range(deals):
                seed = derive_seed(config.seed, "eval", game.key, deal)
                for seat in range(game.seats):
                    seats = _seats(config, version, opponent, seat, game.seats)
                    spec = GameSpec(
                        game_id=len(specs), purpose="eval", env=game.key, seed=seed, seats=seats
                    )
                    specs.append(spec)
    return specs


def _seats(
    config: RunConfig, version: int, opponent: str, seat: int, num_seats: int
) -> tuple[SeatSpec, ...]:
    temperature = config.eval.temperature
    fixed = config.fixed_opponents.get(opponent)
    own = getattr(fixed, "temperature", None)
    other = SeatSpec(player=opponent, temperature=temperature if own is None else own)
    policy = SeatSpec(player=policy_player(version), temperature=temperature)
    return tuple(policy if place == seat else other for place in range(num_seats))


def evaluation_scores(version: int, results: Sequence[GameResult]) -> list[EvalScore]:
    """One row for each env and opponent, in the order of their first game."""
    policy = policy_player(version)
    tables: dict[tuple[str, str], list[GameResult]] = {}
    for result in results:
        others = [seat.player for seat in result.spec.seats if seat.player != policy]
        key = (result.spec.env, others[0] if others else ALONE)
        tables.setdefault(key, []).append(result)
    return [_score(version, env, opponent, games) for (env, opponent), games in tables.items()]


def _score(version: int, env: str, opponent: str, results: Sequence[GameResult]) -> EvalScore:
    policy = policy_player(version)
    seats = [[s.player for s in result.spec.seats].index(policy) for result in results]
    pairs = list(zip(results, seats, strict=True))
    standings = [result.standing(seat) for result, seat in pairs]
    legal = [not turn.invalid for result, seat in pairs for turn in result.seat_turns(seat)]
    wins, draws = standings.count("win"), standings.count("draw")
    score = (wins + draws / 2) / len(results)
    low, high = wilson_interval(score, len(results))
    return EvalScore(
        version=version,
        env=env,
        opponent=opponent,
        games=len(results),
        wins=wins,
        draws=draws,
        losses=standings.count("loss"),
        forfeits=sum(result.forfeit == seat for result, seat in pairs),
        legal_moves=mean(legal),
        score=score,
        low=low,
        high=high,
    )


def mean(values: Iterable[float]) -> float:
    """The mean; 0 of nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def wilson_interval(share: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share seen in `count` games (Wilson, 1927, doi:10.2307/2276774).

    Counting a draw as half a win makes it slightly too wide, never too narrow.
    """
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    spread = math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    half = z * spread / (1 + z * z / count)
    return max(0.0, centre - half), min(1.0, centre + half)
