"""Rule bots for TextArena's games without an expert, each a rule of thumb.

Each takes an env and the events that the seat to move saw, and returns the probability of each
action. It uses only information that the seat has.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import permutations, product
from typing import Any

from unstable.games.catalog.bargaining import OFFERED
from unstable.games.info import Events, Probabilities

Board = list[list[str]]
Cell = tuple[int, int]

_ENDGAME = 29  # points below Pig's goal at which the race to win starts
_NEIGHBOURS = ((0, 1), (1, 0), (0, -1), (-1, 0))
_LINE = 4  # marks in a row that win ThreePlayerTicTacToe


def best(scores: Mapping[str, Any]) -> Probabilities:
    """Return the actions with the highest score, equally likely."""
    top = max(scores.values())
    chosen = [action for action, score in scores.items() if score == top]
    return dict.fromkeys(chosen, 1 / len(chosen))


def _with_mark(board: Board, cell: Cell, mark: str) -> Board:
    row, column = cell
    return [
        [mark if (i, j) == (row, column) else held for j, held in enumerate(cells)]
        for i, cells in enumerate(board)
    ]


def _empty(board: Board) -> Iterator[tuple[str, Cell]]:
    """Yield each empty cell's action and its place."""
    for row, cells in enumerate(board):
        for column, held in enumerate(cells):
            if not held:
                yield f"[{row * len(cells) + column}]", (row, column)


# SimpleTak


def tak(env: Any, events: Events) -> Probabilities:
    """Win, else block a win, else maximize the lead over the other in missing stones.

    A seat's missing stones are the fewest that complete a path between opposite edges.
    """
    board, seat = env.state.game_state["board"], env.state.current_player_id
    mine, other = "OX"[seat], "OX"[1 - seat]
    scores = {}
    for action, cell in _empty(board):
        following = _with_mark(board, cell, mine)
        own, others = stones_lacking(following, mine), stones_lacking(following, other)
        scores[action] = (own == 0, others > 1, others - own)
    return best(scores)


def stones_lacking(board: Board, mark: str) -> float:
    """Return the fewest stones that complete a path of `mark` between opposite edges, or infinity.

    The board is a square of marks; "" is an empty cell.
    """
    turned = [list(column) for column in zip(*board, strict=True)]
    return min(_lacking_downwards(board, mark), _lacking_downwards(turned, mark))


def _lacking_downwards(board: Board, mark: str) -> float:
    """Search breadth first, along stones of `mark` before other cells, as these cost nothing."""
    size = len(board)
    least = {(-1, column): 0 for column in range(size)}  # above the first row
    waiting = deque(least)
    while waiting:
        row, column = waiting.popleft()
        if row == size - 1:
            return least[row, column]
        for down, right in _NEIGHBOURS:
            place = (row + down, column + right)
            if not (0 <= place[0] < size and 0 <= place[1] < size):
                continue
            held = board[place[0]][place[1]]
            cost = least[row, column] + (held != mark)
            if held in (mark, "") and cost < least.get(place, math.inf):
                least[place] = cost
                (waiting.appendleft if held == mark else waiting.append)(place)
    return math.inf


# ThreePlayerTicTacToe


def three_player_tic_tac_toe(env: Any, events: Events) -> Probabilities:
    """Win, else block the seat that would win first, else maximize the open lines."""
    board, seat = env.state.game_state["board"], env.state.current_player_id
    mine, following, last = ("ABC"[(seat + k) % 3] for k in range(3))
    scores = {}
    for action, cell in _empty(board):
        lines = [_held(board, line) for line in _lines(len(board)) if cell in line]

        def wins(mark: str, lines: list[str] = lines) -> bool:
            return any(held == mark * (_LINE - 1) for held in lines)

        # Open lines weigh more if more of their cells have our mark.
        open_lines = sum(10 ** len(held) for held in lines if set(held) <= {mine})
        scores[action] = (wins(mine), wins(following), wins(last), open_lines)
    return best(scores)


def _held(board: Board, line: tuple[Cell, ...]) -> str:
    return "".join(board[row][column] for row, column in line)


