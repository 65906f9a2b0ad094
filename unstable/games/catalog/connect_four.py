"""ConnectFour by alpha-beta search over bitboards: strong, but perfect only near the end.

A board is two integers, the discs of the seat to move and of the other. A column is `rows` bits
from the bottom up and an empty bit above them, so that no line wraps into the next column.
"""

from functools import cache, lru_cache
from typing import Any

from unstable.games.info import Compact, Expert, GameInfo

DEPTH = 6
"""Search depth in moves, without forced moves that block a four."""

_WIN = 10_000  # value of a win, minus the discs on the board: earlier wins are better
_THREAT = 16  # value of a cell that would complete a four, relative to a line through a disc


def moves(env: Any) -> dict[str, float]:
    """Return the best columns, equally likely: wins, else blocks or all, by search to `DEPTH`."""
    search, mine, theirs = _read(env)
    best = search.best_columns(mine, theirs, DEPTH)
    return dict.fromkeys((f"[col {column}]" for column in best), 1 / len(best))


def reason(env: Any, action: str) -> str:
    """Return a sentence on a four completed or blocked, a threat, or the other's next four."""
    search, mine, theirs = _read(env)
    column = int(action.strip("[]").removeprefix("col"))
    me, other = ("X", "O") if env.state.current_player_id == 0 else ("O", "X")
    cell = search.playable(mine | theirs) & search.column(column)
    if search.completions(mine, theirs) & cell:
        return f"Column {column} completes four in a row for {me} and wins."
    if search.completions(theirs, mine) & cell:
        return f"Column {column} blocks {other}, which would complete four in a row there."
    mine |= cell
    playable = search.playable(mine | theirs)
    if search.completions(theirs, mine) & playable:
        return f"After column {column}, {other} can complete four in a row at once."
    if threats := search.completions(mine, theirs) & playable:
        count = threats.bit_count()
        places = "one column" if count == 1 else f"{count} columns"
        return f"After column {column}, {me} threatens to complete four in a row in {places}."
    return f"After column {column}, {other} cannot complete four in a row at once."


def _read(env: Any) -> tuple["_Search", int, int]:
    """Return the search for this size of board, the mover's discs, and the other's discs."""
    board = env.state.game_state["board"]
    search = _search(len(board), len(board[0]))
    me = "X" if env.state.current_player_id == 0 else "O"
    discs = {"X": 0, "O": 0, ".": 0}
    for height, row in enumerate(reversed(board)):
        for column, disc in enumerate(row):
            discs[disc] |= search.bit(column, height)
    return search, discs[me], discs["O" if me == "X" else "X"]


