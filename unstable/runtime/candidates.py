"""Judges of answers that may be played: the same oracles that judge what was played."""

from collections.abc import Callable
from pathlib import Path

from unstable.collectors.players.best_of import JudgeAnswer
from unstable.config import ConfigError, GameConfig, RunConfig
from unstable.rewards.oracles.base import ChatEngine, Silence
from unstable.rewards.terms import Rewards
from unstable.types import BASE, Answer, GameResult, GameSpec, Observation, SeatSpec, Turn
from unstable.types.tallies import Asked


class Candidates:
    """The judges of a run's best-of-N players, by the place of their settings in the config."""

    def __init__(self, config: RunConfig, cache: Callable[[str], Path] | None = None) -> None:
        """`cache` is as `Rewards` has it. Raises `ConfigError` for a judge that is none."""
        among = config.actors.sharing
        self._rewards = {
            place: Rewards([judge], among=among, places=[f"{place}.best_of.judge"], cache=cache)
            for place, judge in config.candidate_judges.items()
        }

    def check(self, silence: Silence) -> None:
        """Raise `ConfigError` where one cannot be asked; loads no model."""
        for place, rewards in self._rewards.items():
            if not rewards.are_of_turns:
                raise ConfigError(
                    f"{place}.best_of.judge: has to value one turn, without keeping games waiting; "
                    "name an oracle, or an async function of (result, turn)"
                )
            rewards.check(silence)

    def serve(self, engine: ChatEngine) -> None:
        """Have them ask the actor's engine, where the config says so."""
        for rewards in self._rewards.values():
            rewards.serve(engine)

    async def close(self) -> None:
        """Give back what they hold."""
        for rewards in self._rewards.values():
            await rewards.close()

    def take_asked(self) -> Asked:
        """What they have been asked since the last call."""
        taken = [rewards.take_asked() for rewards in self._rewards.values()]
        return Asked(
            {name: counts for each in taken for name, counts in each.counts.items()},
            {name: means for each in taken for name, means in each.means.items()},
        )

    def judges(self) -> dict[str, JudgeAnswer]:
        """What values an answer, by place."""
        return {place: _judge(rewards) for place, rewards in self._rewards.items()}


def _judge(rewards: Rewards) -> JudgeAnswer:
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
        return await rewards.worth(asked_of, turn)

    return judge
