"""Leduc hold'em (Southey et al. 2005, Bayes' Bluff, UAI), paid in chips.

The deck has six cards, two each of J, Q and K; the ante is 1. Each seat gets a card; after a round
of betting, a public card is revealed, and a second round follows. A pair with the public card wins,
else the higher card. Bets are 2 chips before the public card and 4 after it, at most two of them (a
bet and a raise) per round. Seat 0 opens both rounds of betting of the odd hands. A hand equals
OpenSpiel's `leduc_poker`, whose call is check or call here, and whose raise is bet or raise.
"""

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import textarena
from textarena import ObservationType

from unstable.games import questions
from unstable.games.catalog.kuhn import ONE_ROUND, chips
from unstable.games.catalog.two_seats import TwoSeatState
from unstable.games.chance import draw
from unstable.games.info import Compact, Expert, GameInfo, Payoffs, Question

_State: Any = getattr(textarena, "TwoPlayerState", TwoSeatState)  # 1.x has no `TwoPlayerState`
_ANTE = 1
_BETS = (2, 4)  # chips of a bet or raise, before the public card and after it
_MOST_BETS = 2  # bets and raises in a betting round
MOST_CHIPS = _ANTE + _MOST_BETS * sum(_BETS)
"""Maximum payoff or loss of a seat in a hand."""
_RANKS = "JQK"
_DECK = range(2 * len(_RANKS))  # cards 0 and 1 are the jacks
_ACTION = re.compile(r"\[(check|bet|fold|call|raise)\]", re.IGNORECASE)


