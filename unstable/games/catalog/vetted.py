"""The vetted games: what each is, and what is wrong with TextArena's original.

`tests/games/test_pack.py` plays them; `unstable games` prints them; docs/games.md too.
"""

from typing import NamedTuple

from unstable.config import GameConfig
from unstable.games.services import game_info, prompt_style, with_teams

COLUMNS = ("game", "seats", "sees", "pays", "longest", "expert", "compact", "solver", "defects")
"""What `cells` gives of a game, in this order."""

_WINNER = "1, 0, -1: win, draw, loss; zero-sum"


class Vetted(NamedTuple):
    """A game of the pack.

    Vetted(GameConfig(env="Nim-v0"), "all", "1 to the winner ...", True, 12, "yes: ...", "none")
    """

    config: GameConfig
    sees: str  # what a seat is shown
    pays: str
    zero_sum: bool
    longest: int  # turns; `max_turns` that cuts no game off, if legal moves are played
    solver: str  # whether it is small enough to be solved exactly
    defects: str  # of the original, and what we do about them

    def cells(self) -> tuple[str, ...]:
        """The row of the table, by `COLUMNS`."""
        config = self.config
        args = ", ".join(f"{name}: {value}" for name, value in config.args.items())
        return (
            f"{config.env}, {args}" if args else config.env,
            _seats(config),
            self.sees,
            self.pays,
            str(self.longest),
            _expert(config),
            "yes" if prompt_style(config).name == "compact" else "no",
            self.solver,
            self.defects,
        )


def _expert(config: GameConfig) -> str:
    """Whether an expert plays it, or else a rule bot."""
    info = game_info(config)
    return "yes" if info.expert else "rules" if info.rules else "no"


def _seats(config: GameConfig) -> str:
    """How many, and of how many the teams are."""
    teams = [str(len(team)) for team in with_teams(config).teams]
    return f"{config.seats}: {' against '.join(teams)}" if teams else str(config.seats)


