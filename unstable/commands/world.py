"""A run of `unstable world`: a tiny base model learns to speak, move and see, not strategy."""

import asyncio
import contextlib
import io
import math
import random
import signal
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from unstable.commands.prepare import prepare, settle
from unstable.commands.session import Terminated, handled, status
from unstable.config import ConfigError, GameConfig, WorldConfig, WorldRun
from unstable.datasets.world import (
    SyntheticExample,
    check_world,
    constant_texts,
    question_examples,
    random_play,
)
from unstable.games.check import check_game
from unstable.games.services import game_questions, prompts_of
from unstable.models.tiny import make_model, make_tokenizer
from unstable.records.files import new_folder
from unstable.records.folder import RunFolder
from unstable.records.text import duration
from unstable.runtime.local import LocalActor
from unstable.tracking.lines import progress
from unstable.types import BASE, WORTH, GameResult, GameSpec, PlayerId, SeatSpec

QUESTIONS = 20_000
"""Most questions of each kind, drawn once."""
ESTIMATE_AFTER = 10
"""Steps after which the remaining time is estimated."""
LOOK_EVERY = 100
"""Steps between checks of what is learned."""
_LOOKED_AT = 100  # examples of each kind per check; 1,000 at the end
_AT_ONCE = 32  # examples scored in one batch
_COOLING = 10  # 1/10 of the steps so far follow with a falling rate
_WARMUP = 50
_IGNORED = -100


class Learned(NamedTuple):
    """Measures of what a model has learned, averaged over examples."""

    legal: float  # total probability of legal answers
    divergence: float  # KL(uniform over legal moves || model), nats
    right: list[float]  # share of questions answered correctly, by kind

    def suffices(self, wanted: WorldConfig) -> bool:
        """Return whether the measures reach the config's thresholds."""
        sees = all(right >= wanted.right for right in self.right)
        return self.legal >= wanted.legal and self.divergence <= wanted.kl and sees

    def text(self) -> str:
        """Return the measures in one line."""
        seen = ", ".join(f"{each:.1%}" for each in self.right) or "none"
        return (
            f"legal answers {self.legal:.1%}, KL(uniform over legal moves || model) "
            f"{self.divergence:.3f} nats; questions answered correctly: {seen}"
        )


class World(NamedTuple):
    """Training data of a model: examples of play, and of each kind of question."""

    play: list[SyntheticExample]
    questions: list[list[SyntheticExample]]


def make_world(config: WorldRun) -> Path:
    """Make a tiny base model for the config's games; return its folder.

    Raises `ConfigError` for an unsuitable game, and for a folder that exists.
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
    interrupted = learn(model, world, config)
    out.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(out) as folder, contextlib.redirect_stderr(io.StringIO()):  # hides bars
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    if interrupted is not None:
        print(f"interrupted: the partly trained model is in {out}")
        raise interrupted
    print(measured(model, world, 1000).text())
    for game in config.games if config.world.score_games else ():
        score = asyncio.run(_score(config, game, str(out)))
        print(f"{game.key}: {score:.3f} against random in {config.world.score_games} games")
    print(f"the model is in {out}")
    return out


def _check(config: WorldRun, out: Path) -> None:
    for index, game in enumerate(config.games):
        check_game(game, f"games.{index}")
        check_world(game, f"games.{index}")
    if out.exists() or out.is_symlink():
        raise ConfigError(f"world.out = {config.world.out!r} already exists; give a new folder")
    if config.world.hidden % (2 * config.world.heads):
        raise ConfigError(
            f"world.hidden = {config.world.hidden}: not a multiple of 2 x world.heads; "
            f"set it to a multiple of {2 * config.world.heads}"
        )


def gather(config: WorldRun, tokenizer: Any) -> World:
    """Return the examples of all games."""
    play: list[SyntheticExample] = []
    questions: list[list[SyntheticExample]] = []
    number = min(QUESTIONS, config.world.steps * config.world.batch_size)
    for game in config.games:
        prompts = prompts_of(config, game, tokenizer)
        status(f"playing {config.world.games:,} random games of {game.key}")
        play += random_play(game, prompts, config.world.games, config.seed)
        for question in game_questions(game):
            status(f"drawing {number:,} questions: {question.brief[:60]}")
            rng = random.Random(f"{config.seed} {question.brief}")
            questions.append(question_examples(question, prompts, number, rng))
    return World(play, questions)


def learn(model: Any, world: World, config: WorldRun) -> KeyboardInterrupt | None:
    """Train by maximum likelihood of answers, each drawn uniformly from the right ones.

    Ends after all steps, or once enough is learned, after some last steps with a falling rate.
    Returns the interrupt, None without one; an interrupted model keeps its progress.
    """
    settings = config.world
    rng = random.Random(f"{config.seed} batches")
    optimizer = torch.optim.AdamW(
        model.parameters(), settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    torch.set_num_threads(1)  # same rounding on any machine; as fast at this size
    model.train()
    began, enough, end = time.monotonic(), settings.steps, settings.steps
    interrupts: list[KeyboardInterrupt] = []

    def note(number: int, _: object) -> None:  # a second signal stops at once
        interrupts.append(KeyboardInterrupt() if number == signal.SIGINT else Terminated())
        if len(interrupts) > 1:
            raise interrupts[0]

    with progress("learning", settings.steps) as advance, handled(note):
        for step in range(settings.steps):
            rate = _schedule(step, settings.steps) * min(1.0, (end - step) / (end - enough + 1))
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * rate
            loss = loss_of(model, _drawn(world, settings, rng), rng)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            advance(loss.item())
            if step + 1 == ESTIMATE_AFTER:
                seconds = (time.monotonic() - began) / ESTIMATE_AFTER * settings.steps
                status(
                    f"{settings.steps:,} steps take about {duration(seconds)}; Ctrl-C stops early"
                )
            if interrupts or step + 1 == end:
                break
            looks = end == settings.steps and settings.legal < 1 and not (step + 1) % LOOK_EVERY
            if looks and measured(model, world, _LOOKED_AT).suffices(settings):
                enough = step + 1
                end = min(settings.steps, enough + max(1, enough // _COOLING))
                status(f"targets reached at step {enough:,}; {end - enough} final steps follow")
    model.eval()
    return interrupts[0] if interrupts else None


def _drawn(world: World, settings: WorldConfig, rng: random.Random) -> list[SyntheticExample]:
    """Draw the examples of a step."""
    share = settings.questions if world.questions else 0.0
    num_questions = int(share * settings.batch_size)
    examples = rng.choices(world.play, k=settings.batch_size - num_questions)
    for index in range(num_questions):
        examples.append(rng.choice(world.questions[index % len(world.questions)]))
    return examples


def loss_of(model: Any, examples: Sequence[SyntheticExample], rng: random.Random) -> Tensor:
    """Return the mean over examples of an answer's negative log-likelihood, in nats."""
    answers = [rng.choice(example.answers) for example in examples]
    logits_NV, targets_N = answer_logits(model, examples, answers)
    return F.cross_entropy(logits_NV, targets_N, reduction="sum") / len(examples)


