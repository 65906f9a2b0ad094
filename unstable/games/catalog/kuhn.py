"""Kuhn poker with correct payoffs (Kuhn 1950, Contributions to the Theory of Games 1), and expert.

TextArena 0.7's game moves no chips when a player bets or calls, and deals once more after the end;
1.x's is paid by who has more chips at the end. This one pays chips. The expert plays the
equilibrium with alpha = 1/3, where a king always bets, of the family with alpha from 0 to 1/3. A
match pays the sum of its rounds, so the expert's strategy is an equilibrium of the match, too.
"""

import re
from random import Random
from typing import Any

from textarena.envs.KuhnPoker.env import KuhnPokerEnv

from unstable.games import questions
from unstable.games.catalog.bare import GAME_ENV
from unstable.games.info import Compact, Expert, GameInfo, Payoffs, Question, SmallTree

_ALPHA = 1 / 3  # probability that the opener bluffs with a jack
_BET = {True: (_ALPHA, 0.0, 3 * _ALPHA), False: (1 / 3, 0.0, 1.0)}  # with J, Q, K; True: opener
_CALL = {True: (0.0, _ALPHA + 1 / 3, 1.0), False: (0.0, 1 / 3, 1.0)}
_WHY = {
    "bet": (
        "A jack loses every showdown, so a bet can only win by making the other fold.",
        "A queen beats only a jack, so a bet wins more only if a jack calls it.",
        "A king wins every showdown, so a bet wins more if it is called.",
    ),
    "check": (
        "A jack loses every showdown, so a check risks no more chips.",
        "A queen beats a jack and loses to a king, so a check keeps the pot small.",
        "A king wins every showdown, so a check gives up the chip that a call would add.",
    ),
    "call": (
        "A jack loses every showdown, so a call only adds a chip to the loss.",
        "A queen beats a jack that bluffs, so a call wins the pot from a bluff.",
        "A king wins every showdown, so a call wins the pot.",
    ),
    "fold": (
        "A jack loses every showdown, so a fold saves a chip.",
        "A queen loses to a king that bets, so a fold saves a chip against a king.",
        "A king wins every showdown, so a fold gives the pot away.",
    ),
}
_ACTION = re.compile(r"\[(check|bet|fold|call)\]", re.IGNORECASE)


def chips(env: Any) -> list[float]:
    """Return the chips that each seat of a poker game has won or lost over all rounds."""
    won = env.state.game_state["player_chips"]
    return [float(won[seat]) for seat in range(2)]


class KuhnPoker(KuhnPokerEnv):
    """Kuhn poker over rounds that pay one or two chips each. Player 1 opens the odd rounds."""

    def __init__(self, max_rounds: int = 3) -> None:
        super().__init__(max_rounds=max_rounds)

    def reset(self, num_players: int, seed: int | None = None) -> None:
        """Start a new game from an ordered deck; TextArena shuffles the last game's deck."""
        self.deck = [0, 1, 2]
        super().reset(num_players, seed)

    def _prompt(self, player_id: int, game_state: dict[str, Any]) -> str:
        return _adding_up(super()._prompt(player_id, game_state))

    def prompt(self, player_id: int) -> str:
        """Return the rules; TextArena 1.x calls it instead of `_prompt`."""
        return _adding_up(super().prompt(player_id))

    def step(self, action: str) -> tuple[bool, dict]:
        """Move the chip of a bet or call, then make TextArena's step; 1.x moves it by itself."""
        if GAME_ENV:
            super().step(action)
            return self.state.done, {}
        state = self.state.game_state
        move = _ACTION.search(action)
        if move and move[1].lower() in {"bet", "call"} & state["current_legal_action_tree"].keys():
            state["player_chips"][self.state.current_player_id] -= 1
            state["pot"] += 1
        return super().step(action)

    def _init_round(self) -> Any:
        state = self.state.game_state
        if GAME_ENV or state["current_round"] < self.max_rounds:
            return super()._init_round()
        chips = state["player_chips"]
        if chips[0] == chips[1]:
            self.state.set_draw(reason=f"Both have as many chips after {self.max_rounds} rounds.")
            return None
        winner = 0 if chips[0] > chips[1] else 1
        self.state.set_winner(
            player_id=winner, reason=f"Player {winner} won {chips[winner]} chips."
        )
        return None


def _adding_up(rules: str) -> str:
    return rules.replace(
        "The player with the most chips after all rounds wins",
        "Chips are added up over all rounds: win as many as you can",
    )


