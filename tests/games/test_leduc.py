"""Leduc hold'em: all of its tree, held against rules written down once more, and OpenSpiel's."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.helpers.draws import Node, nodes
from unstable.config import GameConfig
from unstable.games.catalog import kuhn, leduc
from unstable.games.catalog.kuhn import KuhnPoker
from unstable.games.catalog.leduc import Leduc
from unstable.games.game import Game

LEDUC = "unstable.games.catalog.leduc:Leduc"
FOLDED = ["bet fold", "bet raise fold", "check bet fold", "check bet raise fold"]
CLOSED = ["check check", "bet call", "bet raise call", "check bet call", "check bet raise call"]


@pytest.fixture(scope="module")
def tree() -> list[Node]:
    return list(nodes(Leduc, leduc.legal_moves))


def ends(tree: list[Node]) -> list[Node]:
    return [node for node in tree if node.env.state.done]


def dealt(draws: Sequence[int]) -> str:
    """The ranks that draws among what is left of the deck are."""
    deck = list("JJQQKK")
    return "".join(deck.pop(draw) for draw in draws)


def opener_wins(ranks: str, rounds: Sequence[Sequence[str]]) -> int:
    """Chips of the opener of a hand, by the rules; ranks: the opener's, the other's, the public."""
    paid = [1, 1]
    for size, moves in zip((2, 4), rounds, strict=False):
        for turn, move in enumerate(moves):
            seat = turn % 2
            if move == "fold":
                return paid[1] if seat else -paid[0]
            if move != "check":
                paid[seat] = paid[1 - seat] + size * (move in ("bet", "raise"))
    mine, other, public = tuple(ranks)
    assert paid[0] == paid[1] and len(rounds) == 2
    if mine == other:
        return 0
    won = mine == public or (other != public and "JQK".index(mine) > "JQK".index(other))
    return paid[0] if won else -paid[0]


def rounds_of(moves: Sequence[str]) -> list[list[str]]:
    """A hand's moves by rounds of betting."""
    rounds: list[list[str]] = [[]]
    for move in moves:
        if " ".join(rounds[-1]) in CLOSED:
            rounds.append([])
        rounds[-1].append(move.strip("[]"))
    return rounds


def test_deals_are_uniform_and_public_card_is_drawn_late(tree):
    shown = Counter(node.draws for node in ends(tree) if len(node.draws) == 3)
    assert len(shown) == 6 * 5 * 4 and set(shown.values()) == {len(CLOSED) * 9}
    for node in tree:
        first = " ".join(rounds_of(node.moves)[0])
        assert node.asked == ((6, 5, 4) if first in CLOSED else (6, 5))


def test_tree_matches_open_spiel_and_chips_match_rules(tree):
    """At most two bets a round of betting, no fold without one: 5,520 ends."""
    played = Counter(" / ".join(map(" ".join, rounds_of(node.moves))) for node in ends(tree))
    last = [f"{first} / {second}" for first in CLOSED for second in FOLDED + CLOSED]
    assert played == dict.fromkeys(FOLDED, 30) | dict.fromkeys(last, 120)
    assert sum(played.values()) == 5520
    for node in ends(tree):
        won = opener_wins(dealt(node.draws).ljust(3), rounds_of(node.moves))
        assert leduc.chips(node.env) == [won, -won]
        assert (node.env.state.rewards[0] > 0) == (won > 0)
    assert max(leduc.chips(node.env)[0] for node in ends(tree)) == leduc.MOST_CHIPS == 13


def test_seat_sees_only_own_card_public_card_and_moves(tree):
    """A line of the compact form, a board, all that was said: an information set each."""
    by_line: dict[str, set] = {}
    by_board: dict[str, set] = {}
    by_text: dict[tuple[int, str], set] = {}
    for node in tree:
        if node.env.state.done:
            continue
        seat, ranks = node.env.state.current_player_id, dealt(node.draws)
        knows = (ranks[seat], ranks[2:], node.moves)
        by_line.setdefault(leduc.position(node.env), set()).add(knows)
        said = "\n".join(text for _, text, _ in node.env.state.observations[seat])
        by_text.setdefault((seat, said), set()).add(knows)
        by_board.setdefault(node.env.state.observations[seat][-1][1], set()).add(knows)
    assert len(by_line) == len(by_board) == len(by_text) == 288  # Southey et al. 2005
    every = [*by_line.values(), *by_board.values(), *by_text.values()]
    assert all(len(known) == 1 for known in every)