def answer_logits(
    model: Any, examples: Sequence[SyntheticExample], answers: Sequence[list[int]]
) -> tuple[Tensor, Tensor]:
    """Return logits [N, V] that predict the answers' tokens, and these tokens [N]."""
    inputs, targets = [], []
    for example, answer in zip(examples, answers, strict=True):
        inputs.append(torch.tensor(example.prompt_ids + answer[:-1]))
        targets.append(torch.tensor([_IGNORED] * (len(example.prompt_ids) - 1) + answer))
    ids_BT = pad_sequence(inputs, batch_first=True)
    targets_BT = pad_sequence(targets, batch_first=True, padding_value=_IGNORED)
    is_answer_BT = targets_BT != _IGNORED
    hidden_BTD = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state
    return model.lm_head(hidden_BTD[is_answer_BT]), targets_BT[is_answer_BT]


def measured(model: Any, world: World, most: int) -> Learned:
    """Measure legality and evenness of play, and right answers, by at most `most` of each kind."""
    rng = random.Random(0)
    played = _scored(model, rng.sample(world.play, min(most, len(world.play))))
    legal = mean(sum(math.exp(logprob) for logprob, _ in answers) for answers in played)
    uneven = (
        mean(logprob for logprob, _ in answers) + math.log(len(answers)) for answers in played
    )
    right = []
    for kind in world.questions:
        asked = _scored(model, rng.sample(kind, min(most, len(kind))))
        right.append(mean(any(is_given for _, is_given in answers) for answers in asked))
    return Learned(legal, -mean(uneven), right)


@torch.no_grad()
def _scored(model: Any, examples: Sequence[SyntheticExample]) -> list[list[tuple[float, bool]]]:
    """Return each right answer's log-probability, and if it is greedy, by example."""
    found: list[list[tuple[float, bool]]] = []
    for part in (examples[at : at + _AT_ONCE] for at in range(0, len(examples), _AT_ONCE)):
        pairs = [(example, answer) for example in part for answer in example.answers]
        logits_NV, targets_N = answer_logits(
            model, [example for example, _ in pairs], [answer for _, answer in pairs]
        )
        sizes = [len(answer) for _, answer in pairs]
        logprobs_N = logits_NV.log_softmax(-1).gather(1, targets_N[:, None])[:, 0]
        greedy_N = logits_NV.argmax(-1) == targets_N
        parts = zip(logprobs_N.split(sizes), greedy_N.split(sizes), strict=True)
        scored = ((float(logprobs.sum()), bool(greedy.all())) for logprobs, greedy in parts)
        found += [list(islice(scored, len(example.answers))) for example in part]
    return found


async def _score(config: WorldRun, game: GameConfig, folder: str) -> float:
    """Return the base model's mean score against random, from every side in turn."""
    changes = {"model.name": folder, "model.init": "fresh", "games": [game]}
    resolved = prepare(config.updated(changes)).config
    specs = [_spec(resolved.games[0], number) for number in range(config.world.score_games)]
    with tempfile.TemporaryDirectory() as scratch:
        run = RunFolder(Path(scratch))
        actor = await LocalActor.start(resolved, run, run.root / "engine.log")
        results = [result async for result in actor.play(specs)]
        await actor.close()
    scores = []
    for result in results:
        assert isinstance(result, GameResult), result.error
        seat = [each.player for each in result.spec.seats].index(BASE)
        scores.append(WORTH[result.standing(seat)])
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
    """Return the factor of the learning rate: a warmup, then a cosine down to a fiftieth."""
    return min(1.0, (step + 1) / _WARMUP) * (0.02 + 0.49 * (1 + math.cos(math.pi * step / steps)))