class Leduc(textarena.Env):
    """Hands of Leduc hold'em, whose chips add up.

    Each card is one draw from the remaining cards, in the order seat 0, seat 1, and the public
    card, which is drawn after the first round of betting.
    """

    def __init__(self, max_rounds: int = 1) -> None:
        self.max_rounds = max_rounds  # hands, as in KuhnPoker

    def reset(self, num_players: int, seed: int | None = None) -> None:
        """Start the first hand."""
        self.state = _State(num_players=num_players, seed=seed)
        start = {"player_chips": {0: 0, 1: 0}, "current_round": 0, "starting_player": 1}
        self.state.reset(game_state=start, player_prompt_function=self._prompt)
        self._begin_hand()

    def _prompt(self, player_id: int, game_state: dict[str, Any]) -> str:
        return (
            f"You are Player {player_id} in Leduc hold'em, of {self.max_rounds} hand(s).\n"
            "- The deck has six cards: two jacks (J), two queens (Q), two kings (K).\n"
            f"- In each hand both players pay an ante of {_ANTE} chip and get a card that the "
            "other does not see. After a round of betting a public card is turned up, and a second "
            "round of betting follows.\n"
            "- At the end a card that pairs the public card wins the pot, else the higher card; "
            "equal cards split it.\n"
            "- Chips are added up over all hands: win as many as you can.\n\n"
            "Actions:\n"
            "- '[check]': add nothing (while there is no bet)\n"
            f"- '[bet]': bet {_BETS[0]} chips, or {_BETS[1]} after the public card\n"
            "- '[call]': match a bet or raise\n"
            "- '[raise]': match a bet and add as much again (once in a round of betting)\n"
            "- '[fold]': give up the hand and the pot"
        )

    def step(self, action: str) -> tuple[bool, dict]:
        """Make a move of the seat to move: the first [move] in the text."""
        seat, state = self.state.current_player_id, self.state.game_state
        self.state.add_observation(
            from_id=seat, message=action, observation_type=ObservationType.PLAYER_ACTION
        )
        found = _ACTION.search(action)
        if found is None or (move := found[1].lower()) not in _moves(state["moves"][-1]):
            listed = ", ".join(legal_moves(self))
            self.state.set_invalid_move(reason=f"The action must be one of {listed}.")
            return self.state.step()
        self._put_in(seat, move)
        state["moves"][-1].append(move)
        if move == "fold":
            self._end_hand(1 - seat, f"Player {seat} folded.")
        elif move == "call" or state["moves"][-1] == ["check", "check"]:
            self._end_betting()
        else:
            self._give_turn(1 - seat)
        return self.state.step(rotate_player=False)

    def _begin_hand(self) -> None:
        state = self.state.game_state
        deck = [*_DECK]
        state |= {
            "current_round": state["current_round"] + 1,
            "starting_player": 1 - state["starting_player"],
            "player_cards": {seat: draw(deck) for seat in range(2)},
            "public_card": None,
            "deck": deck,
            "bets": {0: _ANTE, 1: _ANTE},
            "moves": [[]],  # by betting round
        }
        for seat, card in state["player_cards"].items():
            text = f"Hand {state['current_round']} of {self.max_rounds}. Your card is {rank(card)}."
            self._say(text, seat)
        self._give_turn(state["starting_player"])

    def _put_in(self, seat: int, move: str) -> None:
        """Add the chips of a move to the pot."""
        state = self.state.game_state
        bets, size = state["bets"], _BETS[len(state["moves"]) - 1]
        if move in ("call", "bet", "raise"):
            bets[seat] = max(bets.values()) + size * (move != "call")
        words = {"check": "checks", "call": "calls", "fold": "folds"}
        described = words.get(move, f"{move}s by {size} chips")
        self.state.add_observation(
            message=f"Player {seat} {described}.",
            observation_type=ObservationType.GAME_ACTION_DESCRIPTION,
        )

    def _end_betting(self) -> None:
        """Reveal the public card, or compare the cards."""
        state = self.state.game_state
        if state["public_card"] is None:
            state["public_card"] = public = draw(state["deck"])
            state["moves"].append([])
            self._say(f"The public card is {rank(public)}.")
            self._give_turn(state["starting_player"])
            return
        public = state["public_card"]
        first, second = (_strength(state["player_cards"][seat], public) for seat in range(2))
        shown = ", ".join(f"Player {s} {rank(c)}" for s, c in state["player_cards"].items())
        winner = None if first == second else int(second > first)
        self._end_hand(winner, f"Cards: public {rank(public)}, {shown}.")

    def _end_hand(self, winner: int | None, why: str) -> None:
        """Pay the other seat's bets to the winner; None splits the pot. Starts the next hand."""
        state = self.state.game_state
        chips = state["player_chips"]
        ends = "The pot is split."
        if winner is not None:
            paid = state["bets"][1 - winner]
            chips[winner] += paid
            chips[1 - winner] -= paid
            ends = f"Player {winner} wins {paid} chips."
        self._say(f"{why} {ends} Chips: Player 0 {chips[0]:+d}, Player 1 {chips[1]:+d}.")
        if state["current_round"] < self.max_rounds:
            self._begin_hand()
        elif chips[0] == chips[1]:
            self.state.set_draw(reason=f"{why} {ends} Neither has won chips.")
        else:
            leader = int(chips[1] > chips[0])
            text = f"{why} {ends} Player {leader} won {chips[leader]} chips in all."
            self.state.set_winner(player_id=leader, reason=text)

    def _give_turn(self, seat: int) -> None:
        """Show the current hand to the next seat to move."""
        state = self.state.game_state
        self.state.manually_set_current_player_id(new_player_id=seat)
        public = state["public_card"]
        moves = [" ".join(moves) or "none yet" for moves in state["moves"]]
        after = f"\nMoves after it: {moves[1]}." if len(moves) > 1 else ""
        bets = state["bets"]
        text = (
            f"Hand {state['current_round']} of {self.max_rounds}. "
            f"Your card: {rank(state['player_cards'][seat])}. "
            f"Public card: {'not yet shown' if public is None else rank(public)}.\n"
            f"Moves before the public card: {moves[0]}.{after}\n"
            f"In the pot: {bets[seat]} chips of yours, {bets[1 - seat]} of the other's.\n"
            f"Your actions: {', '.join(legal_moves(self))}"
        )
        self.state.add_observation(
            message=text, to_id=seat, observation_type=ObservationType.GAME_BOARD
        )

    def _say(self, text: str, seat: int = -1) -> None:
        """Send a message to a seat, or to both."""
        self.state.add_observation(
            message=text, to_id=seat, observation_type=ObservationType.GAME_MESSAGE
        )


