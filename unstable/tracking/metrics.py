"""What the numbers of a row are made of: sums and counts, so that every mean is weighted rightly.

Each name is explained in `docs/metrics.md`. A name that depends on the run (an env, an opponent, a
reward term) is there from the first row on, as far as the config knows it.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

from pydantic import BaseModel

from unstable.config import RunConfig
from unstable.types import (
    MAIN,
    EvalScore,
    Exploitability,
    GameResult,
    PlayerId,
    Rating,
    Trajectory,
    Turn,
)
from unstable.types.metrics import RatingKey, VersusKey, metric_name, part, versus_name

Row = dict[str, float | None]

COUNTS = [
    *("games", "turns", "trained_turns", "tokens", "cut_characters"),
    *("forfeits", "truncated", "draws", "failures", "above_scale"),
]
MEANS = [
    "reward",
    "game_length",
    "prompt_length",
    "completion_length",
    "format_share",
    "invalid_share",
    "length_share",
    "prompt_cut_share",
    "prompt_cut_tokens",
    "seconds_per_game",
    "seconds_per_turn",
    "seconds_per_character",
]


def opponents(result: GameResult) -> list[str]:
    """What the trained sides played against: `alone`, `self`, or `others` and what those are.

    Those are `past`, or `fixed` and the fixed player's name.
    """
    policy = {seat.player for seat in result.spec.seats if seat.trained}
    players = [seat.player for seat in result.spec.seats if seat.player not in policy]
    if not players:
        return ["self"] if len(result.spec.sides) > 1 else ["alone"]
    fixed = [player.name for player in players if player.version is None]
    kinds = ["past"] if len(fixed) < len(players) else []
    return ["others", *kinds, *(["fixed", *dict.fromkeys(fixed)] if fixed else [])]


class Reducer:
    """Counts and weighted means by name; a name stays, as 0 or as None, once it was there."""

    def __init__(self, counts: Iterable[str], means: Iterable[str]) -> None:
        self._counts = dict.fromkeys(counts, 0)
        self._totals = dict.fromkeys(means, 0.0)
        self._weights = dict.fromkeys(self._totals, 0.0)

    def count(self, name: str, by: int = 1) -> None:
        """Adds to a count."""
        self._counts[name] = self._counts.get(name, 0) + by

    def add(self, name: str, total: float, weight: float = 1.0) -> None:
        """Adds `weight` observations that sum to `total`."""
        self._totals[name] = self._totals.get(name, 0.0) + total
        self._weights[name] = self._weights.get(name, 0.0) + weight

    def take(self) -> Row:
        """Every count, and every mean or None; starts anew."""
        means = {
            name: total / self._weights[name] if self._weights[name] else None
            for name, total in self._totals.items()
        }
        row: Row = {**self._counts, **means}
        for values in (self._counts, self._totals, self._weights):
            values.update(dict.fromkeys(values, 0))
        return row

    def state(self) -> "Sums":
        """Counts, totals and weights by name."""
        return self._counts, self._totals, self._weights

    def restore(self, state: "Sums") -> None:
        """Continue from what `state` returned."""
        counts, totals, weights = state
        self._counts.update(counts)
        self._totals.update(totals)
        self._weights.update(weights)


Actions = tuple[str, ...]  # of a game, in order
Sums = tuple[dict[str, int], dict[str, float], dict[str, float]]


class PlayState(BaseModel):
    """What finished training games say since the last row: sums, actions and their sequences."""

    sums: Sums
    actions: dict[str, dict[str, int]]
    sequences: dict[str, list[tuple[Actions, int]]]


class PlayMetrics:
    """`collect/*`: what finished training games say, since the last `take`."""

    def __init__(self, config: RunConfig) -> None:
        fixed = [part(opponent.key) for opponent in config.opponents.fixed]
        alone = ["alone"] if any(len(game.sides) == 1 for game in config.games) else []
        labels = [*alone, "self", "others", "past", "fixed", *fixed]
        self._sums = Reducer(
            counts=[
                *(f"collect/{name}" for name in COUNTS),
                *(VersusKey(label).name("games") for label in labels),
                *(metric_name("collect/raised", game.key) for game in config.games),
            ],
            means=[
                *(f"collect/{name}" for name in MEANS),
                *(metric_name("collect/reward", reward.term) for reward in config.buffer.rewards),
                *(
                    VersusKey(label).name(share)
                    for label in labels
                    for share in ("share", "win", "draw", "loss", "forfeit")
                ),
                *(
                    metric_name("collect/outcome", game.key, seat)
                    for game in config.games
                    for seat in range(game.seats)
                ),
            ],
        )
        self._labels = labels
        self._envs = [game.key for game in config.games]
        self._forget_actions()

    def _forget_actions(self) -> None:
        self._actions: dict[str, Counter[str]] = {env: Counter() for env in self._envs}
        self._sequences: dict[str, Counter[Actions]] = {env: Counter() for env in self._envs}

    def add_game(self, result: GameResult, trajectories: Sequence[Trajectory]) -> None:
        """Takes in a finished game and the trajectories made of it."""
        sums, env, trained = self._sums, result.spec.env, result.trained_turns
        sums.count("collect/games")
        sums.count("collect/turns", len(result.own_turns))
        sums.count("collect/trained_turns", len(trained))
        sampled = [
            turn.answer.sampled for turn in result.own_turns if turn.answer.sampled is not None
        ]
        sums.count("collect/tokens", sum(tokens.num_scored for tokens in sampled))
        cut = sum(turn.answer.cut_characters for turn in result.own_turns)
        sums.count("collect/cut_characters", cut)
        sums.count("collect/truncated", result.truncated)
        sums.count(metric_name("collect/raised", env), result.raised)
        if result.forfeit is None:
            sums.count("collect/above_scale", any(abs(each) > 1 for each in result.outcomes))
        sums.add("collect/game_length", len(result.turns))
        sums.add("collect/seconds_per_game", result.seconds)
        self._add_turns(trained)
        if not result.ended_in_opening:
            self._add_standings(result)
        for trajectory in trajectories:
            terminal = trajectory.terminal_reward
            for sample in trajectory.samples:
                sums.add("collect/reward", sample.reward + terminal)
                for term, reward in (trajectory.rewards | sample.rewards).items():
                    sums.add(metric_name("collect/reward", term), reward.raw)
        self._actions[env].update(turn.answer.action for turn in trained)
        self._sequences[env][tuple(turn.answer.action for turn in result.turns)] += 1

    def add_failure(self) -> None:
        """Takes in a game that raised."""
        self._sums.count("collect/failures")

    def _add_turns(self, trained: Sequence[Turn]) -> None:
        sums, number = self._sums, len(trained)
        sampled = [turn.answer.sampled for turn in trained if turn.answer.sampled is not None]
        assert len(sampled) == number, "only a local model is trained"
        cuts = [tokens.prompt_cut for tokens in sampled if tokens.prompt_cut]
        cut_off = sum(tokens.finish_reason == "length" for tokens in sampled)
        seconds = sum(turn.seconds for turn in trained)
        sums.add("collect/prompt_length", sum(len(each.prompt_ids) for each in sampled), number)
        sums.add("collect/completion_length", sum(each.num_scored for each in sampled), number)
        sums.add("collect/format_share", sum(turn.answer.formatted for turn in trained), number)
        sums.add("collect/invalid_share", sum(turn.invalid for turn in trained), number)
        sums.add("collect/length_share", cut_off, number)
        sums.add("collect/prompt_cut_share", len(cuts), number)
        sums.add("collect/prompt_cut_tokens", sum(cuts), len(cuts))
        sums.add("collect/seconds_per_turn", seconds, number)
        sums.add(
            "collect/seconds_per_character", seconds, sum(len(turn.answer.text) for turn in trained)
        )

    def _add_standings(self, result: GameResult) -> None:
        against = [part(opponent) for opponent in opponents(result)]
        for label in dict.fromkeys([*self._labels, *against]):
            self._sums.add(versus_name(label, "share"), label in against)
        for seat in (seat for seat, spec in enumerate(result.spec.seats) if spec.trained):
            name = metric_name("collect/outcome", result.spec.env, seat)
            self._sums.add(name, result.outcomes[seat])
        standings = {side: result.standing(side[0]) for side in result.spec.trained_sides}
        self._sums.count("collect/forfeits", result.forfeit is not None)
        self._sums.count("collect/draws", "draw" in standings.values())
        for label in against:
            for side, standing in standings.items():
                self._sums.count(versus_name(label, "games"))
                for share in ("win", "draw", "loss"):
                    self._sums.add(versus_name(label, share), standing == share)
                self._sums.add(versus_name(label, "forfeit"), result.forfeit in side)

    def take(self, seconds: float) -> Row:
        """All `collect/*` of the games since the last call, `seconds` ago."""
        row = self._sums.take()
        for name in ("games", "turns"):
            row[f"collect/{name}_per_second"] = (row[f"collect/{name}"] or 0) / seconds
        for env in self._envs:
            sequences = self._sequences[env]
            row[metric_name("collect/action_entropy", env)] = entropy(self._actions[env])
            row[metric_name("collect/distinct_games", env)] = (
                len(sequences) / sequences.total() if sequences else None
            )
        self._forget_actions()
        return row

    def state(self) -> PlayState:
        """What came since the last `take`."""
        return PlayState(
            sums=self._sums.state(),
            actions={env: dict(counts) for env, counts in self._actions.items()},
            sequences={env: list(counts.items()) for env, counts in self._sequences.items()},
        )

    def restore(self, state: PlayState) -> None:
        """Continue from what `state` returned."""
        self._sums.restore(state.sums)
        self._actions |= {env: Counter(counts) for env, counts in state.actions.items()}
        self._sequences |= {env: Counter(dict(counts)) for env, counts in state.sequences.items()}


def entropy(counts: Counter[str]) -> float | None:
    """Shannon entropy of the counted values in nats; None if nothing was counted."""
    total = counts.total()
    if not total:
        return None
    return math.log(total) - sum(n * math.log(n) for n in counts.values()) / total


class EngineMetrics:
    """`collect/engine/*`: how engines' counters, which only grow, moved since the last `take`."""

    def __init__(self) -> None:
        self._last: dict[int, Mapping[str, float]] = {}
        self._moved: dict[int, defaultdict[str, float]] = {}

    def add(self, actor: int, stats: Mapping[str, float]) -> None:
        """Takes in an actor's counters; a counter that fell is a restarted actor's."""
        before = self._last.get(actor, {})
        moved = self._moved.setdefault(actor, defaultdict(float))
        for name, value in stats.items():
            last = before.get(name, 0.0)
            moved[name] += value - last if value >= last else value
        self._last[actor] = dict(stats)

    def values(self, seconds: float, actor: int | None = None) -> Row:
        """All `collect/engine/*` since the last `reset`, `seconds` ago, of an actor or of all.

        {} without an engine.
        """
        actors = [*self._last] if actor is None else [actor]
        if not actors:
            return {}
        moved: defaultdict[str, float] = defaultdict(float)
        for each in actors:
            for name, value in self._moved.get(each, {}).items():
                moved[name] += value
        levels = [self._last[each] for each in actors]
        row: Row = {f"collect/engine/{name}": moved[name] for name in ("requests", "prompt_tokens")}
        for name in ("prefill_seconds", "decode_seconds"):  # which not every engine knows
            known = any(name in stats for stats in levels)
            row[f"collect/engine/{name}"] = moved[name] if known else None
        row["collect/engine/request_tokens"] = _ratio(
            moved["prompt_tokens"] + moved["sampled_tokens"], moved["requests"]
        )
        row["collect/engine/cached_share"] = _ratio(
            moved["cached_prompt_tokens"], moved["prompt_tokens"]
        )
        row["collect/engine/adapter_hit_share"] = _ratio(
            moved["adapter_hits"], moved["adapter_requests"]
        )
        row["collect/engine/tokens_per_step"] = _ratio(
            moved["sampled_tokens"], moved["decode_steps"]
        )
        row["collect/engine/tokens_per_second"] = moved["sampled_tokens"] / seconds
        for level in ("running", "waiting", "games_in_flight"):
            row[f"collect/engine/{level}"] = sum(stats.get(level, 0.0) for stats in levels)
        return row

    def reset(self) -> None:
        """Starts anew from the counters as they are."""
        self._moved.clear()


