"""One game: its players, and its course from the first observation to the outcome."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

from msgspec.structs import replace

from unstable.collectors.players import player_class
from unstable.collectors.players.base import (
    LeftError,
    LimitedPlayer,
    MovesNeeded,
    OpponentPlayer,
    Player,
    Position,
)
from unstable.collectors.players.constrained import ConstrainedPlayer
from unstable.collectors.players.model import ModelPlayer, Newest, NewestPlayer
from unstable.collectors.players.programs import RandomPlayer
from unstable.collectors.players.several import BestOfPlayer, JudgeAnswer, VotingPlayer
from unstable.config import GameConfig, RunConfig
from unstable.engines.base import Engine
from unstable.games.game import Game
from unstable.games.services import lists_legal_moves, prompts_of
from unstable.prompts import shorten
from unstable.types import (
    BASE,
    Answer,
    GameResult,
    GameSpec,
    Observation,
    PlayerId,
    Purpose,
    SeatSpec,
    Turn,
)
from unstable.types.seeds import derive_seed


class PlayerFactory:
    """Factory of the players of games; local models answer through the engine.

    Without an engine and its tokenizer it creates all other players. The engine's owner loads the
    adapters of fixed opponents and of the policy's versions. `judges` choose among several answers,
    by the config field that has `best_of`.
    """

    def __init__(
        self,
        config: RunConfig,
        engine: Engine | None,
        tokenizer: Any,
        judges: Mapping[str, JudgeAnswer] | None = None,
    ) -> None:
        self._config = config
        self._engine = engine
        self._judges = judges or {}
        self._opponents = config.fixed_opponents
        fixed = enumerate(config.opponents.fixed)
        self._places = {each.key: f"opponents.fixed.{index}" for index, each in fixed}
        self.prompts = {
            key: prompts_of(config, game, tokenizer)
            for key, game in config.game_by_key.items()
            if engine is not None
        }
        self.newest = Newest()
        self._shared_players: dict[tuple[str, SeatSpec, Purpose], Player] = {}

    def player(self, game: GameConfig, purpose: Purpose, seat: SeatSpec) -> Player:
        """Return the player that a seat names, for this game."""
        model = partial(self._model, game, seat, purpose)
        if seat.player == BASE:
            return model(None)
        if seat.trained and self._config.actors.policy_refresh == "turn":
            return NewestPlayer(newest=self.newest, policy=seat.player.label, model=model)
        if seat.player.version is not None:
            return model(seat.player.name, seat.player.version)
        return self._opponent(game, seat, purpose)

    def _model(
        self,
        game: GameConfig,
        seat: SeatSpec,
        purpose: Purpose,
        adapter: str | None,
        version: int | None = None,
    ) -> Player:
        # Never constrained in training, which must sample from the trained distribution.
        kind = ConstrainedPlayer if self.is_constrained(purpose) else ModelPlayer
        moves = self._config.moves_kept if seat.trained and purpose == "train" else "none"
        player: Player = self._local(
            kind,
            game.key,
            adapter=adapter,
            version=version,
            temperature=seat.temperature,
            moves=moves,
            expert=self._expert(game) if moves == "expert" else None,
        )
        if seat.votes > 1:
            return VotingPlayer(player=player, votes=seat.votes)
        opponent = self._opponents.get(seat.player.name)
        answers = seat.best_of if opponent is None else opponent.answers
        if answers == 1:
            return player
        place = "eval" if opponent is None else self._places[opponent.key]
        return BestOfPlayer(player=player, answers=answers, judge=self._judges[place])

    def _expert(self, game: GameConfig) -> OpponentPlayer | None:
        """Return the opponent whose probabilities turns record; None for the game's expert."""
        name = self._config.sampling.expert
        if name == "expert":
            return None
        found = self._opponent(game, SeatSpec(player=PlayerId(name), temperature=1.0), "train")
        assert isinstance(found, OpponentPlayer), "checked: it mixes"
        return found

    def asked(self, env: str) -> ModelPlayer:
        """Return the base model, for questions about single decisions of a game."""
        return self._local(ModelPlayer, env, adapter=None, version=None, temperature=1.0)

    def _local(self, kind: type[ModelPlayer], env: str, **own: Any) -> ModelPlayer:
        assert self._engine is not None, "a local model needs an engine"
        sampling = self._config.sampling
        return kind(
            engine=self._engine,
            prompts=self.prompts[env],
            max_tokens=sampling.max_tokens,
            think_budget=sampling.thoughts.budget,
            **own,
        )

    def is_constrained(self, purpose: Purpose) -> bool:
        """Return whether local models may only answer legal moves."""
        return purpose == "eval" and self._config.eval.constrained

    def moves_needed(self, purpose: Purpose) -> MovesNeeded:
        """Return the information on a position's moves that local models need."""
        if purpose == "train":
            kept, expert = self._config.moves_kept, self._config.sampling.expert
            if kept != "expert" or expert == "expert":
                return kept
            return "rules" if self._opponents[expert].kind == "rules" else "legal"
        return "legal" if self.is_constrained(purpose) else "none"

    def _opponent(self, game: GameConfig, seat: SeatSpec, purpose: Purpose) -> Player:
        """Return a fixed opponent; games share it unless its class is `per_game`."""
        opponent = self._opponents[seat.player.name]
        kind: type[OpponentPlayer] = player_class(opponent)
        model = partial(self._model, game, seat, purpose)

        def make() -> Player:
            player = kind.make(opponent, game, seat, model)
            return LimitedPlayer(player=player, name=opponent.key) if kind.waits else player

        if kind.per_game:
            return make()
        place = (game.key, seat, purpose)
        if place not in self._shared_players:
            self._shared_players[place] = make()
        return self._shared_players[place]


