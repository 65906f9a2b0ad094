"""TextArena's envs as an `Environment`: found by id or class, constructed without network access.

TextArena sends everything as messages, and repeats every board to every seat. Here each seat sees
what it needs, once. In this package, only this file and the catalog read an env's state.
"""

import re
from collections import deque
from functools import lru_cache
from typing import Any

import textarena
from textarena import GAME_ID, ObservationType
from textarena.core import Message
from textarena.envs.registration import ENV_REGISTRY

from unstable.config import GameConfig
from unstable.config.plugins import load_target
from unstable.games.bridges import bridged_class, is_bridged
from unstable.games.catalog.bare import GAME_ENV
from unstable.games.environment import DrivenEnvironment, Environment, EnvStep
from unstable.games.info import GameInfo
from unstable.games.words import offline
from unstable.prompts import MAX_EVENTS, shorten
from unstable.types import Observation

_ID = re.compile(r"(.+?)-v\d+(.*?)(?:-mdp|-raw|-train)?")  # family, variant, view of an id
_LEADING_LINES = re.compile(r"\A(?:[^\S\n]*\n)+")
_LIST = re.compile(r"^(?:Available Moves|Valid moves):(.*)$", re.MULTILINE | re.IGNORECASE)
_TOKEN = re.compile(r"\[[^\[\]]*\]")
_BOARD_LINES = 3  # minimum lines of a board that is searched for in events
_ALIKE = 0.6  # share of lines as long as a board's above which a text is a board


def known_ids() -> list[str]:
    """Return the installed TextArena's ids as a config names them, without suffixes for wrappers.

    They end in -v0, or in -v1 under TextArena 1.x, except for variants: ConnectFour-v0-blind.
    """
    if GAME_ENV:
        return [name for name in ENV_REGISTRY if not name.endswith("-mdp")]
    suffixes = ("-raw", "-train")
    plain = {name: spec for name, spec in ENV_REGISTRY.items() if not name.endswith(suffixes)}
    return [
        name
        for name, spec in plain.items()
        if f"{name}-raw" in ENV_REGISTRY or not spec.default_wrappers
    ]


def is_id(env: str) -> bool:
    """Return whether a config may name an id; those of 1.x for its two views are one game."""
    return env in known_ids() or bool(GAME_ENV and env in ENV_REGISTRY)


def id_here(env: str) -> str | None:
    """Return the installed TextArena's id of a game that `env` names in another version's form.

    Under 0.7, id_here("TicTacToe-v1-mdp") is "TicTacToe-v0". The family's main id replaces a
    variant that is not installed; None if the family is not installed.
    """
    if (named := _ID.fullmatch(env)) is None:
        return None
    family, variant = f"{named[1]}-v{int(bool(GAME_ENV))}", named[2]
    return next((id for id in (f"{family}{variant}", family) if id in known_ids()), None)


def raw_id(env: str) -> str:
    """Return the id of TextArena's env without wrappers."""
    return f"{env}-raw" if f"{env}-raw" in ENV_REGISTRY else env


def env_class(config: GameConfig) -> type:
    """Return the class of `games.env`: TextArena's, another library's, or a custom one.

    Errors of importing it propagate; raises `KeyError` for an unknown id.
    """
    if config.is_driven:
        return DrivenEnvironment
    if is_bridged(config.env):
        return bridged_class(config.env)
    target = config.env if ":" in config.env else ENV_REGISTRY[raw_id(config.env)].entry_point
    with offline():
        return load_target(target) if isinstance(target, str) else target


def is_env(cls: object) -> bool:
    """Return whether an object is a class of envs, either `Environment` or TextArena's."""
    return isinstance(cls, type) and issubclass(cls, textarena.Env | Environment)


def make_raw(config: GameConfig) -> textarena.Env:
    """Construct an env without wrappers, before its reset; errors of its constructor propagate."""
    with offline():
        if ":" in config.env:
            return env_class(config)(**config.args)
        return textarena.make(raw_id(config.env), **config.args)


