"""TicTacToe and WildTicTacToe, played perfectly by exhaustive search."""

from functools import cache, partial
from itertools import chain
from random import Random
from typing import Any, NamedTuple

from unstable.games.info import Compact, Expert, GameInfo, Question, SmallTree, always

Board = tuple[str, ...]  # nine cells, row by row: "O", "X" or ""
_LINES = {
    "row 0-1-2": (0, 1, 2),
    "row 3-4-5": (3, 4, 5),
    "row 6-7-8": (6, 7, 8),
    "column 0-3-6": (0, 3, 6),
    "column 1-4-7": (1, 4, 7),
    "column 2-5-8": (2, 5, 8),
    "diagonal 0-4-8": (0, 4, 8),
    "diagonal 2-4-6": (2, 4, 6),
}
_OTHER = {"X": "O", "O": "X"}


class _Cell(NamedTuple):
    mark: str
    cell: int


def moves(env: Any, *, wild: bool = False) -> dict[str, float]:
    """Return the optimal moves, equally likely: soonest wins, else draws, else latest losses."""
    return {_text(move, wild): p for move, p in _best(_board(env), wild).items()}


def action_values(env: Any, *, wild: bool = False) -> dict[str, float]:
    """Return each move's outcome under perfect play: 1 for a win, 0 for a draw, -1 for a loss."""
    values = _values(_board(env), wild)
    return {_text(move, wild): float((value > 0) - (value < 0)) for move, value in values.items()}


def _text(move: _Cell, wild: bool) -> str:
    """Return a move in the env's form; in the wild game a seat may place either mark."""
    return f"[{move.mark} {move.cell}]" if wild else f"[{move.cell}]"


def reason(env: Any, action: str) -> str:
    """Return a sentence on a completed or blocked line, a double threat, or the cell."""
    board = _board(env)
    move = _Cell(_marks(board, wild=False)[0], int(action.strip("[]")))
    mark, cell = move
    other = _OTHER[mark]
    if line := _completed(board, move):
        return f"{mark} in {cell} completes the {line} and wins."
    if line := _completed(board, _Cell(other, cell)):
        return f"{mark} in {cell} blocks {other}, which would complete the {line}."
    after = _after(board, move)
    threats = [at for at in _empty(after) if _completed(after, _Cell(mark, at))]
    if len(threats) > 1:
        places = " and ".join(map(str, threats))
        return f"{mark} in {cell} threatens to complete a line at {places} at once."
    if cell == 4:
        return f"{mark} takes the centre, which lies on four lines."
    kind, lines = ("corner", "three") if cell in (0, 2, 6, 8) else ("edge", "two")
    return f"{mark} takes the {kind} {cell}, which lies on {lines} lines."


def wild_reason(env: Any, action: str) -> str:
    """Return a sentence on a completed line, or the value of the position for the next seat."""
    board = _board(env)
    mark, cell = action.strip("[]").split()
    move = _Cell(mark, int(cell))
    if line := _completed(board, move):
        return f"{mark} in {cell} completes the {line} and wins."
    value = _value(_after(board, move), wild=True)
    outcome = "the next seat wins" if value > 0 else "the next seat loses"
    return f"After {mark} in {cell}, with perfect play {outcome if value else 'nobody wins'}."


def _best(board: Board, wild: bool) -> dict[_Cell, float]:
    action_values = _values(board, wild)
    best = [move for move, value in action_values.items() if value == max(action_values.values())]
    return dict.fromkeys(best, 1 / len(best))


def _values(board: Board, wild: bool) -> dict[_Cell, int]:
    """Return the value of each legal move to the seat to move (see `_value`)."""
    return {
        move: -_value(_after(board, move), wild)
        for cell in _empty(board)
        for move in (_Cell(mark, cell) for mark in _marks(board, wild))
    }


@cache
def _value(board: Board, wild: bool) -> int:
    """Return the board's value to the mover: positive for a win, larger in size if it is sooner."""
    if any(board[a] and board[a] == board[b] == board[c] for a, b, c in _LINES.values()):
        return -1 - len(_empty(board))
    marks = _marks(board, wild)
    after = (_after(board, _Cell(mark, cell)) for cell in _empty(board) for mark in marks)
    return max((-_value(board, wild) for board in after), default=0)


