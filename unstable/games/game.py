"""One play of an env: its own chance, what each seat has been shown, and how it ends.

TextArena draws from the process-wide `random` and repeats every board to every seat. Here each game
owns its random state, so that games can be interleaved, and each seat sees what it needs, once.
"""

import copy
import re
from dataclasses import replace
from typing import NamedTuple

from textarena import GAME_ID, Env, ObservationType
from textarena.core import Message

from unstable.config import GameConfig
from unstable.games import services
from unstable.games.chance import Chance
from unstable.games.envs import make_env
from unstable.prompts import MAX_EVENTS, shorten
from unstable.types import Observation
from unstable.types.seeds import derive_seed

_LEADING_LINES = re.compile(r"\A(?:[^\S\n]*\n)+")
_TOKEN = re.compile(r"\[[^\[\]]*\]")
_BOARD_LINES = 3  # the fewest of what is looked for in events
_ALIKE = 0.6  # of its lines more than this share are as long as a board's


class StepResult(NamedTuple):
    """What became of an action: the game is over; the env refused it."""

    done: bool
    invalid: bool


class Game:
    """One play, begun: observe and step in turn until `done`, then read `outcomes` and the rest.

    A seat is a role: where a reset deals roles, `services.seating` finds the env's number of it.

    Invalid moves are counted here and not by the env, so that every game follows the config: a seat
    that makes more than `invalid_moves.allowed` in a row forfeits, which ends the game for all.

    An action at which the env raises is a forfeit too, if the game lists its legal moves and the
    action is none of them, or lists none and is `trusted`: else the error comes through.
    """

    def __init__(self, config: GameConfig, seed: int, *, trusted: bool = False) -> None:
        self.config = config
        self._seed, self._trusted = seed, trusted
        self._actions: list[str] = []
        self.turns = 0
        self.done = False
        self.payoffs = [0.0] * config.seats
        self.outcomes = [0.0] * config.seats
        self.forfeit: int | None = None
        self.raised = False  # that is what the forfeit is for
        self.truncated = False
        self.reason = ""
        self._chance = Chance(seed)
        self._refusals = [0] * config.seats
        with self._chance:
            self.env = make_env(config)
            events = _shows_events(config.events, self.env)
            self._compact = services.compact(config, self.env)
            self.env.reset(num_players=config.seats, seed=derive_seed(seed, "env"))
            self._numbers = services.seating(config, self.env)  # by seat
            self._teams = services.teams(config, self.env)
        self._seat_of = [self._numbers.index(number) for number in range(config.seats)]
        self._views = [_View(number, events) for number in self._numbers]
        # One more than is allowed, so that the env itself never ends a game over invalid moves.
        self.env.state.error_allowance = config.invalid_moves.allowed + 1
        self._share_messages(mover=None, invalid=False)
        form = next((view.board for view in self._views if view.board), "")
        for view in self._views:
            view.form = form

    @property
    def seat(self) -> int:
        """The seat to move."""
        return self._seat_of[self.env.state.current_player_id]

    @property
    def board(self) -> str:
        """The last board that the seat to move was shown; empty where it saw none."""
        return self._views[self.seat].board

    def observe(self) -> Observation:
        """What the seat to move needs to know; asking twice gives the same."""
        with self._chance:
            number, messages = self.env.get_observation()
        seat = self._seat_of[number]
        self._views[seat].add(messages)
        observation = self._views[seat].observation(seat)
        if self._compact is None:
            return observation
        position = self._compact.position(self.env)
        return replace(observation, brief=self._compact.brief, position=position)

    def legal_moves(self) -> list[str]:
        """The legal actions of the seat to move; ValueError for a game that does not list them."""
        return services.legal_moves(self.config, self.env, self._views[self.seat].board)

    def action_values(self) -> dict[str, float] | None:
        """Outcome of each legal action for the seat to move, if all play perfectly after it.

        None for a game that is not solved.
        """
        return services.action_values(self.env)

    def expert_moves(self) -> dict[str, float]:
        """Probability of each action that an expert would play for the seat to move.

        The optimal moves evenly, or an equilibrium's mix; `ValueError` for a game without an
        expert.
        """
        return services.expert(self.config, self.env).moves(self.env)

    def rule_moves(self) -> dict[str, float]:
        """The same of the game's rule bot; `ValueError` for a game without one."""
        rule = services.rules(self.config)
        if rule is None:
            raise ValueError(
                f"{self.config.key} has no rule bot; these have: {services.RULE_GAMES}"
            )
        return rule(self.env, self.observe().events)

    def expert_reason(self, action: str) -> str:
        """One true sentence on what a legal action of the seat to move does; errors as above."""
        return services.expert(self.config, self.env).reason(self.env, action)

    def step(self, action: str) -> StepResult:
        """Give the env an action of the seat to move."""
        assert not self.done, "the game is over"
        seat, state = self.seat, self.env.state
        errors = getattr(state, "error_count", 0)
        number = self._numbers[seat]
        state.game_info[number]["invalid_move"] = False
        try:
            with self._chance:
                over, _ = self.env.step(action)
        except (Exception, SystemExit) as error:  # the fault border of a game
            if not self._is_movers_fault(action):
                raise
            self.turns, self.raised = self.turns + 1, True
            raised = f"the game raised {type(error).__name__}: {error}"
            self._end_by_forfeit(seat, shorten(raised)[0])
            return StepResult(done=True, invalid=True)
        self._actions.append(action)
        invalid = getattr(state, "error_count", 0) > errors
        invalid |= state.game_info[number]["invalid_move"]
        self.turns += 1
        self._refusals[seat] = self._refusals[seat] + 1 if invalid else 0
        self._share_messages(seat, invalid)
        if invalid and (over or self._refusals[seat] > self.config.invalid_moves.allowed):
            self._end_by_forfeit(seat, self._views[seat].refusal or self._last_word())
        elif over:
            self._end()
        elif self.turns >= self.config.max_turns:
            self.cut_off(f"cut off after {self.turns} turns")
        return StepResult(self.done, invalid)

    def cut_off(self, reason: str) -> None:
        """End the game where it is; nobody has won."""
        self.truncated = self.done = True
        self.reason = reason

    def copied(self) -> "Game":
        """A copy that goes its own way, but draws from the same chance."""
        shared = (self.config, self._chance, self._compact)
        return copy.deepcopy(self, {id(each): each for each in shared})

    def again(self) -> "Game":
        """The same game as it was before the action at which the env raised: that env may be
        anywhere by now, so another one is led there."""
        game = Game(self.config, self._seed)
        for action in self._actions:
            game.observe()
            game.step(action)
        return game

    def take_cut(self) -> int:
        """Characters of over-long messages that were left out, over all seats, since the last."""
        cut = sum(view.cut_characters for view in self._views)
        for view in self._views:
            view.cut_characters = 0
        return cut

    def _share_messages(self, mover: int | None, invalid: bool) -> None:
        for number, queue in self.env.state.observations.items():
            seat = self._seat_of[number]
            self._views[seat].add(queue, refused=invalid, mine=seat == mover)
            queue.clear()

    def _is_movers_fault(self, action: str) -> bool:
        """Whether the action at which the env raised was no legal one."""
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
            self.outcomes[lost] = policy.forfeit_reward
        number = self._numbers[seat]
        self.reason = f"Player {number} forfeits by an invalid move: {why}".removesuffix(": ")

    def _end(self) -> None:
        self.done = True
        worth, scale = services.payoffs(self.config, self.env)
        self.payoffs = [worth[number] for number in self._numbers]
        self.outcomes = [payoff / scale for payoff in self.payoffs]
        self.reason = self._last_word()

    def _last_word(self) -> str:
        infos = self.env.state.game_info.values()
        reason = next((str(info["reason"]) for info in infos if info.get("reason")), "")
        return shorten(reason)[0]


