"""Replay of a recorded game from its seed, with each turn compared with the record.

Observations, the env's verdicts and the outcome follow from seed and actions. A player that
answers by a seed alone (a program, or a local model on the embedded engine) answers again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from unstable.collectors.play import OpeningPlayer, contained, play_game, turn_seed
from unstable.collectors.players.base import LeftError, Player, Position
from unstable.collectors.players.model import seed_after_budget
from unstable.commands.play.casting import PERSON, PlayerSource
from unstable.commands.play.found import FoundGame
from unstable.commands.play.table import prompted_position
from unstable.commands.play.terminal import Terminal
from unstable.config import FixedOpponent, one_line
from unstable.config.plugins import faults_to
from unstable.engines.base import Engine
from unstable.engines.probe import BOUNDS
from unstable.games.services import prompt_style
from unstable.models.shape import read_shape
from unstable.prompts import observation_text
from unstable.types import Answer, GameResult, Observation, PlayerId, SampledTokens, SeatSpec, Turn

OUTCOME = ("outcomes", "payoffs", "forfeit", "raised", "truncated", "reason")


class ReplayDifference(NamedTuple):
    """A difference from the record: ReplayDifference(2, "the action: recorded [4], now [5]")"""

    turn: int  # 0-based; the number of turns means the end
    what: str


@dataclass(slots=True, kw_only=True)
class Audit:
    """Audit of one game; `again` maps players of the record to players that answer now.

    Only these answer again; a version of the policy is served as an opponent.
    """

    found: FoundGame
    served: PlayerSource
    again: dict[PlayerId, PlayerId]
    terminal: Terminal
    differences: list[ReplayDifference] = field(default_factory=list)
    same: int = 0  # turns of local models with equal tokens
    rounded: list[float] = field(default_factory=list)  # rounding gaps of the other turns

    async def run(self) -> None:
        """Play the game and collect `differences`, sorted by turn."""
        recorded, game = self.found.result, self.found.game
        players = [self] * len(recorded.spec.seats)
        played: GameResult | None = None

        def failed(error: BaseException) -> None:
            what = one_line(f"the game raised {type(error).__name__}: {error}")
            self._differ(len(recorded.turns), what)

        with faults_to(failed), contained():
            # An env error that counted as a forfeit then counts as one now.
            played = await play_game(
                recorded.spec, game, players, self.found.config.seed, trusted=recorded.raised
            )
        if played is not None:
            self._compare(played)
        self.differences.sort(key=lambda difference: difference.turn)

    def _compare(self, played: GameResult) -> None:
        """Compare the env's verdicts and the end of the game with the record."""
        recorded = self.found.result
        for then, now in zip(recorded.turns, played.turns, strict=False):
            if then.invalid != now.invalid:
                what = "accepts the action" if then.invalid else "rejects the action"
                self._differ(then.index, f"the env now {what}")
        if self.differences:
            return
        end = len(recorded.turns)
        if len(played.turns) != end:
            what = f"number of turns: recorded {end}, now {len(played.turns)}"
            self._differ(len(played.turns), what)
            return
        for name in OUTCOME:
            then, now = getattr(recorded, name), getattr(played, name)
            if then != now:
                self._differ(end, f"{name}: recorded {then}, now {now}")

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        """Act as every seat's player: return the recorded answer, and compare its observation."""
        turns = self.found.result.turns
        if game.turns >= len(turns):
            raise LeftError(self.found.result.reason)  # end like the truncated record
        turn = turns[game.turns]
        note = ""
        if what := self._unseen(observation, turn):
            self._differ(turn.index, what)
        else:
            note = await self._asked_again(observation, game, turn)
        self._show(observation, turn, note)
        if self.differences:
            raise LeftError("it differs from the record")
        return turn.answer

    def _differ(self, turn: int, what: str) -> None:
        self.differences.append(ReplayDifference(turn, what))

    def _unseen(self, observation: Observation, turn: Turn) -> str:
        """Return how an observation differs from the recorded one; empty if it does not."""
        if observation.seat != turn.seat:
            return f"the seat to move: recorded {turn.seat}, now {observation.seat}"
        recorded = turn.answer
        if recorded.sampled is not None and recorded.sampled.prompt_cut:
            return ""  # without its oldest events: the prompt's ids are compared
        forms = (prompt_style(self.found.game).render(observation), observation_text(observation))
        if recorded.observation in forms:
            return ""
        then, now = _first_difference(recorded.observation, forms[recorded.sampled is None])
        return f"the observation: recorded {then!r}, now {now!r}"

    async def _asked_again(self, observation: Observation, game: Position, turn: Turn) -> str:
        """Query the player again, if possible; return the result in words."""
        who = answerer(self.found.result, turn)
        if who not in self.again or (seed := self._seed(turn)) is None:
            return ""
        then, now = turn.answer, await self._player(turn).act(observation, game, seed)
        if then.sampled is None or now.sampled is None:
            if now.action == then.action:
                return "same answer again"
            what = f"{who}: recorded {then.action!r}, now {now.action!r}"
        elif now.sampled.prompt_ids != then.sampled.prompt_ids:
            what = "the prompt's tokens"
        elif now.sampled.token_ids == then.sampled.token_ids:
            if not (what := self._misread(then, now)):
                self.same += 1
                return "same tokens again"
        elif (gap := await self._gap(who, then.sampled, now.sampled, seed)) is not None:
            self.rounded.append(gap)
            return f"other tokens, within rounding ({gap:.1g})"
        else:
            what = f"{who}: recorded {then.text!r}, now {now.text!r}"
        self._differ(turn.index, what)
        return ""

    def _misread(self, then: Answer, now: Answer) -> str:
        """Return how action or log-probabilities of equal tokens differ; empty if they do not."""
        if (now.action, now.formatted) != (then.action, then.formatted):
            return f"the action of these tokens: recorded {then.action!r}, now {now.action!r}"
        assert then.sampled is not None and now.sampled is not None
        recorded, count = then.sampled.logprobs, then.sampled.num_scored
        if len(recorded) != count:
            return f"{len(recorded)} log-probabilities for {count} tokens"
        pairs = zip(recorded, now.sampled.logprobs, strict=True)
        off = max((abs(one - other) for one, other in pairs), default=0.0)
        if off <= BOUNDS[self.served.config.model.dtype].most:
            return ""
        return f"the log-probabilities of these tokens, by up to {off:.3g}"

    def _seed(self, turn: Turn) -> int | None:
        """Return the turn's seed; None if another run played it, or an ensemble chose it."""
        spec, fork = self.found.result.spec, self.found.result.fork
        if spec.ensemble and spec.member and turn.index == fork:
            return None
        shared = turn.index < fork
        if shared and not spec.member:
            return None
        forked = replace(spec, game_id=spec.game_id - spec.member)
        played = forked if shared else spec
        return turn_seed(self.found.config.seed, played, turn.seat, turn.index)

    def _player(self, turn: Turn) -> Player:
        """Return the player that answers a turn again."""
        result, game = self.found.result, self.served.config.games[0]
        seat = _seat(result, turn)
        now = self.again[answerer(result, turn)]
        seat = replace(seat, player=now, group_id=None)
        player = self.served.players.player(game, result.spec.purpose, seat)
        if turn.index >= result.spec.opening:
            return player
        return OpeningPlayer(spec=result.spec, own=player, opener=player)

    async def _gap(
        self, who: PlayerId, then: SampledTokens, now: SampledTokens, seed: int
    ) -> float | None:
        """Return how far off the recorded tokens are; None if rounding does not explain them."""
        config, engine = self.served.config, self.served.engine
        assert engine is not None, "a model has answered"
        if self.served.players.is_constrained(self.found.result.spec.purpose):
            return None  # each request has its own seed
        opponent = config.fixed_opponents.get(self.again[who].name)
        adapter = None if opponent is None else opponent.adapter_name
        vocabulary, dtype = read_shape(config.model).vocabulary, config.model.dtype
        return await rounding(engine, adapter, then, now, seed, vocabulary=vocabulary, dtype=dtype)

    def _show(self, observation: Observation, turn: Turn, note: str) -> None:
        if observation.board:
            self.terminal.show(f"\n{observation.board}")
        if prompted := prompted_position(turn.answer, observation.position):
            self.terminal.show(prompted)
        count = len(self.found.result.turns)
        who, action = f"{turn.player} (seat {turn.seat})", turn.answer.action
        line = f"turn {turn.index + 1} of {count}: {who} {action}"
        notes = [*(["rejected as invalid"] if turn.invalid else []), *([note] if note else [])]
        self.terminal.show(" · ".join([line, *notes]))


