"""A run of `unstable world`: a tiny base model learns to speak, move and see, and no strategy."""

import asyncio
import contextlib
import io
import math
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unstable.commands.prepare import prepare, settle
from unstable.config import ConfigError, GameConfig, RunConfig
from unstable.datasets.world import (
    SyntheticExample,
    check_world,
    constant_texts,
    question_examples,
    random_play,
)
from unstable.games.check import check_game
from unstable.games.services import game_questions, prompt_style
from unstable.models.tiny import make_model, make_tokenizer
from unstable.prompts import PromptBuilder
from unstable.records.files import new_folder
from unstable.records.folder import RunFolder
from unstable.runtime.local import LocalActor
from unstable.tracking.lines import progress
from unstable.types import BASE, GameResult, GameSpec, PlayerId, SeatSpec

QUESTIONS = 20_000
"""Of each kind at most, drawn once."""
_WARMUP = 50
_IGNORED = -100


class World(NamedTuple):
    """What a model learns from: examples of play, and those of each kind of question."""

    play: list[SyntheticExample]
    questions: list[list[SyntheticExample]]


def make_world(config: RunConfig) -> Path:
    """Make a tiny base model for the config's games; returns its folder.

    Raises `ConfigError` for a game that it cannot be made of, and for a folder that is there.
    """
    out = Path(config.world.out).expanduser()
    _check(config, out)
    config = settle(config)
    tokenizer = make_tokenizer(constant_texts(config.games))
    model = make_model(
        tokenizer,
        hidden=config.world.hidden,
        layers=config.world.layers,
        heads=config.world.heads,
        seed=config.seed,
    )
    world = gather(config, tokenizer)
    print(
        f"{sum(each.numel() for each in model.parameters()):,} weights; {len(world.play):,} "
        f"positions of random play, {len(world.questions)} kinds of questions"
    )
    learn(model, world, config)
    out.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(out) as folder, contextlib.redirect_stderr(io.StringIO()):  # bars
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    print(report(model, world))
    for game in config.games if config.world.score_games else ():
        score = asyncio.run(_score(config, game, str(out)))
        print(f"{game.key}: {score:.3f} against random in {config.world.score_games} games")
    print(f"the model is in {out}")
    return out


def _check(config: RunConfig, out: Path) -> None:
    for index, game in enumerate(config.games):
        check_game(game, f"games.{index}")
        check_world(game, f"games.{index}")
    if out.exists():
        raise ConfigError(f"world.out = {config.world.out!r} exists; give a folder that does not")
    if config.world.hidden % (2 * config.world.heads):
        raise ConfigError(
            f"world.hidden = {config.world.hidden} is no multiple of 2 x world.heads = "
            f"{2 * config.world.heads}; set world.hidden to one"
        )


def gather(config: RunConfig, tokenizer: Any) -> World:
    """The examples of all games."""
    play: list[SyntheticExample] = []
    questions: list[list[SyntheticExample]] = []
    number = min(QUESTIONS, config.world.steps * config.world.batch_size)
    for game in config.games:
        prompts = PromptBuilder(
            tokenizer,
            prompt_style(game),
            config.model.chat_template,
            config.sampling.max_prompt_tokens,
        )
        play += random_play(game, prompts, config.world.games, config.seed)
        for question in game_questions(game):
            rng = random.Random(f"{config.seed} {question.brief}")
            questions.append(question_examples(question, prompts, number, rng))
    return World(play, questions)


