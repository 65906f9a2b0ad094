"""Judges of candidate answers in best-of-N play: the judges that also score finished games."""

from collections.abc import Callable
from pathlib import Path

from unstable.collectors.players.several import JudgeAnswer
from unstable.config import ConfigError, GameConfig, RunConfig
from unstable.rewards.terms import Rewards
from unstable.types import BASE, Answer, GameResult, GameSpec, Observation, SeatSpec, Turn


class Candidates(Rewards):
    """The judges of a run's best-of-N players: one reward term per `best_of` setting."""

    def __init__(self, config: RunConfig, cache: Callable[[str], Path] | None = None) -> None:
        """Create the terms; `cache` is passed to `Rewards`. Raises `ConfigError` for bad terms."""
        terms = config.candidate_judges
        super().__init__(
            list(terms.values()),
            config.judges,
            among=config.actors.sharing,
            places=[f"{place}.best_of.judge" for place in terms],
            cache=cache,
        )
        self._places = {place: term.key for place, term in terms.items()}

    def check(self) -> None:
        """Raise `ConfigError` if a judge is unavailable or cannot score one turn; load no model."""
        for place, term in self._places.items():
            if not self.values_turns(term):
                raise ConfigError(
                    f"{place}.best_of.judge: must score single turns without blocking other games; "
                    "set an asynchronous judge, or an async function of (result, turn)"
                )
        super().check()

    def judges(self) -> dict[str, JudgeAnswer]:
        """Return the judges of candidate answers, by the place of their setting."""
        return {place: self._judge_of(term) for place, term in self._places.items()}

    def _judge_of(self, term: str) -> JudgeAnswer:
        async def judge(game: GameConfig, observation: Observation, answer: Answer) -> float | None:
            turn = Turn(seat=observation.seat, index=0, answer=answer, invalid=False, seconds=0.0)
            nobody = SeatSpec(player=BASE, temperature=1.0)
            asked_of = GameResult(
                spec=GameSpec(
                    game_id=0, purpose="eval", env=game.key, seed=0, seats=(nobody,) * game.seats
                ),
                turns=[turn],
                payoffs=[0.0] * game.seats,
                outcomes=[0.0] * game.seats,
                forfeit=None,
                truncated=False,
                reason="",
                seconds=0.0,
            )
            return await self.worth(term, asked_of, turn)

        return judge