class TextArenaEnvironment(Environment):
    """One play of a TextArena env, with the metadata of its game."""

    def __init__(self, config: GameConfig, info: GameInfo) -> None:
        self._config, self.info = config, info
        self._env: Any = self._make()
        self._views: list[_SeatView] = []  # by the env's number of the seat
        self._last: deque[str] = deque()  # accepted actions that a seat may not have seen yet

    def _make(self) -> Any:
        return make_raw(self._config)

    @property
    def raw(self) -> Any:
        return self._env

    def reset(self, seats: int, seed: int) -> None:
        self._env.reset(num_players=seats, seed=seed)
        # One more than the limit, so that the env itself never ends a game for invalid moves.
        self._env.state.error_allowance = self._config.invalid_moves.allowed + 1
        self._views = [_SeatView(number) for number in range(seats)]
        self._last = deque(maxlen=seats - 1)
        self._share_messages(mover=None, refused=False)
        form = next((view.board for view in self._views if view.board), "")
        for view in self._views:
            view.form = form

    @property
    def mover(self) -> int:
        return self._env.state.current_player_id

    @property
    def board(self) -> str:
        return self._views[self.mover].board

    def observe(self) -> Observation:
        number, messages = self._env.get_observation()
        self._views[number].add(messages)
        return self._views[number].observation()

    def legal_moves(self) -> list[str]:
        """Return the legal moves of the catalog, or the moves that the mover's board lists."""
        if self.info.legal_moves is not None:
            return self.info.legal_moves(self._env)
        if found := _LIST.search(self.board):
            return re.findall(r"\[[^\[\]]+\]", found[1])
        raise ValueError(f"{self._config.key} does not list its legal moves; set games.legal_moves")

    def step(self, action: str) -> EnvStep:
        """Pass the text to the env, whose state then shows whether it refused the move."""
        number, state = self.mover, self._env.state
        errors = getattr(state, "error_count", 0)
        state.game_info[number]["invalid_move"] = False
        over, _ = self._env.step(action)
        refused = getattr(state, "error_count", 0) > errors
        refused |= state.game_info[number]["invalid_move"]
        return self._taken(number, action, over=over, refused=refused)

    def _taken(self, number: int, action: str, *, over: bool, refused: bool) -> EnvStep:
        """Show what the env says of a seat's action, and return its result."""
        self._share_messages(number, refused)
        if not refused:
            self._last.append(action.strip())
        if not (over or refused):
            return EnvStep(over=False, refused=False)
        return EnvStep(over, refused, self._views[number].refusal or self._last_word())

    def whole_state(self) -> str:
        """Return the view of every seat, and the last actions, which may be in no view yet."""
        if (position := super().whole_state()) is not None:
            return position
        shown = (view.observation() for view in self._views)
        parts = (part for seen in shown for part in (seen.rules, *seen.events, seen.board))
        return "\n".join([*filter(None, parts), *self._last])

    def payoffs(self) -> list[float]:
        """Return the payoffs that the catalog declares, or the env's rewards."""
        if self.info.payoffs is not None:
            return self.info.payoffs.of(self._env)
        rewards = self._env.state.rewards or {}
        return [rewards.get(number, 0.0) for number in range(self._config.seats)]

    def scale(self) -> float | None:
        return None if self.info.payoffs is None else self.info.payoffs.scale(self._env)

    def teams(self, seats: int) -> tuple[tuple[int, ...], ...]:
        return () if self.info.teams is None else self.info.teams.of(self._env, seats)

    def seating(self, seats: int) -> list[int]:
        declared = self.info.teams
        if declared is None or declared.seating is None:
            return super().seating(seats)
        return declared.seating(self._env)

    def missing(self) -> set[int]:
        """Return the numbers for which the env has no messages."""
        return set(range(self._config.seats)) - set(self._env.state.observations)

    def take_cut(self) -> int:
        cut = 0
        for view in self._views:
            cut += view.cut_characters
            view.cut_characters = 0
        return cut

    def _share_messages(self, mover: int | None, refused: bool) -> None:
        for number, queue in self._env.state.observations.items():
            self._views[number].add(queue, refused=refused, mine=number == mover)
            queue.clear()

    def _last_word(self) -> str:
        infos = self._env.state.game_info.values()
        reason = next((str(info["reason"]) for info in infos if info.get("reason")), "")
        return shorten(reason)[0]