def _seat(result: GameResult, turn: Turn) -> SeatSpec:
    """Return the seat spec of a turn: the seat's own, or the opener's."""
    if turn.index < result.spec.opening:
        assert result.spec.opener is not None
        return result.spec.opener
    return result.spec.seats[turn.seat]


def answerer(result: GameResult, turn: Turn) -> PlayerId:
    """Return the player that answered a turn, with the version that sampled it if recorded."""
    player, sampled = _seat(result, turn).player, turn.answer.sampled
    if player.version is None or sampled is None or sampled.version is None:
        return player
    return PlayerId.policy(sampled.version, player.label)


def not_again(player: PlayerId, opponent: FixedOpponent | None) -> str | None:
    """Return why a player other than a local model does not answer again; None if it does."""
    if player == PERSON:
        return "a person played"
    if opponent is None:
        return "the config does not name it"
    repeats = opponent.kind in ("random", "expert", "rules", "mcts")
    return None if repeats else f"a player of kind {opponent.kind} may answer differently"


def _first_difference(then: str, now: str) -> tuple[str, str]:
    """Return the first lines in which two texts differ."""
    ours, theirs = then.split("\n"), now.split("\n")
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            return one, other
    shorter = min(len(ours), len(theirs))
    return "\n".join(ours[shorter:])[:200], "\n".join(theirs[shorter:])[:200]


