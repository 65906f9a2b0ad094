"""Place in a run's series of games, as values that a resume continues from."""

import random
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, NonNegativeInt, model_validator

from unstable.config import DrawConfig
from unstable.league.matchmaking import Met, Probability, check_probabilities

LONGEST_STRETCH = 10_000
"""Most games of a stretch; bounds the games that are drawn again without need."""
MOST_AGAIN = 100_000
"""Most games that a resume may have to draw again, which takes a few seconds."""
RandomState = tuple[int, tuple[int, ...], float | None]
"""State that `random.Random.getstate` returns."""


def _usable(state: RandomState) -> RandomState:
    try:
        random.Random().setstate(state)
    except (TypeError, OverflowError) as error:
        raise ValueError("invalid random state") from error
    return state


class SeriesPlace(BaseModel):
    """Place in the series of games: the next ids and the random state."""

    next_game: NonNegativeInt
    next_group: NonNegativeInt
    random: Annotated[RandomState, AfterValidator(_usable)]


class Stretch(BaseModel):
    """Successive games of the series that were drawn alike; `first` is the id of the first one."""

    first: NonNegativeInt
    policy: str
    past: list[str]
    probabilities: list[Probability]  # of `past`; empty if all are equally likely
    shares: DrawConfig
    fixed: list[str]  # opponents that could be drawn
    envs: list[Probability]  # in config order; empty if weights decide

    @model_validator(mode="after")
    def _each_has_a_probability(self) -> Self:
        check_probabilities(self.probabilities, self.past)
        return self


class ScheduleState(BaseModel):
    """Place in the series of games, and everything that drawing the newest ones again requires.

    `since` is the place where the first of `stretches` began; None without stretches.
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
            raise ValueError("since and stretches: one is missing")
        ends = [*([] if self.since is None else [self.since.next_game]), *firsts]
        if ends != sorted(ends) or any(end > self.now.next_game for end in ends):
            raise ValueError("stretches are not in order")
        if firsts and self.now.next_game - firsts[0] > MOST_AGAIN + LONGEST_STRETCH:
            raise ValueError("too many games to draw again")
        return self