PACK = (
    Vetted(
        GameConfig(env="TicTacToe-v0"),
        "the board",
        _WINNER,
        True,
        9,
        "yes: 4,520 positions with a move to make",
        "none",
    ),
    Vetted(
        GameConfig(env="ConnectFour-v0"),
        "the board",
        _WINNER,
        True,
        42,
        "no",
        "none; `-blind` shows no board, so that events are kept there",
    ),
    Vetted(
        GameConfig(env="Nim-v0"),
        "the piles",
        _WINNER,
        True,
        12,
        "yes: 119 positions with a move to make",
        "none; whoever moves first can win",
    ),
    Vetted(
        GameConfig(env="SimpleTak-v0"),
        "the board",
        _WINNER,
        True,
        16,
        "with board_size: 3, which has 4,780 positions with a move to make",
        "none; a path of stones alone, without the walls and stacks of Tak",
    ),
    Vetted(
        GameConfig(env="unstable.games.catalog.kuhn:KuhnPoker", args={"max_rounds": 1}),
        "its card, and what was done",
        "chips, 1 or 2 a hand; zero-sum",
        True,
        3,
        "yes: 12 information sets",
        "TextArena's KuhnPoker moves no chips when a player bets or calls, pays who has more in "
        "the end, and deals once more after it; this one is ours. max_rounds is 3 where it is "
        "left out, and player 1 opens the odd hands",
    ),
    Vetted(
        GameConfig(env="unstable.games.catalog.leduc:Leduc"),
        "its card, the public card, and what was done",
        "chips, up to 13 a hand; zero-sum",
        True,
        8,
        "yes: 288 information sets",
        "TextArena has a LeducHoldem that is not registered; this one is ours, OpenSpiel's "
        "leduc_poker. max_rounds: N plays N hands",
    ),
    Vetted(
        GameConfig(env="PigDice-v0"),
        "the scores and the turn's total",
        _WINNER,
        True,
        200,
        "no",
        "the end after 100 rolls and holds is not in the rules, and is looked at only when the "
        "dice pass: a turn that is under way then goes on",
    ),
    Vetted(
        GameConfig(env="LiarsDice-v0", seats=2),
        "its own dice, how many the others have, and the bids",
        "1 to -1 by rank, evenly apart; zero-sum",
        True,
        108,
        "no",
        "takes bids above the number of dice (the listed moves leave them out); a bid may lower "
        "neither quantity nor face, where by the usual rules a higher quantity frees the face; the "
        "seat after the caller begins the next round, not who lost a die. 2 to 15 seats",
    ),
    Vetted(
        GameConfig(env="LiarsDice-v0-small", seats=3),
        "as above",
        "1, 0, -1 by rank; zero-sum",
        True,
        92,
        "no",
        "as above",
    ),
    Vetted(
        GameConfig(env="ThreePlayerTicTacToe-v0", seats=3),
        "the board",
        "1 to the winner and -1 to each other, or 0 to all; not zero-sum",
        False,
        25,
        "no",
        "none",
    ),
    Vetted(
        GameConfig(env="SimpleNegotiation-v0"),
        "its own resources at the start with their values to it, all talk and offers",
        "the change of its resources' value to it, over 2650, the most there can be (set "
        "payoff_scale to 100 for rewards of a size to learn from); not zero-sum",
        False,
        11,
        "no",
        "TextArena pays 1 and -1 to the larger and the smaller gain, so that what both win is "
        "lost; [Deny] leaves the offer open; resources are not shown again after a trade; "
        "11 turns where the rules say 10. Of its offers those of 1 to 3 of a resource are listed",
    ),
    Vetted(
        GameConfig(env="IteratedPrisonersDilemma-v0"),
        "all talk, and both decisions after each round",
        "points of all rounds, over the most there can be, 50; not zero-sum",
        False,
        40,
        "no",
        "TextArena pays 1 to whoever has more points and -1 to the other, so that nothing is won "
        "by cooperating; a decision that is neither counts as to cooperate; there is a turn of "
        "talk in each round, also with communication_turns: 0",
    ),
    Vetted(
        GameConfig(env="TowerOfHanoi-v0", seats=1),
        "the towers",
        "1 if solved, else the share of disks in place",
        False,
        15,
        "alone: the expert's way is the shortest",
        "an action of several moves makes them all, even after one that is refused; 15 turns, "
        "where max_turns is 14",
    ),
    Vetted(
        GameConfig(env="Mastermind-v0", seats=1),
        "its guesses with their pegs",
        "1 if found, else the last guess's pegs: a black one 1/4, a white one 1/8",
        False,
        21,
        "alone",
        "the last guess counts, not the best; 21 guesses where the rules say 20. Of `-extreme` "
        "the first 2,000 codes are listed",
    ),
    Vetted(
        GameConfig(env="GuessTheNumber-v0", seats=1),
        "its guesses, and whether the number is higher or lower",
        "1 if found, else how near the last guess was, 0 to 1",
        False,
        11,
        "alone: the expert halves what is left",
        "the last guess counts, not the best; 11 guesses where the rules say 10; says which way "
        "the number lies but not from which guess (we keep the guesses)",
    ),
    Vetted(
        GameConfig(env="Codenames-v0", seats=4),
        "all clues, guesses and revealed words; a spymaster (seats 0 and 2) whose each word is",
        "1, 0, -1: win, draw, loss of the team; zero-sum",
        True,
        81,
        "no",
        "flags no move as invalid: a text without a clue or a guess passes the turn, and so does "
        "the guess of a word that is not there; a clue that holds a word of the board, or is part "
        "of one, loses at once; a clue need be no word, and its number may be any, so that two "
        "seats of one policy can agree on a code. Of its clues the game's own nouns are listed, "
        "for 1 to 3 words. 81 turns where the rules say 80; Red, which has 9 words, begins. A "
        "random team soon guesses the assassin: a team that never guesses beats it in 93 of 100 "
        "games, so that a score against random is no evidence; "
        "the rule bot beats such a team in 255 of 256",
    ),
    Vetted(
        GameConfig(env="SecretMafia-v0", seats=6),
        "its role, all talk, votes and deaths; the mafia each other and their votes, the detective "
        "what it asked for",
        "1 to the winners, -1 to the losers, by team; not zero-sum",
        False,
        86,
        "no",
        "roles are dealt: here the mafia has the first seats, then come the doctor, the detective "
        "and the villagers, whatever numbers they are called by; shows [Player 3] to the others as "
        "an empty text, so that [3] is listed; who the mafia chose lives where doctor and "
        "detective are dead. 6 to 15 seats",
    ),
)
