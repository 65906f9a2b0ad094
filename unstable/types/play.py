"""Tallies of finished training games, under the names of metrics, as sums made by the actors.

An actor tallies its games, and the loop adds the tallies: every mean is weighted correctly, and no
sum depends on the number of games in a message.
"""

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from unstable.types.games import GameResult, GameSpec, Turn
from unstable.types.metrics import metric_name, part, versus_name
from unstable.types.tallies import TermCalls
from unstable.types.training import Trajectory

OPENED = "opened"
"""Name, in a tally's counts, of the number of games that were not over in their opening."""


def opponents(spec: GameSpec) -> list[str]:
    """List the trained sides' opponents: `alone`, `self`, or `others` with their kinds and names.

    Kinds and names are `past`, or `fixed` and the fixed player's name.
    """
    policy = {seat.player for seat in spec.seats if seat.trained}
    players = [seat.player for seat in spec.seats if seat.player not in policy]
    if not players:
        return ["self"] if len(spec.sides) > 1 else ["alone"]
    fixed = [player.name for player in players if player.version is None]
    kinds = ["past"] if len(fixed) < len(players) else []
    return ["others", *kinds, *(["fixed", *dict.fromkeys(fixed)] if fixed else [])]


class PlayTally(NamedTuple):
    """Sums over some games: counts, totals and weights by name, and counts of actions.

    `values` are kept singly, since their mean must not depend on the order of games.
    """

    counts: dict[str, int]
    totals: dict[str, float]
    weights: dict[str, float]
    values: dict[str, list[float]]
    actions: dict[str, dict[str, int]]  # action counts of trained turns, by env
    sequences: dict[str, list[int]]  # hash of each game's actions, by env

    @classmethod
    def empty(cls) -> "PlayTally":
        """Return the tally of no games."""
        return cls({}, {}, {}, {}, {}, {})

    def add(self, other: "PlayTally") -> None:
        """Add the tally of later games."""
        for name, count in other.counts.items():
            self.add_count(name, count)
        for name, total in other.totals.items():
            self._add(name, total, other.weights[name])
        for name, values in other.values.items():
            self.values.setdefault(name, []).extend(values)
        for env, actions in other.actions.items():
            own = self.actions.setdefault(env, {})
            own.update({each: own.get(each, 0) + count for each, count in actions.items()})
        for env, sequences in other.sequences.items():
            self.sequences.setdefault(env, []).extend(sequences)

    def add_game(self, result: GameResult, trajectories: Sequence[Trajectory]) -> None:
        """Add a finished game and its trajectories."""
        env, trained, own = result.spec.env, result.trained_turns, result.own_turns
        sampled = [turn.answer.sampled for turn in own if turn.answer.sampled is not None]
        self.add_count("collect/games")
        self.add_count("collect/turns", len(own))
        self.add_count("collect/trained_turns", len(trained))
        self.add_count("collect/tokens", sum(tokens.num_scored for tokens in sampled))
        self.add_count("collect/cut_characters", sum(turn.answer.cut_characters for turn in own))
        self.add_count("collect/truncated", result.truncated)
        self.add_count(metric_name("collect/raised", env), result.raised)
        if result.forfeit is None:
            self.add_count("collect/above_scale", any(abs(each) > 1 for each in result.outcomes))
        self._add("collect/game_length", len(result.turns))
        self._add("collect/seconds_per_game", result.seconds)
        self._add_turns(trained)
        if not result.ended_in_opening:
            self._add_standings(result)
        for trajectory in trajectories:
            self._add_rewards(trajectory)
        actions = self.actions.setdefault(env, {})
        for turn in trained:
            actions[turn.answer.action] = actions.get(turn.answer.action, 0) + 1
        sequence = "\0".join(turn.answer.action for turn in result.turns)
        number = blake2b(sequence.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        self.sequences.setdefault(env, []).append(int.from_bytes(number, "little"))

    def add_asked(self, asked: TermCalls) -> None:
        """Add the calls of reward terms."""
        for term, counts in asked.counts.items():
            for name, count in counts.items():
                self.add_count(metric_name("judge", term, name), count)
        for term, means in asked.means.items():
            for name, (total, number) in means.items():
                self._add(metric_name("judge", term, name), total, number)

    def add_count(self, name: str, by: int = 1) -> None:
        """Add to a count."""
        self.counts[name] = self.counts.get(name, 0) + by

    def _add(self, name: str, total: float, weight: float = 1.0) -> None:
        self.totals[name] = self.totals.get(name, 0.0) + total
        self.weights[name] = self.weights.get(name, 0.0) + weight

    def _add_turns(self, trained: Sequence[Turn]) -> None:
        number = len(trained)
        sampled = [turn.answer.sampled for turn in trained if turn.answer.sampled is not None]
        assert len(sampled) == number, "only a local model is trained"
        cuts = [tokens.prompt_cut for tokens in sampled if tokens.prompt_cut]
        cut_off = sum(tokens.finish_reason == "length" for tokens in sampled)
        seconds = sum(turn.seconds for turn in trained)
        characters = sum(len(turn.answer.text) for turn in trained)
        self._add("collect/prompt_length", sum(len(each.prompt_ids) for each in sampled), number)
        tokens = sum(each.num_scored for each in sampled)
        thoughts = sum(each.thought for each in sampled)
        ended = sum(each.has_inserted for each in sampled)
        self._add("collect/completion_length", tokens, number)
        self._add("collect/thought_length", thoughts, number)
        self._add("collect/action_length", tokens - thoughts, number)
        self._add("collect/thought_ended_share", ended, number)
        self._add("collect/format_share", sum(turn.answer.formatted for turn in trained), number)
        self._add("collect/invalid_share", sum(turn.invalid for turn in trained), number)
        self._add("collect/length_share", cut_off, number)
        self._add("collect/prompt_cut_share", len(cuts), number)
        self._add("collect/prompt_cut_tokens", sum(cuts), len(cuts))
        self._add("collect/seconds_per_turn", seconds, number)
        self._add("collect/seconds_per_character", seconds, characters)

    def _add_standings(self, result: GameResult) -> None:
        against = [part(opponent) for opponent in opponents(result.spec)]
        self.add_count(OPENED)
        for seat in (seat for seat, spec in enumerate(result.spec.seats) if spec.trained):
            name = metric_name("collect/outcome", result.spec.env, seat)
            self.values.setdefault(name, []).append(result.outcomes[seat])
        standings = {side: result.standing(side[0]) for side in result.spec.trained_sides}
        self.add_count("collect/forfeits", result.forfeit is not None)
        self.add_count("collect/draws", "draw" in standings.values())
        for label in against:
            self._add(versus_name(label, "share"), 1, 0)  # its weight is OPENED
            for side, standing in standings.items():
                self.add_count(versus_name(label, "games"))
                for share in ("win", "draw", "loss"):
                    self._add(versus_name(label, share), standing == share)
                self._add(versus_name(label, "forfeit"), result.forfeit in side)

    def _add_rewards(self, trajectory: Trajectory) -> None:
        terminal = trajectory.terminal_reward
        for sample in trajectory.samples:
            self.values.setdefault("collect/reward", []).append(sample.reward + terminal)
            for term, reward in (trajectory.rewards | sample.rewards).items():
                self.values.setdefault(metric_name("collect/reward", term), []).append(reward.raw)


def entropy(counts: Mapping[str, int]) -> float | None:
    """Return the Shannon entropy of counts in nats, in any order; None if all are 0.

    A single kind has an entropy of exactly 0, since the guard compares shares of it.
    """
    total = sum(counts.values())
    if not total:
        return None
    return math.fsum(n / total * math.log(total / n) for n in counts.values())