def players_of(spec: GameSpec, make: Callable[[SeatSpec], Player]) -> list[Player]:
    """Return a game's players by seat, wrapped in `OpeningPlayer` if the game has an opener."""
    own = list(map(make, spec.seats))
    if spec.opener is None:
        return own
    opener = make(spec.opener)
    return [OpeningPlayer(spec=spec, own=player, opener=opener) for player in own]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningPlayer:
    """The opener for the game's first `spec.opening` moves, then the seat's own player.

    The opener's moves depend on the game's seed alone, so the games of a group, which share it,
    have equal openings. If the game lists its legal moves, a random legal move replaces an illegal
    answer and is recorded under the player `random`. Otherwise the answer stays, and the game may
    end by it.
    """

    spec: GameSpec
    own: Player
    opener: Player

    @property
    def per_game(self) -> bool:
        """True if the seat's own player belongs to its game alone."""
        return bool(getattr(self.own, "per_game", False))

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        """Return the answer of the opener, with its `player` set, or of the seat's own player."""
        spec = self.spec
        if game.turns >= spec.opening:
            return await self.own.act(observation, game, seed)
        assert spec.opener is not None
        shared = derive_seed(spec.seed, "opener", observation.seat, game.turns)
        answer = await self.opener.act(observation, game, shared)
        if lists_legal_moves(game.config) and answer.action not in game.legal_moves():
            answer = await RandomPlayer().act(observation, game, shared)
            return replace(answer, player=PlayerId("random"))
        return replace(answer, player=spec.opener.player)


@contextmanager
def contained() -> Iterator[None]:
    """Convert exceptions of the game that would end more than the game to `RuntimeError`.

    Cancellation of the task itself passes unchanged.
    """
    try:
        yield
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        raise RuntimeError(f"the game raised {error!r}") from error


async def play_game(
    spec: GameSpec,
    config: GameConfig,
    players: Sequence[Player],
    run_seed: int,
    shared: Sequence[Turn] = (),
    first: Answer | None = None,
    *,
    trusted: bool = False,
    told: Callable[[Game, Turn], None] = lambda game, turn: None,
) -> GameResult:
    """Play `spec` with one player per seat; propagates all exceptions of the env and the players.

    Raises `TimeoutError` for a game that exceeds its timeout, not counting local models' time. With
    `shared`, the game first replays those turns of another game of the same seed, also with players
    that may remember them (`per_game`), and `first` is the answer after them. A player that leaves
    (`LeftError`) ends the game, which counts as truncated. `trusted` is passed to `Game`. `told` is
    called after each turn that is played here.
    """
    began, modelling = perf_counter(), 0.0
    game = Game(config, spec.seed, trusted=trusted)
    stakes, turns = game.stakes, list[Turn]()
    for turn in shared:
        observation, player = game.observe(), players[turn.seat]
        if getattr(player, "per_game", False):
            forked = replace(spec, game_id=spec.game_id - spec.member)
            await player.act(observation, game, turn_seed(run_seed, forked, turn.seat, turn.index))
        game.step(turn.answer.action)
        turns.append(turn)
    while not game.done:
        try:
            given = first if len(turns) == len(shared) else None
            turn = await _take_turn(game, spec, players, turns, run_seed, given)
        except LeftError as left:
            game.cut_off(str(left))
            break
        turns.append(turn)
        told(game, turn)
        modelling += turn.seconds if turn.answer.sampled is not None else 0.0
        if not game.done and perf_counter() - began - modelling > config.timeout:
            raise TimeoutError(
                f"{config.key} exceeded games.timeout = {config.timeout:g} s; raise it"
            )
    return GameResult(
        spec=spec,
        turns=turns,
        payoffs=game.payoffs,
        outcomes=game.outcomes,
        forfeit=game.forfeit,
        raised=game.raised,
        truncated=game.truncated,
        reason=game.reason,
        seconds=perf_counter() - began,
        stakes=stakes,
        fork=len(shared),
    )


async def _take_turn(
    game: Game,
    spec: GameSpec,
    players: Sequence[Player],
    turns: Sequence[Turn],
    run_seed: int,
    given: Answer | None,
) -> Turn:
    """Query the player of the seat to move, unless its answer is given, and step the env."""
    observation, asked = game.observe(), perf_counter()
    seat, index = observation.seat, len(turns)
    observation = replace(observation, answers=_own_answers(spec, seat, turns))
    answer = given or await players[seat].act(
        observation, game, turn_seed(run_seed, spec, seat, index)
    )
    seconds = perf_counter() - asked
    action, cut = shorten(answer.action)
    step = game.step(action)
    answer = replace(
        answer,
        action=action,
        player=answer.player or spec.seats[seat].player,
        cut_characters=game.take_cut() + answer.cut_characters + cut,
    )
    return Turn(seat=seat, index=index, answer=answer, invalid=step.invalid, seconds=seconds)


def _own_answers(spec: GameSpec, seat: int, turns: Sequence[Turn]) -> tuple[str, ...]:
    """Return the answers of the seat's own player; an opener's thoughts are not the seat's."""
    own, first = spec.seats[seat].player, spec.opening
    return tuple(t.answer.text for t in turns[first:] if t.seat == seat and t.player == own)


def turn_seed(run_seed: int, spec: GameSpec, seat: int, index: int) -> int:
    """Return the seed that decides the answer of a game's turn."""
    return derive_seed(run_seed, spec.purpose, spec.game_id, seat, index)