def learn(model: Any, world: World, config: RunConfig) -> None:
    """Maximum likelihood of answers, each drawn evenly from the right ones."""
    settings = config.world
    rng = random.Random(f"{config.seed} batches")
    optimizer = torch.optim.AdamW(
        model.parameters(), settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    questions = settings.questions if world.questions else 0.0
    num_play = settings.batch_size - int(questions * settings.batch_size)
    torch.set_num_threads(1)  # rounds alike on any number of cores, and is as fast at this size
    model.train()
    with progress("learning", settings.steps) as advance:
        for step in range(settings.steps):
            examples = rng.choices(world.play, k=num_play)
            for index in range(settings.batch_size - num_play):
                examples.append(rng.choice(world.questions[index % len(world.questions)]))
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * _schedule(step, settings.steps)
            loss = loss_of(model, examples, rng)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            advance(loss.item())
    model.eval()


def loss_of(model: Any, examples: Sequence[SyntheticExample], rng: random.Random) -> Tensor:
    """Mean over the examples of an answer's negative log-likelihood, in nats."""
    answers = [rng.choice(example.answers) for example in examples]
    logits_NV, targets_N = answer_logits(model, examples, answers)
    return F.cross_entropy(logits_NV, targets_N, reduction="sum") / len(examples)


def answer_logits(
    model: Any, examples: Sequence[SyntheticExample], answers: Sequence[list[int]]
) -> tuple[Tensor, Tensor]:
    """Logits [N, V] where the answers' tokens are predicted, and these tokens [N]."""
    pairs = [
        (example.prompt_ids, answer) for example, answer in zip(examples, answers, strict=True)
    ]
    length = max(len(prompt) + len(answer) for prompt, answer in pairs) - 1
    ids_BT = torch.zeros(len(pairs), length, dtype=torch.long)
    targets_BT = torch.full((len(pairs), length), _IGNORED)
    for row, (prompt, answer) in enumerate(pairs):
        inputs = prompt + answer[:-1]
        ids_BT[row, : len(inputs)] = torch.tensor(inputs)
        targets_BT[row, len(prompt) - 1 : len(inputs)] = torch.tensor(answer)
    is_answer_BT = targets_BT != _IGNORED
    hidden_BTD = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state
    return model.lm_head(hidden_BTD[is_answer_BT]), targets_BT[is_answer_BT]


@torch.no_grad()
def report(model: Any, world: World) -> str:
    """How much of its play is legal, how even it is, and how much it sees, in one line."""
    rng = random.Random(0)
    examples = rng.sample(world.play, min(1000, len(world.play)))
    legal = divergence = 0.0
    for example in examples:
        logits_NV, targets_N = answer_logits(
            model, [example] * len(example.answers), example.answers
        )
        logprobs_N = logits_NV.log_softmax(-1).gather(1, targets_N[:, None])[:, 0]
        sizes = [len(answer) for answer in example.answers]
        logprobs_A = torch.stack([part.sum() for part in logprobs_N.split(sizes)])
        legal += float(logprobs_A.exp().sum()) / len(examples)
        even = -math.log(len(sizes))
        divergence += float(even - logprobs_A.mean()) / len(examples)
    right = [_accuracy(model, rng.sample(kind, min(1000, len(kind)))) for kind in world.questions]
    seen = ", ".join(f"{each:.1%}" for each in right) or "none"
    return (
        f"legal answers {legal:.1%}, KL of an even choice of the legal moves to its own "
        f"{divergence:.3f} nats; questions answered rightly: {seen}"
    )


def _accuracy(model: Any, examples: Sequence[SyntheticExample]) -> float:
    """The fraction of questions that are answered rightly, token by token the most probable."""
    right = 0
    for example in examples:
        ids: list[int] = []
        for _ in example.answers[0]:
            context = torch.tensor([example.prompt_ids + ids])
            ids.append(int(model(input_ids=context, use_cache=False).logits[0, -1].argmax()))
        right += ids in example.answers
    return right / len(examples)


async def _score(config: RunConfig, game: GameConfig, folder: str) -> float:
    """The base model's score against random, a draw counted half, from every side in turn."""
    changes = {
        "model": config.model.model_copy(update={"name": folder, "init": "fresh"}),
        "games": [game],
    }
    resolved = prepare(config.model_copy(update=changes)).config
    specs = [_spec(resolved.games[0], number) for number in range(config.world.score_games)]
    with tempfile.TemporaryDirectory() as scratch:
        run = RunFolder(Path(scratch))
        actor = await LocalActor.start(resolved, run, run.root / "engine.log")
        results = [result async for result in actor.play(specs)]
        await actor.close()
    points = {"win": 1.0, "draw": 0.5, "loss": 0.0}
    scores = []
    for result in results:
        assert isinstance(result, GameResult), result.error
        seat = [each.player for each in result.spec.seats].index(BASE)
        scores.append(points[result.standing(seat)])
    return sum(scores) / len(scores)


def _spec(game: GameConfig, number: int) -> GameSpec:
    count = len(game.sides)
    own = game.sides[number % count]
    players = [BASE if seat in own else PlayerId("random") for seat in range(game.seats)]
    return GameSpec(
        game_id=number,
        purpose="eval",
        env=game.key,
        seed=number // count,
        seats=tuple(SeatSpec(player=player, temperature=1.0) for player in players),
        teams=game.teams,
    )


def _schedule(step: int, steps: int) -> float:
    """A rise, then a cosine down to a fiftieth."""
    return min(1.0, (step + 1) / _WARMUP) * (0.02 + 0.49 * (1 + math.cos(math.pi * step / steps)))
