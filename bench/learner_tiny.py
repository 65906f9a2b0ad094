"""Speed of the learner with a tiny model, which exposes every cost except arithmetic.

    python -m bench.learner_tiny [--threads 2] [--rounds 5] [--against FOLDER]

A character-level Llama of 0.1 M weights in fp32, LoRA of rank 32 on its linear layers, batches of
2,048 TicTacToe turns: 12 prompt tokens, 2 sampled ones. Compares the learner that runs use with
plain torch: a hand-written forward and backward, padded, on precomputed tensors, without metrics.
The ways alternate, each time in a new process. A turn counts once per epoch. "Products" are the
share of time in matrix products, by torch's profiler. With one thread, seconds are CPU seconds,
which other work on the machine disturbs less.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from bench import forks, parser

VOCAB, WIDTH, INNER, LAYERS, HEADS, RANK = 110, 64, 128, 2, 4, 32
STEPS, MICRO_BATCH = 4, 512
EPOCHS = {"ppo": 3, "reinforce": 1}
FIRST, LAST, SEATS, CELLS = 1, 2, (3, 4), (10, 11, 12)
"""Ids that a prompt begins and ends with, of the seat to move, and of an empty, X and O cell."""
LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]

Update = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Task:
    """A process's input; `package` is the folder that the package is imported from."""

    model: str
    algorithm: str
    prompts: str
    turns: int
    threads: int
    package: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a game; the last cell taken is the answer."""

    game: int
    seat: int
    index: int
    prompt: list[int]
    answer: list[int]
    reward: float


def draw_turns(prompts: str, number: int) -> list[Turn]:
    """Return turns of random games, whose openings recur, or turns with random ids as boards."""
    random = np.random.default_rng(0)
    turns: list[Turn] = []
    for game in range(number):
        board = [0] * 9
        own: list[Turn] = []
        winner = None
        for index, cell in enumerate(random.permutation(9).tolist()):
            seat = index % 2
            cells = [CELLS[mark] for mark in board]
            if prompts == "apart":
                cells = random.integers(10, VOCAB, 9).tolist()
            prompt = [FIRST, *cells, SEATS[seat], LAST]
            own.append(Turn(game, seat, index, prompt, [20 + cell, 0], 0.0))
            board[cell] = seat + 1
            if any(all(board[place] == seat + 1 for place in line) for line in LINES):
                winner = seat
                break
        for seat in range(2):
            reward = 0.0 if winner is None else 1.0 if winner == seat else -1.0
            turns += [replace(turn, reward=reward) for turn in own if turn.seat == seat]
        if len(turns) >= number:
            break
    return turns[:number]


def ours(task: Task) -> Update:
    """Return an update by the learner that runs use, with its metrics."""
    from unstable.config import AdapterConfig, LearnerConfig, ModelConfig
    from unstable.learners.learner import PolicyLearner
    from unstable.types import Batch, Completion, Group, Reward, Sample, SampledTokens, Trajectory

    members: dict[tuple[int, int], list[Turn]] = {}
    for turn in draw_turns(task.prompts, task.turns):
        members.setdefault((turn.game, turn.seat), []).append(turn)
    groups = []
    for (game, seat), turns in members.items():
        samples = tuple(
            Sample(
                turn=turn.index,
                tokens=SampledTokens(
                    prompt_ids=turn.prompt,
                    segments=(
                        Completion(
                            token_ids=turn.answer,
                            logprobs=[-4.7] * len(turn.answer),
                            finish_reason="stop",
                            adapter="main@0",
                        ),
                    ),
                    version=0,
                    temperature=1.0,
                ),
                rewards={"outcome": Reward(turn.reward, turn.reward)},
            )
            for turn in turns
        )
        trajectory = Trajectory(
            game_id=game,
            env="TicTacToe-v0",
            seat=seat,
            group_id=2 * game + seat,
            outcome=turns[0].reward,
            forfeit=False,
            samples=samples,
        )
        groups.append(Group(trajectories=(trajectory,)))
    batch = Batch(version=0, groups=tuple(groups))
    config = LearnerConfig.model_validate(
        {
            "algorithm": {"name": task.algorithm},
            "batch_size": task.turns,
            "micro_batch_size": min(MICRO_BATCH, task.turns),
            "epochs": EPOCHS[task.algorithm],
            "steps_per_batch": STEPS,
            "gradient_checkpointing": "off",
        }
    )
    adapter = AdapterConfig(rank=RANK, alpha=2 * RANK)
    model = ModelConfig(name=task.model, dtype="float32", adapter=adapter)
    learner = PolicyLearner(model, config, updates=100, max_tokens=2, seed=0)
    return lambda: void(learner.update(replace(batch, version=learner.version)))


def void(_: object) -> None:
    """Discard a value."""


class PlainLinear(nn.Module):
    """A linear layer with a LoRA: x W' + 2 (x A') B'."""

    weight: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(outputs, inputs) / inputs**0.5)
        self.a = nn.Parameter(torch.randn(RANK, inputs) / inputs**0.5)
        self.b = nn.Parameter(torch.zeros(outputs, RANK))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) + 2 * F.linear(F.linear(x, self.a), self.b)


