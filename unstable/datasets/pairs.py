"""Pairs: two answers to a prompt, of which one is the better."""

from collections.abc import Iterable
from dataclasses import dataclass

from unstable.datasets.examples import Example
from unstable.types import Batch, Completion, Group, Reward, Sample, SampledTokens, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class PairExample:
    """The better and the worse answer, as examples with the same prompt; None: only the other."""

    chosen: Example | None
    rejected: Example | None

    @property
    def answers(self) -> list[Example]:
        """Those that there are."""
        return [each for each in (self.chosen, self.rejected) if each is not None]


def pair_batch(pairs: Iterable[PairExample], version: int) -> Batch:
    """The pairs as a batch that the learner takes, a group each."""
    groups = (pair_group(pair, number) for number, pair in enumerate(pairs))
    return Batch(version=version, groups=tuple(groups))


def pair_group(pair: PairExample, number: int) -> Group:
    """A pair as a group of two games of one turn, one won and one lost, whose number it has."""
    sides = (pair.chosen, 2 * number, 1.0), (pair.rejected, 2 * number + 1, -1.0)
    return Group(
        trajectories=tuple(
            _trajectory(example, number, game_id, outcome)
            for example, game_id, outcome in sides
            if example is not None
        )
    )


def _trajectory(example: Example, group_id: int, game_id: int, outcome: float) -> Trajectory:
    """An answer as a game of one turn. Nobody sampled it: its log-probabilities are 0."""
    token_ids = example.tokens.token_ids
    completion = Completion(
        token_ids=token_ids, logprobs=[0.0] * len(token_ids), finish_reason="stop", adapter=None
    )
    tokens = SampledTokens(
        prompt_ids=example.tokens.prompt_ids, segments=(completion,), temperature=1.0, version=0
    )
    return Trajectory(
        game_id=game_id,
        env=example.env,
        seat=example.seat or 0,
        group_id=group_id,
        outcome=outcome,
        forfeit=False,
        samples=(Sample(turn=0, tokens=tokens, rewards={}),),
        rewards={"preference": Reward(outcome, outcome)},
    )