FloatArray = NDArray[np.float64]


async def rounding(
    engine: Engine,
    adapter: str | None,
    then: SampledTokens,
    now: SampledTokens,
    seed: int,
    *,
    vocabulary: int,
    dtype: str,
) -> float | None:
    """Return how far the seed's number is from the recorded token's share at the first difference.

    The unit is probability; for greedy answers, the nats by which the token is less likely than the
    best. None if that exceeds rounding, or if no sampled token decides.
    """
    pairs = enumerate(zip(then.token_ids, now.token_ids, strict=False))
    place = next((index for index, (one, other) in pairs if one != other), None)
    if place is None:  # one answer extends the other
        return None
    drawn = _number(then, place, seed)
    if drawn is None:
        return None
    beginning = [*then.prompt_ids, *then.token_ids[:place]]
    every_token = [[token_id] for token_id in range(vocabulary)]
    scored = await engine.score(beginning, every_token, adapter=adapter)
    logprobs_V = np.array(scored)[:, 0]
    token_id = then.token_ids[place]
    bound = BOUNDS[dtype].mean
    if then.temperature == 0:
        gap = float(logprobs_V.max() - logprobs_V[token_id])
        return gap if gap <= bound else None
    gap = distance(logprobs_V, then.temperature, token_id, drawn)
    # A logit that is off by e moves a boundary between probabilities by e / 4 at most.
    return gap if gap <= bound / 4 else None


def distance(
    logprobs_V: Sequence[float] | FloatArray, temperature: float, token_id: int, number: float
) -> float:
    """Return how far a number in [0, 1) is from a token's share at this temperature; 0 if inside.

    >>> distance([-0.6931, -0.6931], 1.0, token_id=1, number=0.25)
    0.25
    """
    scaled_V = np.asarray(logprobs_V, dtype=np.float64) / temperature
    shares_V = np.exp(scaled_V - scaled_V.max())
    ends_V = np.cumsum(shares_V / shares_V.sum())
    low = ends_V[token_id - 1] if token_id else 0.0
    return round(max(low - number, number - ends_V[token_id], 0.0), 9)


def _number(answer: SampledTokens, place: int, seed: int) -> float | None:
    """Return the number that decided the token at a place of an answer; None if inserted."""
    from unstable.engines.embedded.sampling import uniforms  # imports torch

    begun = 0
    for index, segment in enumerate(answer.segments):
        if place < begun + len(segment.token_ids):
            own = seed_after_budget(seed) if index else seed
            drawn = uniforms(np.array([own % 2**64], dtype=np.uint64), np.array([place - begun]))
            return float(drawn[0]) if segment.scored else None
        begun += len(segment.token_ids)
    return None