class _View:
    """What one seat has been shown: rules, events in order, the last board, the last refusal."""

    def __init__(self, number: int, shows_events: bool) -> None:
        self._shows_events = shows_events
        self.board = ""
        self.form = ""  # a board of this game, which a seat without one is shown alike
        self.refusal = ""
        self._number = number  # that the env gave the seat
        self._rules: list[str] = []
        self._events: list[str] = []
        self._notice = ""
        self._board_place = 0  # number of events before the board
        self._board_is_old = False  # the game has said something since
        self.cut_characters = 0  # of messages that were too long

    def add(self, messages: list[Message], *, refused: bool = False, mine: bool = False) -> None:
        """Take in what a step of the env said; `refused`: it refused the action, `mine` or not."""
        if mine:
            self._notice = self.refusal = ""
        for sender, message, kind in messages:
            if not isinstance(message, str):  # some envs mix up the order: (seat, action, kind)
                continue
            text, cut = shorten(_LEADING_LINES.sub("", message).rstrip())
            self.cut_characters += cut
            if not text:
                continue
            if kind is ObservationType.GAME_BOARD:
                self._set_board(text)
            elif kind is ObservationType.PROMPT:
                self._rules.append(text)
            elif kind is ObservationType.PLAYER_ACTION:
                # Talk is kept as it was said; a bare [move] only if the env does not describe it.
                text = text.lstrip()
                if not refused and not (_TOKEN.fullmatch(text) and _describe(messages)):
                    self._add_event(f"{self._name(sender)}: {text}")
            elif kind is ObservationType.GAME_ADMIN and refused and mine:
                self._notice = text
                self.refusal = text.partition("Reason: ")[2].partition(" Please resubmit")[0]
            else:
                self._add_said(text, kind)

    def _add_said(self, text: str, kind: ObservationType) -> None:
        """What the game says; a board that it ends with is the board from now on."""
        event, board = _split_board(text, self.board or self.form)
        self._add_event(event)
        if board:
            self._set_board(board)
        else:
            self._board_is_old |= kind is ObservationType.GAME_MESSAGE

    def _set_board(self, text: str) -> None:
        self.board, self._board_place, self._board_is_old = text, len(self._events), False

    def _add_event(self, text: str) -> None:
        self._events.append(text)
        while len(self._events) > 1 and sum(map(len, self._events)) > MAX_EVENTS:
            self.cut_characters += len(self._events.pop(0))
            self._board_place = max(self._board_place - 1, 0)

    def observation(self, seat: int) -> Observation:
        """A board that the game has spoken after stands where it was said, among the events."""
        events, board = list(self._events), self.board
        if self._board_is_old and board:
            events.insert(self._board_place, board)
            board = ""
        elif board and not self._shows_events:
            events = []
        rules = "\n\n".join(self._rules)
        return Observation(seat=seat, rules=rules, events=events, board=board, notice=self._notice)

    def _name(self, sender: int) -> str:
        # Envs of one player sign his actions as the game's.
        return "You" if sender in (self._number, GAME_ID) else f"Player {sender}"


def _shows_events(setting: str, env: Env) -> bool:
    return not services.board_shows_all(env) if setting == "auto" else setting == "all"


def _split_board(text: str, form: str) -> tuple[str, str]:
    """What an event says, and the board that it ends with: as many lines as `form`, as long."""
    lines, widths = text.split("\n"), [len(line.strip()) for line in form.split("\n")]
    head, last = lines[: -len(widths)], lines[-len(widths) :]
    if not head or len(widths) < _BOARD_LINES:
        return text, ""
    pairs = zip(last, widths, strict=True)
    alike = sum(len(line.strip()) == width for line, width in pairs)
    if alike <= len(widths) * _ALIKE:
        return text, ""
    return "\n".join(head).rstrip(), "\n".join(last)


def _describe(messages: list[Message]) -> bool:
    """Whether the game itself says what was done; a board or a hint may not show it."""
    return any(kind is ObservationType.GAME_ACTION_DESCRIPTION for _, _, kind in messages)