class PlainLayer(nn.Module):
    """A Llama layer on padded sequences of equal length [B, L, D]."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (PlainLinear(WIDTH, WIDTH) for _ in range(4))
        self.gate, self.up = (PlainLinear(WIDTH, INNER) for _ in range(2))
        self.down = PlainLinear(INNER, WIDTH)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
        normed = F.rms_norm(x, x.shape[-1:])
        q, k, v = (f(normed).view(shape).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = (y * cos + torch.cat([-y[..., 8:], y[..., :8]], -1) * sin for y in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(x.shape))
        normed = F.rms_norm(x, x.shape[-1:])
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Plain(nn.Module):
    """A model that returns logprobs of the last two tokens of sequences [B, L], and values."""

    words: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("words", torch.randn(VOCAB, WIDTH) * 0.02)
        self.layers = nn.ModuleList(PlainLayer() for _ in range(LAYERS))
        self.value = nn.Linear(WIDTH, 1)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = torch.arange(ids.shape[1] - 1)[:, None] / 10000 ** (torch.arange(8) / 8)
        cos, sin = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))
        x = F.embedding(ids[:, :-1], self.words)
        for layer in self.layers:
            x = layer(x, cos, sin)
        x = F.rms_norm(x, x.shape[-1:])[:, -2:]
        logprobs = F.linear(x, self.words).log_softmax(-1)
        chosen = logprobs.gather(-1, ids[:, -2:, None])[..., 0]
        return chosen, self.value(x[:, 0].detach())[:, 0]


def plain(task: Task) -> Update:
    """Return an update with equivalent arithmetic on a padded batch, and nothing else."""
    torch.manual_seed(0)
    model = Plain()
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    turns = draw_turns(task.prompts, task.turns)
    ids = torch.tensor([[*turn.prompt, *turn.answer] for turn in turns])
    rewards = torch.tensor([turn.reward for turn in turns])

    def update() -> None:
        old, values = torch.zeros(task.turns, 2), torch.zeros(task.turns)
        if task.algorithm == "ppo":
            with torch.no_grad():
                for part in torch.arange(task.turns).split(MICRO_BATCH):
                    old[part], values[part] = model(ids[part])
        for _ in range(EPOCHS[task.algorithm]):
            for part in torch.randperm(task.turns).split(task.turns // STEPS):
                logprobs, now = model(ids[part])
                gains = (rewards - values)[part, None]
                if task.algorithm == "ppo":
                    ratios = (logprobs - old[part]).exp()
                    loss = -torch.minimum(ratios * gains, ratios.clamp(0.8, 1.2) * gains).mean()
                    loss = loss + 0.5 * ((now - rewards[part]) ** 2).mean()
                else:
                    loss = -(gains * logprobs).mean() + 0 * now.sum()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                adamw.step()
                adamw.zero_grad()

    return update


WAYS: dict[str, Callable[[Task], Update]] = {"plain": plain, "ours": ours, "against": ours}


def measure(way: str, task: Task) -> tuple[float, float]:
    """Return seconds of one update, and the share of matrix products in another one."""
    sys.path.insert(0, task.package)
    torch.set_num_threads(task.threads)
    clock = time.process_time if task.threads == 1 else time.perf_counter
    update = WAYS[way](task)
    update()  # warm-up
    seconds = []
    for _ in range(2):
        started = clock()
        update()
        seconds.append(clock() - started)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        started = clock()
        update()
        profiled = clock() - started
    products = ("aten::mm", "aten::bmm", "aten::addmm", "aten::addmm_", "aten::baddbmm")
    spent = sum(
        event.self_cpu_time_total for event in profile.key_averages() if event.key in products
    )
    return min(seconds), spent / 1e6 / profiled


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__, threads=2, rounds=5, turns=(2048, "turns per batch"))
    options.add_argument("--against", help="folder of another version of the package")
    options.add_argument("--algorithms", nargs="+", choices=EPOCHS, default=list(EPOCHS))
    options.add_argument("--prompts", nargs="+", choices=["apart", "games"], default=["apart"])
    return options.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse(argv)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    here = str(Path(__file__).resolve().parents[1])
    ways = [way for way in WAYS if way != "against" or arguments.against]
    processes = forks("torch", "transformers", "peft")  # without the package: --against
    with tempfile.TemporaryDirectory() as model:
        config = LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=WIDTH,
            intermediate_size=INNER,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            tie_word_embeddings=True,
        )
        LlamaForCausalLM(config).save_pretrained(model)
        for algorithm in arguments.algorithms:
            for prompts in arguments.prompts:
                found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
                for _ in range(arguments.rounds):
                    for way in ways:
                        package = arguments.against if way == "against" else here
                        task = Task(
                            model, algorithm, prompts, arguments.turns, arguments.threads, package
                        )
                        with ProcessPoolExecutor(1, processes) as process:
                            found[way].append(process.submit(measure, way, task).result())
                report(algorithm, prompts, arguments.turns, found)


def report(
    algorithm: str, prompts: str, turns: int, found: dict[str, list[tuple[float, float]]]
) -> None:
    """Print one line per way, with medians."""
    print(f"\n{algorithm}, prompts: {prompts}")
    rates = {
        way: turns * EPOCHS[algorithm] / statistics.median(seconds for seconds, _ in runs)
        for way, runs in found.items()
    }
    for way, runs in found.items():
        share = statistics.median(share for _, share in runs)
        print(
            f"{way:8} {rates[way]:8.0f} turns/s {rates[way] / rates['plain']:6.2f} x plain"
            f"  products {share:4.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
