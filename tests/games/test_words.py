"""Test word games with textblob's lexicon, which replaces missing data of NLTK."""

import time

import nltk
import pytest

from tests.helpers.rows import every_row
from unstable.config import GameConfig
from unstable.games.check import check_game
from unstable.games.game import Game
from unstable.games.textarena import make_raw

ALONE = ("Hangman-v0", "Hangman-v0-hardcore", "Wordle-v0", "WordLadder-v0", "WordSearch-v0")
FOR_TWO = ("SpellingBee-v0", "WordChains-v0", "DontSayIt-v0", "LetterAuction-v0")
WORD_GAMES = dict.fromkeys(ALONE, 1) | dict.fromkeys(FOR_TWO, 2) | {"Codenames-v0": 4}


def has_nltk_data() -> bool:
    try:
        nltk.data.find("corpora/words")
    except LookupError:
        return False
    return True


without_data = pytest.mark.skipif(has_nltk_data(), reason="uses the installed NLTK data")


@every_row("env, seats", *WORD_GAMES.items())
def test_word_games_play(env: str, seats: int) -> None:
    check_game(GameConfig(env=env, seats=seats))


def game(env: str) -> Game:
    return Game(GameConfig(env=env, seats=WORD_GAMES[env], max_turns=200), seed=4)


def test_hangman_and_wordle_are_winnable() -> None:
    played = game("Hangman-v0")
    for letter in sorted(set(played.env.raw.state.game_state["target_letters"])):
        if not played.done:
            played.observe()
            played.step(f"[{letter}]")
    assert played.done and played.outcomes == [1.0]
    played = game("Wordle-v0")
    secret = played.env.raw.state.game_state["secret_word"]
    assert len(secret) == 5 and nltk.pos_tag([secret]) == [(secret, "NN")]
    played.observe()
    assert not played.step("[house]").invalid
    played.observe()
    played.step(f"[{secret}]")
    assert played.done and played.outcomes == [1.0]


def test_codenames_board_depends_on_seed() -> None:
    boards = [
        set(Game(GameConfig(env="Codenames-v0", seats=4), seed).env.raw.board) for seed in (1, 1, 2)
    ]
    assert len(boards[0]) == 25 and boards[0] == boards[1] != boards[2]


@without_data
def test_basic_words_are_a_common_subset() -> None:
    make_raw(GameConfig(env="Hangman-v0", seats=1))
    basic, known = (set(nltk.corpus.words.words(name)) for name in ("en-basic", "en"))
    assert {"house", "water", "time", "begin"} <= basic < known
    assert len(basic) == 3000 and len(known) > 30_000
    assert all(word.isalpha() and word.islower() for word in known)
    assert "london" not in known


def test_dictionaries_are_read_once() -> None:
    make_raw(GameConfig(env="Wordle-v0", seats=1))
    start = time.process_time()
    make_raw(GameConfig(env="Wordle-v0", seats=1))
    assert time.process_time() - start < 0.4