class _SeatView:
    """View of one seat: rules, events in order, the last board, the last refusal."""

    def __init__(self, number: int) -> None:
        self.board = ""
        self.form = ""  # a board of this game, the pattern for seats that have not seen one
        self.refusal = ""
        self._number = number  # the env's number of the seat
        self._rules: list[str] = []
        self._events: list[str] = []
        self._notice = ""
        self._board_place = 0  # number of events before the board
        self._board_is_old = False  # the game has sent a message since the board
        self.cut_characters = 0  # of overlong messages

    def add(self, messages: list[Message], *, refused: bool = False, mine: bool = False) -> None:
        """Add the messages of a step, whose action was `mine` or another's, and maybe `refused`."""
        if mine:
            self._notice = self.refusal = ""
        for sender, message, kind in messages:
            if not isinstance(message, str):  # some envs use another order: (seat, action, kind)
                continue
            text, cut = _cleaned(message)
            self.cut_characters += cut
            if not text:
                continue
            if kind is ObservationType.GAME_BOARD:
                self._set_board(text)
            elif kind is ObservationType.PROMPT:
                self._rules.append(text)
            elif kind is ObservationType.PLAYER_ACTION:
                # Talk is kept verbatim; a bare [move] only if the env does not describe it.
                text = text.lstrip()
                if not refused and not (_TOKEN.fullmatch(text) and _describe(messages)):
                    self._add_event(f"{self._name(sender)}: {text}")
            elif kind is ObservationType.GAME_ADMIN and refused and mine:
                self._notice = text
                self.refusal = text.partition("Reason: ")[2].partition(" Please resubmit")[0]
            else:
                self._add_message(text, kind)

    def _add_message(self, text: str, kind: ObservationType) -> None:
        """Add a message of the game; if it ends with a board, that replaces the board."""
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
        length = sum(map(len, self._events))
        if length <= MAX_EVENTS:
            return
        # Drops half at once, so that the next prompts share a prefix until the limit is reached.
        while len(self._events) > 1 and length > MAX_EVENTS // 2:
            oldest = len(self._events.pop(0))
            length, self.cut_characters = length - oldest, self.cut_characters + oldest
            self._board_place = max(self._board_place - 1, 0)

    def observation(self) -> Observation:
        """Return the seat's observation; a board followed by messages moves into the events."""
        events, board = list(self._events), self.board
        if self._board_is_old and board:
            events.insert(self._board_place, board)
            board = ""
        rules, number = "\n\n".join(self._rules), self._number
        return Observation(
            seat=number, rules=rules, events=events, board=board, notice=self._notice
        )

    def _name(self, sender: int) -> str:
        # Single-player envs send the player's actions with the game's id.
        return "You" if sender in (self._number, GAME_ID) else f"Player {sender}"


@lru_cache(maxsize=16)  # all seats get the same messages
def _cleaned(message: str) -> tuple[str, int]:
    """Shorten the message without leading empty lines and trailing white space."""
    text = message.rstrip()
    return shorten(_LEADING_LINES.sub("", text) if text[:1].isspace() else text)


def _split_board(text: str, form: str) -> tuple[str, str]:
    """Split an event into its text and the board at its end, with lines as long as in `form`."""
    height = form.count("\n") + 1
    if height < _BOARD_LINES or text.count("\n") < height:
        return text, ""
    lines, widths = text.split("\n"), [len(line.strip()) for line in form.split("\n")]
    head, last = lines[:-height], lines[-height:]
    pairs = zip(last, widths, strict=True)
    alike = sum(len(line.strip()) == width for line, width in pairs)
    if alike <= len(widths) * _ALIKE:
        return text, ""
    return "\n".join(head).rstrip(), "\n".join(last)


def _describe(messages: list[Message]) -> bool:
    """Return whether the game describes the action; a board or a hint may not show it."""
    return any(kind is ObservationType.GAME_ACTION_DESCRIPTION for _, _, kind in messages)