def moves(env: Any) -> dict[str, float]:
    """Return the equilibrium's probabilities by the seat's card, its position, and any bet."""
    state = env.state.game_state
    seat = env.state.current_player_id
    card, opener = state["player_cards"][seat], seat == state["starting_player"]
    if "bet" in state["current_legal_action_tree"]:
        active, passive, p = "[bet]", "[check]", _BET[opener][card]
    else:
        active, passive, p = "[call]", "[fold]", _CALL[opener][card]
    found = {active: p, passive: 1 - p}
    return {action: p for action, p in found.items() if p > 0}


def reason(env: Any, action: str) -> str:
    """Return a sentence on the effect of the action with the seat's card."""
    card = env.state.game_state["player_cards"][env.state.current_player_id]
    return _WHY[action.strip("[]")][card]


def legal_moves(env: Any) -> list[str]:
    """Return the legal actions in the current round."""
    return [f"[{action}]" for action in env.state.game_state["current_legal_action_tree"]]


def position(env: Any) -> str:
    """Return the seat's card, round, lead in chips, the round's moves, and the legal actions.

    K 1/3 +0 check: check bet. The lead summarizes earlier rounds.
    """
    state, seat = env.state.game_state, env.state.current_player_id
    chips, legal = state["player_chips"], list(state["current_legal_action_tree"])
    opens = seat == state["starting_player"]
    moves = ([] if opens else ["check"]) if "check" in legal else ["check"] * opens + ["bet"]
    card = "JQK"[state["player_cards"][seat]]
    lead = chips[seat] - chips[1 - seat] - (state["pot"] - 2 * env.ante)  # without an open bet
    played = "".join(f" {move}" for move in moves)
    number = f"{state['current_round']}/{env.max_rounds}"
    return f"{card} {number} {lead:+d}{played}: {' '.join(legal)}"


def whole_state(env: Any) -> str:
    """Return all cards by seat, then the position as every seat knows it. JK 1/3 +0 check"""
    cards = env.state.game_state["player_cards"]
    held = "".join("JQK"[cards[seat]] for seat in range(2))
    return f"{held}{position(env)[1:].partition(':')[0]}"


def which_wins(rng: Random) -> tuple[str, list[str]]:
    """Draw two cards; the answer is the one that wins a showdown."""
    cards = rng.sample("JQK", 2)
    return " ".join(cards), [max(cards, key="JQK".index)]


def which_card(rng: Random) -> tuple[str, list[str]]:
    """Draw a seat's line with a mark that never occurs in play; the answer is the seat's card."""
    line = _line(rng)
    return f"{line} ?", [line[0]]


def _line(rng: Random) -> str:
    env = KuhnPoker(max_rounds=rng.choice([1, 3]))
    return questions.line_of_play(env, position, legal_moves, 3 * env.max_rounds, rng)


def most_chips(env: Any) -> float:
    """Return the maximum payoff: the ante and a bet in each round."""
    return float(env.max_rounds * (env.ante + 1))


def brief(goal: str) -> str:
    """Return the rules and the request, with the goal of the seats."""
    return (
        f"Kuhn poker with a jack, a queen and a king; the higher card wins the pot, and {goal}. A "
        "line is your card, the round, your lead in chips before it, the moves of the round, and "
        "after the colon the actions that you may choose from. Answer with one of these, nothing "
        "else."
    )


_BRIEF = brief("chips of all rounds add up")
QUESTIONS = (
    Question("Kuhn poker, two cards: the one that wins the showdown.", which_wins),
    Question(_BRIEF, which_card),
    Question(_BRIEF, lambda rng: questions.named_move(_line(rng), rng)),
)
ONE_ROUND = SmallTree(
    is_open=False, fits=lambda env: env.max_rounds == 1, variants="args.max_rounds = 1"
)
INFO = GameInfo(
    env="KuhnPoker",
    name="unstable.games.catalog.kuhn:KuhnPoker",
    legal_moves=legal_moves,
    small_tree=ONE_ROUND,
    payoffs=Payoffs(chips, most_chips),
    expert=Expert(moves, reason),
    compact=Compact(_BRIEF, position),
    state=whole_state,
    questions=QUESTIONS,
)
TEXTARENA = GameInfo(
    env="KuhnPokerEnv",
    name="KuhnPoker",
    legal_moves=legal_moves,
    small_tree=ONE_ROUND if GAME_ENV else None,
    compact=Compact(brief("whoever has more chips after all rounds wins"), position),
    state=whole_state,
)