def _ratio(part_of: float, whole: float) -> float | None:
    return part_of / whole if whole else None


def current_policy(ratings: Iterable[Rating]) -> PlayerId | None:
    """The newest version of the policy `MAIN` that has a rating."""
    players = [rating.player for rating in ratings]
    known = [(p.version, p) for p in players if p.version is not None and p.label == MAIN]
    return max(known)[1] if known else None


def evaluation_metrics(scores: Iterable[EvalScore]) -> Row:
    """`eval/<env>/<opponent>/<mode>/*`."""
    named = [field.name for field in fields(EvalScore)]
    figures = [name for name in named if name not in ("version", "env", "opponent")]
    return {score.key.name(name): getattr(score, name) for score in scores for name in figures}


def exploitability_metrics(found: Exploitability) -> Row:
    """`exploit/<env>/*`; figures by seat end in the seat's number."""
    row: Row = {}
    for field in fields(Exploitability):
        name, value = found.key.name(field.name), getattr(found, field.name)
        if isinstance(value, tuple):
            row |= {f"{name}/{seat}": each for seat, each in enumerate(value)}
        elif field.name not in ("version", "env"):
            row[name] = value
    return row


def rating_metrics(ratings: Sequence[Rating]) -> Row:
    """`rating/<player>/*`: of the newest version, as `policy`, and of players that never change."""
    current = current_policy(ratings)
    row: Row = {}
    for rating in ratings:
        if rating.player == current or rating.player.version is None:
            key = RatingKey("policy" if rating.player == current else rating.player.name)
            row |= {key.name("mu"): rating.mu, key.name("sigma"): rating.sigma}
    return row
