"""Synthetic pretraining: prompts of play with their legal answers, and questions.

Answers in play are random legal moves, so that a model learns the form and the rules, and nothing
of strategy. Questions are about a game's rules, in prompts that play never has.
"""

import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from unstable.config import ConfigError, GameConfig
from unstable.datasets.sources import random_turns
from unstable.games.game import Game
from unstable.games.info import Question
from unstable.games.services import game_questions, lists_legal_moves, prompt_style
from unstable.prompts import PromptBuilder, PromptStyle, write_answer
from unstable.types.seeds import derive_seed

_PARTS = re.compile(r"(?:[A-Za-z]{3,}|[ |:;,?]){2,}")
"""Words and the text between them; a board's own signs are excluded, one token each."""


class SyntheticExample(NamedTuple):
    """A prompt with its right answers, which are equally likely."""

    prompt_ids: list[int]
    answers: list[list[int]]


def check_world(game: GameConfig, field: str) -> None:
    """Raise `ConfigError` if no small world can be made of a game."""
    if not lists_legal_moves(game):
        raise ConfigError(
            f"{field}.env = {game.env!r}: the game does not list its legal moves; "
            f"set {field}.legal_moves to module:function(env)"
        )
    if prompt_style(game).reasoning:
        raise ConfigError(
            f"{field}.prompt = {game.prompt!r}: reasoning is unsupported in small models; set it "
            "to compact or answer"
        )


def random_play(
    game: GameConfig, prompts: PromptBuilder, number: int, seed: int
) -> list[SyntheticExample]:
    """Return the positions of `number` games of random legal moves, as often as they occurred."""
    examples: list[SyntheticExample] = []
    known: dict[str, SyntheticExample] = {}
    for index in range(number):
        rng = random.Random(derive_seed(seed, "world", game.key, index))
        of_game = derive_seed(seed, "world game", game.key, index)
        for observation, legal in random_turns(game, of_game, rng):
            prompt = prompts.build(observation)
            if prompt.text not in known:
                answers = [prompts.encode_answer(write_answer(prompts, move)) for move in legal]
                known[prompt.text] = SyntheticExample(prompt.ids, answers)
            examples.append(known[prompt.text])
    return examples


def question_examples(
    question: Question, prompts: PromptBuilder, number: int, rng: random.Random
) -> list[SyntheticExample]:
    """Return `number` questions of a kind, each with all answers that were right in any draw.

    Thus a question whose answer depends on facts that it omits has every possible answer.
    """
    known: dict[str, SyntheticExample] = {}
    examples, right = [], dict[str, dict[str, None]]()
    for _ in range(number):
        asked, answers = question.draw(rng)
        if asked not in known:
            ids = prompts.template.encode(
                [{"role": "user", "content": f"{question.brief}\n{asked}"}]
            )
            known[asked] = SyntheticExample(ids, [])
        examples.append(known[asked])
        new = [each for each in answers if each not in right.setdefault(asked, {})]
        right[asked].update(dict.fromkeys(new))
        known[asked].answers.extend(prompts.encode_answer(answer) for answer in new)
    return examples


def words_of_play(game: GameConfig, number: int = 100) -> list[str]:
    """Return words of several letters in the legal moves of random games, such as check and bet.

    Also returns the words of every position, and the text between words of at least half of them,
    such as " Current player: " or " | ", so that prompts have fewer tokens.
    """
    moves, positions = set[str](), list[str]()
    for index in range(number):
        for observation, legal in random_turns(game, index, random.Random(f"words {index}")):
            moves.update(word for move in legal for word in re.findall("[A-Za-z]{2,}", move))
            positions.append(observation.position)
    words = set.intersection(*({*re.findall("[A-Za-z]{3,}", text)} for text in positions))
    any_move = re.compile("|".join(rf"\b{re.escape(word)}\b" for word in sorted(moves)) or "(?!)")
    parts = Counter(
        part for text in positions for part in {*_PARTS.findall(any_move.sub("\n", text))}
    )
    often = {part for part, times in parts.items() if 2 * times >= len(positions)}
    return sorted(moves | words | often)


def constant_texts(games: Sequence[GameConfig]) -> list[str]:
    """List texts that occur unchanged in prompts and questions, so that each can be one token.

    The words of moves are among them.
    """
    found: list[str] = []
    for game in games:
        if brief := Game(game, 0).observe().brief:
            found.append(f"{brief}\n")
        found += [f"{question.brief}\n" for question in game_questions(game)]
        style: PromptStyle = prompt_style(game)
        found += [text for text in (style.system, style.request) if text]
        found += words_of_play(game)
    return list(dict.fromkeys(found))