def test_events_are_shown_with_several_hands():
    for hands, events in ((1, 0), (2, 8)):
        game = Game(GameConfig(env=LEDUC, args={"max_rounds": hands}), 0)
        for move in ("[check]", "[check]", "[check]", "[check]"):
            observation = game.observe()
            assert observation.board.splitlines()[-1].startswith("Your actions: [")
            game.step(move)
        if hands > 1:
            observation = game.observe()
        assert len(observation.events) == events


def test_compact_positions_match_their_format():
    game = Game(GameConfig(env=LEDUC, prompt="compact"), 0)
    lines = []
    for move in ("[check]", "[bet]", "[call]", "[bet]", "[raise]"):
        lines.append(game.observe().position)
        game.step(move)
    lines.append(game.observe().position)
    state = game.env.raw.state.game_state
    first, second = (leduc.rank(state["player_cards"][seat]) for seat in range(2))
    public = leduc.rank(state["public_card"])
    assert lines == [
        f"{first} - 2: check bet",
        f"{second} - 2 check: check bet",
        f"{first} - 4 check bet: fold call raise",
        f"{first} {public} 6 check bet call /: check bet",
        f"{second} {public} 10 check bet call / bet: fold call raise",
        f"{first} {public} 18 check bet call / bet raise: fold call",
    ]


def test_chips_add_up_over_hands_and_opener_alternates():
    for seed in range(60):
        rng, game = random.Random(seed), Game(GameConfig(env=LEDUC, args={"max_rounds": 3}), seed)
        opened, won = [], [0, 0]
        while not game.done:
            state, opener = game.env.raw.state.game_state, game.seat
            opened.append(opener)
            cards, number, moves = state["player_cards"], state["current_round"], []
            while not game.done and state["current_round"] == number:
                public = state["public_card"]
                moves.append(rng.choice(game.legal_moves()))
                game.step(moves[-1])
            ranks = "".join(leduc.rank(cards[seat]) for seat in (opener, 1 - opener))
            ranks += " " if public is None else leduc.rank(public)
            chips = opener_wins(ranks, rounds_of(moves))
            won[opener] += chips
            won[1 - opener] -= chips
        assert (opened, game.payoffs) == ([0, 1, 0], won)
        assert game.outcomes == [chips / 39 for chips in won]


def test_unavailable_betting_moves_are_invalid():
    for moves, refused in (
        ([], ["[fold]", "[call]", "[raise]", "bet", "[bat]"]),
        (["[bet]"], ["[check]", "[bet]"]),
        (["[bet]", "[raise]"], ["[raise]", "[check]"]),
    ):
        for action in refused:
            game = Game(GameConfig(env=LEDUC), 0)
            for move in moves:
                assert not game.step(move).invalid
            assert game.step(action).invalid
            assert game.payoffs == [0.0, 0.0] and game.forfeit == len(moves) % 2
            assert "must be one of [" in game.reason


def test_kuhn_deals_are_uniform_and_repeat_after_reset():
    """Three cards shuffled: one of 3, then one of 2, so six deals as likely; each has five ends."""
    ends = [
        node
        for node in nodes(lambda: KuhnPoker(max_rounds=1), kuhn.legal_moves)
        if node.env.state.done
    ]
    deals = Counter(tuple(node.env.state.game_state["player_cards"].values()) for node in ends)
    assert len(deals) == 6 and set(deals.values()) == {5}
    assert {node.asked for node in ends} == {(3, 2)}
    env = KuhnPoker(max_rounds=1)
    cards = []
    for _ in range(3):
        env.reset(num_players=2, seed=4)
        cards.append(env.state.game_state["player_cards"])
    assert cards[0] == cards[1] == cards[2]