def _board(env: Any) -> Board:
    return tuple(chain.from_iterable(env.state.game_state["board"]))


def _marks(board: Board, wild: bool) -> str:
    """Return the marks that the seat to move may place; O moves first."""
    return "XO" if wild else "X" if board.count("O") > board.count("X") else "O"


def _empty(board: Board) -> list[int]:
    return [cell for cell, mark in enumerate(board) if not mark]


def _after(board: Board, move: _Cell) -> Board:
    return (*board[: move.cell], move.mark, *board[move.cell + 1 :])


def _completed(board: Board, move: _Cell) -> str:
    """Return the name of the first line that a move completes; empty if none."""
    after = _after(board, move)
    lines = (name for name, line in _LINES.items() if move.cell in line)
    return next((name for name in lines if all(after[c] == move.mark for c in _LINES[name])), "")


def legal_moves(env: Any) -> list[str]:
    """Return a move for each empty cell, for games whose moves name a cell."""
    return [f"[{cell}]" for cell in _empty(_board(env))]


def position(env: Any) -> str:
    """Return the cells: X for the seat's marks, O for the other's, numbers for empty cells.

    >>> from unstable.games.textarena import make_raw
    >>> from unstable.config import GameConfig
    >>> env = make_raw(GameConfig(env="TicTacToe-v0"))
    >>> env.reset(num_players=2, seed=0)
    >>> _ = env.step("[4]")
    >>> position(env)
    '0123O5678'
    """
    mine = "X" if env.state.current_player_id == 1 else "O"
    shown = {mine: "X", _OTHER[mine]: "O"}
    return "".join(
        [shown.get(mark, cell) for mark, cell in zip(_board(env), "012345678", strict=True)]
    )


def _random_board(rng: Random) -> list[str]:
    """Draw the cells of any board, finished or not; four in ten get a random line of one mark."""
    cells = list(map(str, range(9)))
    order = rng.sample(range(9), rng.randint(3, 9))
    for turn, cell in enumerate(order):
        cells[cell] = "XO"[turn % 2]
    if rng.random() < 0.4:
        mark, line = rng.choice("XO"), rng.choice([*_LINES.values()])
        for cell in line:
            cells[cell] = mark
    return cells


def _won(cells: list[str], mark: str) -> bool:
    return any(all(cells[cell] == mark for cell in line) for line in _LINES.values())


def who_has_three(rng: Random) -> tuple[str, list[str]]:
    """Draw a board and a mark; the answer is the mark if it has three in a row, else -."""
    cells, mark = _random_board(rng), rng.choice("XO")
    return f"{''.join(cells)}{mark}", [mark if _won(cells, mark) else "-"]


def what_completes(rng: Random) -> tuple[str, list[str]]:
    """Draw a board and a mark; the answers are the cells where the mark completes a line, or -."""
    cells, mark = _random_board(rng), rng.choice("XO")
    completing = [
        cell
        for cell in cells
        if cell.isdecimal() and _won([mark if own == cell else own for own in cells], mark)
    ]
    return f"{''.join(cells)}{mark}", completing or ["-"]


QUESTIONS = (
    Question(
        "TicTacToe, cells row by row and then a mark: the mark if it has three in a row, else -.",
        who_has_three,
    ),
    Question(
        "TicTacToe, cells row by row and then a mark: an empty cell that would give the mark "
        "three in a row, or - if there is none.",
        what_completes,
    ),
)
COMPACT = Compact(
    "TicTacToe: three in a row win. Cells row by row: X is yours, O is the other's, a number is "
    "empty. Answer with the number of an empty cell, nothing else.",
    position,
)
INFO = GameInfo(
    env="TicTacToeEnv",
    name="TicTacToe",
    legal_moves=legal_moves,
    board_shows_all=always,
    perfect_information=always,
    small_tree=SmallTree(is_open=True),
    expert=Expert(moves, reason),
    action_values=action_values,
    compact=COMPACT,
    questions=QUESTIONS,
)
WILD = GameInfo(
    env="WildTicTacToeEnv",
    name="WildTicTacToe",
    prints_moves=True,
    board_shows_all=always,
    perfect_information=always,
    expert=Expert(partial(moves, wild=True), wild_reason),
    action_values=partial(action_values, wild=True),
    state=position,
)
