"""Tokens of a decision by prompt style: the tokens that engine and learner compute for each.

    python -m bench.prompts [--model NAME] [--games 50]

Over games of random legal moves: the prompt's mean length; its length after the longest prefix that
it shares with any earlier prompt of the env (an engine that keeps all prefixes computes only that);
its length after the prefix that all prompts of the seat share; and the answer's length.
"""

import random
from collections.abc import Sequence
from statistics import mean

from bench import parser
from unstable.config import GameConfig, ModelConfig
from unstable.games.game import Game
from unstable.games.services import prompt_style
from unstable.models.base import load_tokenizer
from unstable.prompts import PromptBuilder, write_answer

GAMES = {
    "TicTacToe": "TicTacToe-v0",
    "Nim": "Nim-v0",
    "ConnectFour": "ConnectFour-v0",
    "Kuhn": "unstable.games.catalog.kuhn:KuhnPoker",
}


def common(one: list[int], other: list[int]) -> int:
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def measure(game: GameConfig, prompts: PromptBuilder, games: int) -> list[float]:
    rng = random.Random(0)
    seen: dict[int, list[list[int]]] = {seat: [] for seat in range(game.seats)}
    answers = []
    for seed in range(games):
        play = Game(game, seed)
        while not play.done:
            observation, legal = play.observe(), play.legal_moves()
            seen[observation.seat].append(prompts.build(observation).ids)
            move = rng.choice(legal)
            answers.append(len(prompts.encode_answer(write_answer(prompts, move))))
            play.step(move)
    everything = sorted(ids for rows in seen.values() for ids in rows)
    lengths = [len(ids) for ids in everything]
    neighbours = [
        max((common(ids, other) for other in everything[max(0, i - 1) : i]), default=0)
        for i, ids in enumerate(everything)
    ]
    anew = [length - shared for length, shared in zip(lengths, neighbours, strict=True)]
    fixed = {seat: min(common(rows[0], ids) for ids in rows) for seat, rows in seen.items()}
    changing = [len(ids) - fixed[seat] for seat, rows in seen.items() for ids in rows]
    return [mean(lengths), mean(anew), mean(changing), mean(answers)]


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, model="smollm2-135m", games=50).parse_args(argv)
    tokenizer = load_tokenizer(ModelConfig(name=options.model))
    print("game          style     prompt    new   changing   answer")
    for name, env in GAMES.items():
        for style in ("answer", "compact"):
            game = GameConfig(env=env, prompt=style)
            prompts = PromptBuilder(tokenizer, prompt_style(game), {}, 8192)
            prompt, anew, changing, answer = measure(game, prompts, options.games)
            print(f"{name:13} {style:8} {prompt:7.1f} {anew:6.1f} {changing:10.1f} {answer:8.1f}")


if __name__ == "__main__":
    main()