def rank(card: int) -> str:
    """Return a card's letter.

    >>> rank(0), rank(3), rank(5)
    ('J', 'Q', 'K')
    """
    return _RANKS[card // 2]


def _strength(card: int, public: int) -> tuple[bool, int]:
    """Return a sort key: a pair with the public card first, then the rank."""
    return card // 2 == public // 2, card // 2


def _moves(made: Sequence[str]) -> list[str]:
    """Return the legal moves after the moves of an unfinished round of betting."""
    bets = len(made) - made.count("check")
    if not bets:
        return ["check", "bet"]
    return ["fold", "call", "raise"] if bets < _MOST_BETS else ["fold", "call"]


def legal_moves(env: Any) -> list[str]:
    """Return the legal moves of the betting: of fold, check, call, bet and raise."""
    return [f"[{move}]" for move in _moves(env.state.game_state["moves"][-1])]


def position(env: Any) -> str:
    """Return the seat's card, public card, pot, all moves of the hand, and the legal actions.

    K - 2 check: check bet, and after the public card K Q 6 check bet call /: check bet.
    """
    state = env.state.game_state
    public, pot = state["public_card"], sum(state["bets"].values())
    cards = f"{rank(state['player_cards'][env.state.current_player_id])} "
    cards += "-" if public is None else rank(public)
    played = " / ".join(" ".join(moves) for moves in state["moves"])
    legal = " ".join(_moves(state["moves"][-1]))
    return f"{cards} {pot} {played}".rstrip() + f": {legal}"


def whole_state(env: Any) -> str:
    """Return both cards, the public card and all moves, which fix the chips in the pot.

    JK- check: seat 0 has a jack, seat 1 a king. Of several hands, also the hand and seat 0's chips.
    """
    state = env.state.game_state
    public = state["public_card"]
    cards = "".join(rank(state["player_cards"][seat]) for seat in range(2))
    cards += "-" if public is None else rank(public)
    moves = " / ".join(" ".join(moves) for moves in state["moves"])
    hand = f" {state['current_round']} {state['player_chips'][0]:+d}" * (env.max_rounds > 1)
    return f"{cards} {moves}{hand}"


@cache
def _equilibrium() -> dict[str, dict[str, float]]:
    """Load the probabilities by position, which scripts/solve_leduc.py computed."""
    text = Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    table: dict[str, dict[str, float]] = json.loads(text)
    return table


def moves(env: Any) -> dict[str, float]:
    """Return the equilibrium's probabilities, which also hold for several hands: payoffs add up."""
    return _equilibrium()[position(env)]


def reason(env: Any, action: str) -> str:
    """Return a sentence on the action's effect on the chips."""
    state, seat = env.state.game_state, env.state.current_player_id
    bets, move = state["bets"], action.strip("[]")
    size = _BETS[len(state["moves"]) - 1]
    owed = bets[1 - seat] - bets[seat]
    return {
        "fold": f"A fold loses the {bets[seat]} chips that are in the pot, and no more.",
        "check": "A check adds no chips to the pot.",
        "call": f"A call adds {owed} chips and stays in the hand.",
        "bet": f"A bet adds {size} chips, which the other has to match or fold.",
        "raise": f"A raise adds {owed + size} chips, and the other has to match {size} or fold.",
    }[move]


def which_wins(rng: Random) -> tuple[str, list[str]]:
    """Draw the players' cards and the public card; the answer is the card that wins."""
    first, second, public = rng.sample(_DECK, 3)
    better = max(first, second, key=lambda card: _strength(card, public))
    won = _strength(first, public) != _strength(second, public)
    return f"{rank(first)} {rank(second)} {rank(public)}", [rank(better) if won else "-"]


def which_hand(rng: Random) -> tuple[str, list[str]]:
    """Draw a seat's line with a mark; the answer is P for a pair, otherwise the seat's card."""
    line = _line(rng)
    own, public = line[0], line[2]
    return f"{line} ?", ["P" if own == public else own]


def _line(rng: Random) -> str:
    return questions.line_of_play(Leduc(), position, legal_moves, 8, rng)


def most_chips(env: Any) -> float:
    """Return the maximum payoff: in each hand the ante, and two bets per round of betting."""
    return float(env.max_rounds * MOST_CHIPS)


_BRIEF = (
    "Leduc hold'em with two jacks, two queens and two kings; a card that pairs the public one "
    "wins the pot, else the higher card, and chips of all hands add up. A line is your card, "
    "the public card (- before it is shown), the chips in the pot, the moves of the hand, a / "
    "where the public card came, and after the colon the actions that you may choose from. "
    "Answer with one of these, nothing else."
)
INFO = GameInfo(
    env="Leduc",
    name="unstable.games.catalog.leduc:Leduc",
    legal_moves=legal_moves,
    board_shows_all=lambda env: env.max_rounds == 1,  # the board shows only the current hand
    small_tree=ONE_ROUND,
    payoffs=Payoffs(chips, most_chips),
    expert=Expert(moves, reason),
    compact=Compact(_BRIEF, position),
    state=whole_state,
    questions=(
        Question(
            "Leduc hold'em, two cards and the public card: the card that wins, else -.", which_wins
        ),
        Question(_BRIEF, which_hand),
        Question(_BRIEF, lambda rng: questions.named_move(_line(rng), rng)),
    ),
)