def _lines(size: int) -> Iterator[tuple[Cell, ...]]:
    """Yield the places of all winning lines."""
    for row, column in product(range(size), repeat=2):
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
            line = tuple((row + k * down, column + k * right) for k in range(_LINE))
            if all(0 <= i < size and 0 <= j < size for i, j in line):
                yield line


# PigDice


def pig(env: Any, events: Events) -> Probabilities:
    """Play "end race or keep pace" (Neller and Presser, 2010, "Pigtail", UMAP Journal 31).

    If either score is within 29 points of the goal, rolls until it wins; otherwise holds at 21 plus
    an eighth of the other's lead.
    """
    game, seat = env.state.game_state, env.state.current_player_id
    own, other = game["scores"][seat], game["scores"][1 - seat]
    total, goal = game["turn_total"], env.winning_score
    if own + total >= goal:
        return {"[hold]": 1.0}
    if max(own, other) >= goal - _ENDGAME:
        return {"[roll]": 1.0}
    return {"[hold]" if total >= 21 + round((other - own) / 8) else "[roll]": 1.0}


# LiarsDice


def liars_dice(env: Any, events: Events) -> Probabilities:
    """Call if that is more likely to be right than the safest bid, else make that bid.

    Probabilities follow from the seat's dice and the number of other dice, with uniform faces.
    """
    game, seat = env.state.game_state, env.state.current_player_id
    own, bid = game["dice_rolls"][seat], game["current_bid"]
    hidden = sum(game["remaining_dice"].values()) - len(own)

    def truth(quantity: int, face: int) -> float:
        return _probability_of(quantity - own.count(face), hidden)

    lowest, first_face = max(1, bid["quantity"]), max(1, bid["face_value"])
    truths = {
        f"[Bid: {quantity}, {face}]": truth(quantity, face)
        for quantity, face in product((lowest, lowest + 1), range(first_face, 7))
        if (quantity, face) != (bid["quantity"], bid["face_value"])
    }
    if bid["quantity"]:
        truths["[Call]"] = 1 - truth(bid["quantity"], bid["face_value"])
    return best(truths)


def _probability_of(wanted: int, dice: int) -> float:
    """Return the probability that at least `wanted` of the dice show a given face."""
    counts = (math.comb(dice, k) * 5 ** (dice - k) for k in range(max(wanted, 0), dice + 1))
    return sum(counts) / 6**dice


# SimpleNegotiation


def negotiation(env: Any, events: Events) -> Probabilities:
    """Accept a gain above the other's, else offer one that does not harm the other, else deny.

    The other's values are hidden; the bot uses the usual values, from which they differ by a fifth
    at most.
    """
    game, seat = env.state.game_state, env.state.current_player_id
    values, owned = game["player_values"][seat], game["player_resources"][seat]
    usual = env.base_values

    def gains(given: Mapping[str, int], taken: Mapping[str, int]) -> tuple[int, int]:
        """Return the seat's gain, and the estimated gain of the other."""
        own = _value(taken, values) - _value(given, values)
        return own, _value(given, usual) - _value(taken, usual)

    offer = game["current_offer"]
    if offer is not None and offer["to_player"] == seat:
        asked = offer["requested_resources"]
        own, other = gains(asked, offer["offered_resources"])
        if own > max(other, 0) and all(owned[name] >= count for name, count in asked.items()):
            return {"[Accept]": 1.0}
    ours = {}
    for mine, wanted in permutations(values, 2):
        for give, take in product(OFFERED, repeat=2):
            own, other = gains({mine: give}, {wanted: take})
            if own > other >= 0 and owned[mine] >= give:
                ours[f"[Offer: {give} {mine} -> {take} {wanted}]"] = own - other
    return best(ours) if ours else {"[Deny]": 1.0}


def _value(resources: Mapping[str, int], values: Mapping[str, int]) -> int:
    return sum(count * values[name] for name, count in resources.items())


# IteratedPrisonersDilemma


def dilemma(env: Any, events: Events) -> Probabilities:
    """Defect, also in talk: the only equilibrium if the number of rounds is known."""
    return {"[Defect]": 1.0}