class _Search:
    """Alpha-beta search on a board of a given size."""

    def __init__(self, rows: int, columns: int) -> None:
        self._rows = rows
        self._stride = rows + 1
        self._bottom = sum(self.bit(column, 0) for column in range(columns))
        self._cells = self._bottom * ((1 << rows) - 1)
        self._shifts = (1, rows, rows + 1, rows + 2)  # vertical, falling, horizontal, rising
        middle_first = sorted(range(columns), key=lambda column: abs(2 * column - columns + 1))
        self._columns = {column: self.column(column) for column in middle_first}
        self._centrality = self._count_lines()
        self.best_columns = lru_cache(maxsize=1 << 14)(self._best_columns)

    def bit(self, column: int, height: int) -> int:
        """Return the cell `height` above the bottom of a column."""
        return 1 << column * self._stride + height

    def column(self, column: int) -> int:
        """Return the cells of a column."""
        return ((1 << self._rows) - 1) << column * self._stride

    def playable(self, discs: int) -> int:
        """Return the cell of each column into which the next disc falls."""
        return (discs + self._bottom) & self._cells

    def completions(self, mine: int, theirs: int) -> int:
        """Return the empty cells, playable or not, where one more of my discs makes a four."""
        found = 0
        for shift in self._shifts:
            up, down = mine << shift, mine >> shift
            pair_up, pair_down = up & mine << 2 * shift, down & mine >> 2 * shift
            found |= pair_up & (mine << 3 * shift | down) | pair_down & (mine >> 3 * shift | up)
        return found & self._cells & ~(mine | theirs)

    def _best_columns(self, mine: int, theirs: int, depth: int) -> tuple[int, ...]:
        """Return the columns of the highest value to the mover; blocks even if all columns lose."""
        playable = self.playable(mine | theirs)
        if wins := playable & self.completions(mine, theirs):
            return tuple(column for column, cells in self._columns.items() if cells & wins)
        playable = playable & self.completions(theirs, mine) or playable
        best = -_WIN
        found: list[int] = []
        for column, cells in self._columns.items():
            if move := playable & cells:
                # The window starts one below the best value, to find all moves of that value.
                value = -self.value(theirs, mine | move, depth - 1, -_WIN, 1 - best)
                if value > best:
                    best, found = value, []
                if value == best:
                    found.append(column)
        return tuple(found)

    def value(self, mine: int, theirs: int, depth: int, alpha: int, beta: int) -> int:
        """Return the value to the mover: exact within (alpha, beta), else a bound outside of it."""
        discs = mine | theirs
        playable = self.playable(discs)
        my_fours = self.completions(mine, theirs)
        if my_fours & playable:
            return _WIN - discs.bit_count() - 1
        their_fours = self.completions(theirs, mine)
        forced = their_fours & playable
        if forced & (forced - 1):
            return discs.bit_count() + 2 - _WIN
        if forced:
            return -self.value(theirs, mine | forced, depth, -beta, -alpha)
        if not playable:
            return 0
        if depth <= 0:
            threats = my_fours.bit_count() - their_fours.bit_count()
            return _THREAT * threats + self._lines(mine) - self._lines(theirs)
        best = -_WIN
        for cells in self._columns.values():
            if move := playable & cells:
                value = -self.value(theirs, mine | move, depth - 1, -beta, -max(alpha, best))
                best = max(best, value)
                if best >= beta:
                    break
        return best

    def _lines(self, discs: int) -> int:
        """Count the lines of four through each of the discs."""
        return sum(lines * (discs & cells).bit_count() for lines, cells in self._centrality)

    def _count_lines(self) -> list[tuple[int, int]]:
        """Return the cells for each number of lines of four through them."""
        count: dict[int, int] = {}
        for shift in self._shifts:
            for start in range(self._cells.bit_length()):
                line = [1 << start + step * shift for step in range(4)]
                if all(cell & self._cells for cell in line):
                    for cell in line:
                        count[cell] = count.get(cell, 0) + 1
        by_count: dict[int, int] = {}
        for cell, lines in count.items():
            by_count[lines] = by_count.get(lines, 0) | cell
        return sorted(by_count.items())


_search = cache(_Search)


def legal_moves(env: Any) -> list[str]:
    """Return the columns that are not full."""
    top = env.state.game_state["board"][0]
    return [f"[col {column}]" for column, cell in enumerate(top) if cell == "."]


def position(env: Any) -> str:
    """Return the columns with discs from the bottom up, X the seat's; full ones have no number.

    0 1XO 2 3OX 4 5 6: two discs each in columns 1 and 3.
    """
    board = env.state.game_state["board"]
    me = "X" if env.state.current_player_id == 0 else "O"
    columns = []
    for column in range(len(board[0])):
        discs = [row[column] for row in reversed(board) if row[column] != "."]
        number = "" if len(discs) == len(board) else str(column)
        columns.append(number + "".join("X" if disc == me else "O" for disc in discs))
    return " ".join(columns)


COMPACT = Compact(
    "Connect Four: four discs in a row, up, across or diagonally, win. Each open column is its "
    "number and its discs from the bottom up: X is yours, O is the other's. Answer with col and "
    "the number of an open column, such as col 3, nothing else.",
    position,
    fits=lambda env: env.is_open,  # in blind games, nobody sees the discs
)
INFO = GameInfo(
    env="ConnectFourEnv",
    name="ConnectFour",
    legal_moves=legal_moves,
    board_shows_all=lambda env: env.is_open,  # False in blind games
    perfect_information=lambda env: env.is_open,
    expert=Expert(moves, reason),
    compact=COMPACT,
    state=position,
)
