"""Where the series of a run's games is, as values that a resume goes on from."""

import random
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, NonNegativeInt, model_validator

from unstable.config import DrawConfig
from unstable.league.matchmaking import Met, Probability, check_probabilities

LONGEST_STRETCH = 10_000
"""Games after which another stretch begins, so that few are drawn again for nothing."""
MOST_AGAIN = 100_000
"""Games that a resume may have to draw again, which takes a few seconds."""
RandomState = tuple[int, tuple[int, ...], float | None]
"""As `random.Random.getstate` returns it."""


def _usable(state: RandomState) -> RandomState:
    try:
        random.Random().setstate(state)
    except (TypeError, OverflowError) as error:
        raise ValueError("no random state") from error
    return state


class SeriesPlace(BaseModel):
    """Where the series of games is."""

    next_game: NonNegativeInt
    next_group: NonNegativeInt
    random: Annotated[RandomState, AfterValidator(_usable)]


class Stretch(BaseModel):
    """Successive games of the series that were drawn alike, and the id of the first of them."""

    first: NonNegativeInt
    policy: str
    past: list[str]
    probabilities: list[Probability]  # of each of them; empty where all alike
    shares: DrawConfig
    fixed: list[str]  # opponents that were not left out
    envs: list[Probability]  # of each of the config's; empty where its weights decide

    @model_validator(mode="after")
    def _each_has_a_probability(self) -> Self:
        check_probabilities(self.probabilities, self.past)
        return self


class ScheduleState(BaseModel):
    """Where the series of games is, and all that it takes to draw the newest ones again.

    `since` is where the first of `stretches` began.
    """

    now: SeriesPlace
    shares: DrawConfig
    envs: list[Probability]
    met: Met
    drawn: Met
    since: SeriesPlace | None
    stretches: list[Stretch]

    @model_validator(mode="after")
    def _is_a_series(self) -> Self:
        firsts = [stretch.first for stretch in self.stretches]
        if (self.since is None) != (not firsts):
            raise ValueError("stretches without a place, or a place without stretches")
        ends = [*([] if self.since is None else [self.since.next_game]), *firsts]
        if ends != sorted(ends) or any(end > self.now.next_game for end in ends):
            raise ValueError("stretches in no order")
        if firsts and self.now.next_game - firsts[0] > MOST_AGAIN + LONGEST_STRETCH:
            raise ValueError("more games to draw again than a run leaves")
        return self
