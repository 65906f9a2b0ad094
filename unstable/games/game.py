"""One play of an env: its random state, the observation of each seat, and its end.

Envs draw from the process-wide `random`. Each `Game` owns a random state, so that games can be
interleaved; it counts turns and invalid moves, and identifies seats by their roles.
"""

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

from unstable.config import GameConfig
from unstable.config.plugins import load_target
from unstable.games import services
from unstable.games.catalog.table import EXPERT_GAMES
from unstable.games.chance import Chance
from unstable.games.copies import copies
from unstable.games.environment import ServiceDownError
from unstable.games.info import Expert, GameInfo
from unstable.prompts import shorten
from unstable.types import Observation
from unstable.types.seeds import derive_seed


class SeatingError(ValueError):
    """Raised if `games.seating` does not return each of the env's player numbers once."""


class StepResult(NamedTuple):
    """The result of an action: whether the game is over, and whether the env refused it."""

    done: bool
    invalid: bool


class Game:
    """One started play: alternate `observe` and `step` until `done`, then read `outcomes`.

    A seat is a role: if a reset deals roles, `seating` finds the env's number of each.

    `Game` counts invalid moves instead of the env, so that every game follows the config: a seat
    that makes more than `invalid_moves.allowed` in a row forfeits, which ends the game for all.

    An action at which the env raises is a forfeit too, if the game does not list it as legal, or
    if the game lists no legal moves and is `trusted`. Otherwise the error propagates.
    """

    def __init__(self, config: GameConfig, seed: int, *, trusted: bool = False) -> None:
        self.config = config
        self._seed, self._trusted = seed, trusted
        self._actions: tuple[str, ...] = ()
        self.turns = 0
        self.done = False
        self.payoffs = [0.0] * config.seats
        self.outcomes = [0.0] * config.seats
        self.forfeit: int | None = None
        self.raised = False  # the env raised at the action that forfeits
        self.truncated = False
        self.reason = ""
        self._chance = Chance(seed)
        self._refusals = [0] * config.seats
        with self._chance:
            self.env = services.make_environment(config)
            self.shows_all = self.info.board_shows_all(self.env.raw)
            self._compact = services.compact(config, self.env)
            self.env.reset(config.seats, derive_seed(seed, "env"))
            self._numbers = self._seating()  # the env's number of each seat
            self._teams = config.teams or self.env.teams(config.seats)
        self._shows_events = (
            not self.shows_all if config.events == "auto" else config.events == "all"
        )
        self._seat_of = [self._numbers.index(number) for number in range(config.seats)]

    @property
    def info(self) -> GameInfo:
        """Metadata of the game."""
        return self.env.info

    @property
    def seat(self) -> int:
        """Seat to move."""
        return self._seat_of[self.env.mover]

    @property
    def board(self) -> str:
        """Last board that the seat to move saw; empty if it saw none."""
        return self.env.board

    @property
    def stakes(self) -> float | None:
        """Maximum payoff or loss of a seat, in the game's unit.

        With custom payoffs it is the config's `payoff_scale`. None if neither the game nor the
        config declares one: the game is only won, drawn or lost.
        """
        if self.config.payoffs is not None:
            return self.config.payoff_scale or 1.0
        declared = self.env.scale()
        return self.config.payoff_scale if declared is None else declared

    @property
    def payoff_scale(self) -> float:
        """Divisor of payoffs in outcomes."""
        own = None if self.config.payoffs is not None else self.env.scale()
        return self.config.payoff_scale or own or 1.0

    def observe(self) -> Observation:
        """Return the observation of the seat to move; a second call returns an equal one."""
        with self._chance:
            shown = self.env.observe()
        compact = self._compact
        return Observation(
            seat=self._seat_of[shown.seat],
            rules=shown.rules,
            events=shown.events if self._shows_events or not shown.board else [],
            board=shown.board,
            notice=shown.notice,
            brief="" if compact is None else compact.brief,
            position="" if compact is None else compact.position(self.env.raw),
            chat=shown.chat,
            tools=shown.tools,
        )

    def legal_moves(self) -> list[str]:
        """Return the legal actions of the seat to move, without repeats.

        Raises `ValueError` if the game does not list them.
        """
        own = self.config.legal_moves
        moves = self.env.legal_moves() if own is None else load_target(own)(self.env.raw)
        return [*dict.fromkeys(moves)]

    def whole_state(self) -> str:
        """Return the seat to move and the whole state, for the state critic alone.

        Limits outside of the env, `max_turns` and `invalid_moves`, do not count. If the env cannot
        tell its state, the view of the seat to move replaces it. Changes nothing.
        """
        declared = self.info.state
        with Chance(0):  # a stray draw changes neither the game's chance nor the process's
            state = self.env.whole_state() if declared is None else declared(self.env.raw)
        if state is None:
            shown = self.observe()
            state = shown.position or "\n".join([*shown.events, shown.board])
        return f"{self.seat} {state}"

    def action_values(self) -> dict[str, float] | None:
        """Return the outcome of each legal action for the seat to move under perfect play after it.

        None if the game is not solved.
        """
        solved = self.info.action_values
        return None if solved is None else solved(self.env.raw)

    def expert_moves(self) -> dict[str, float]:
        """Return the expert's probability of each action for the seat to move.

        The optimal moves are equally likely, or have the probabilities of an equilibrium. Raises
        `ValueError` if the game has no expert.
        """
        return self._expert().moves(self.env.raw)

    def expert_reason(self, action: str) -> str:
        """Return a true sentence on a legal action; raises `ValueError` without an expert."""
        return self._expert().reason(self.env.raw, action)

    def rule_moves(self) -> dict[str, float]:
        """Return the rule bot's probability of each action; raises `ValueError` without one."""
        if (bot := services.rule_bot(self.info)) is None:
            raise ValueError(f"{self.config.key} has no rule bot")
        return bot(self.env.raw, self.observe().events)

    def step(self, action: str) -> StepResult:
        """Pass an action of the seat to move to the env."""
        assert not self.done, "the game is over"
        seat = self.seat
        try:
            with self._chance:
                over, invalid, reason = self.env.step(action)
        except ServiceDownError:
            raise
        except (Exception, SystemExit) as error:  # of a user's env
            if not self._is_movers_fault(action):
                raise
            self.turns, self.raised = self.turns + 1, True
            raised = f"the game raised {type(error).__name__}: {error}"
            self._end_by_forfeit(seat, shorten(raised)[0])
            return StepResult(done=True, invalid=True)
        self._actions = (*self._actions, action)
        self.turns += 1
        self._refusals = [*self._refusals]  # copies of the game share its lists
        self._refusals[seat] = self._refusals[seat] + 1 if invalid else 0
        if invalid and (over or self._refusals[seat] > self.config.invalid_moves.allowed):
            self._end_by_forfeit(seat, reason)
        elif over:
            self._end(reason)
        elif self.turns >= self.config.max_turns:
            self.cut_off(f"cut off after {self.turns} turns")
        return StepResult(self.done, invalid)

    def cut_off(self, reason: str) -> None:
        """Truncate the game at its current position; nobody wins."""
        self.truncated = self.done = True
        self.reason = reason

    def reseed(self, seed: int) -> None:
        """Draw all further chance from another random state."""
        self._chance = Chance(seed)

    def copied(self) -> "Game":
        """Return an independent copy that shares this game's random state."""
        return self.copies()()

    def copies(self) -> Callable[[], "Game"]:
        """Return a function that makes such copies of the current position, even after moves."""
        env, kept = copies(self.env), copy.copy(self)

        def copy_again() -> Game:
            game = copy.copy(kept)
            game.env = env()
            return game

        return copy_again

    def again(self) -> "Game":
        """Replay the game in a new env, up to the action at which the env raised: the env that
        raised may be in any state."""
        game = Game(self.config, self._seed)
        for action in self._actions:
            game.observe()
            game.step(action)
        return game

    def take_cut(self) -> int:
        """Return the characters cut from overlong messages since the last call, over all seats."""
        return self.env.take_cut()

    def _expert(self) -> Expert:
        if self.info.expert is None:
            key = self.config.key
            raise ValueError(f"{key} has no expert; games with an expert: {EXPERT_GAMES}")
        return self.info.expert

    def _seating(self) -> list[int]:
        """Return the number that the env's reset gave each seat."""
        seats, own = self.config.seats, self.config.seating
        numbers = self.env.seating(seats) if own is None else list(load_target(own)(self.env.raw))
        if sorted(numbers) != [*range(seats)]:
            raise SeatingError(f"returned {numbers}, not a permutation of 0 to {seats - 1}")
        return numbers

    def _is_movers_fault(self, action: str) -> bool:
        """Return whether the action at which the env raised was illegal."""
        if not services.lists_legal_moves(self.config):
            return self._trusted
        before = self.again()
        before.observe()
        return action.strip() not in before.legal_moves()

    def _end_by_forfeit(self, seat: int, why: str) -> None:
        policy = self.config.invalid_moves
        self.done = True
        self.forfeit = seat
        self.outcomes = [policy.others_reward] * self.config.seats
        for lost in next((team for team in self._teams if seat in team), (seat,)):
            self.outcomes[lost] = policy.outcome(-(self.stakes or 0.0) / self.payoff_scale)
        number = self._numbers[seat]
        self.reason = f"Player {number} forfeits by an invalid move: {why}".removesuffix(": ")

    def _end(self, reason: str) -> None:
        self.done = True
        values, scale = self._payoffs(), self.payoff_scale
        self.payoffs = [values[number] for number in self._numbers]
        self.outcomes = [payoff / scale for payoff in self.payoffs]
        self.reason = reason

    def own_rewards(self) -> list[float] | None:
        """Return the rewards that a finished TextArena env gives its seats; None for other envs."""
        rewards = getattr(getattr(self.env.raw, "state", None), "rewards", None)
        if not isinstance(rewards, dict):
            return None
        return [float(rewards.get(number, 0.0)) for number in self._numbers]

    def _payoffs(self) -> list[float]:
        """Return the finished env's payoff for each number.

        Raises `ValueError` if they are not one finite number per seat, or if they exceed the scale
        that the game declares.
        """
        config, scale = self.config, None
        if config.payoffs is not None:
            values = load_target(config.payoffs)(self.env.raw)
        else:
            values, scale = self.env.payoffs(), self.env.scale()
        payoffs = [float(value) for value in values]
        if len(payoffs) != config.seats or not all(map(math.isfinite, payoffs)):
            raise ValueError(f"{config.key} pays {values!r}; expected one number per seat")
        if scale is not None and max(map(abs, payoffs)) > scale:
            raise ValueError(f"{config.key} pays {values!r}, which exceeds its scale of {scale:g}")
        return payoffs
