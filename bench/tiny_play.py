"""Play with a tiny model, whose arithmetic costs almost nothing, to measure all other costs.

    OMP_NUM_THREADS=1 python -m bench.tiny_play [--rounds 5] [--profile]

A character Llama of 0.1 M weights, first trained for some seconds to name free cells, plays
TicTacToe with itself: prompts of 11 tokens, answers of 2 (`--long` adds brackets around the digit),
256 games in flight, one thread. Three ways alternate, round after round; prints medians. Counts
only CPU seconds of this process, since the machine may do other work.

- play: `Collector` on the embedded engine, with an adapter, until 2,048 turns are played.
- engine: the same requests on the same engine, equally concurrent, without games.
- bare: a hand-written batched forward of the same model over the same number of tokens, sampling
  included.

Finally prints the share of a round outside matrix products, by torch's profiler.
"""

import argparse
import asyncio
import cProfile
import os
import pstats
import random
import re
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM, TokenizersBackend

from bench import parser
from bench.orchestration import self_play
from bench.rollout import Recorder, replay
from unstable.collectors.collector import Collector
from unstable.config import AdapterConfig, RunConfig, parse
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.learners.model.trained import TrainedLora
from unstable.models.adapters import attach_lora
from unstable.prompts import PromptStyle
from unstable.runtime.inside import collect_rarely
from unstable.types import Adapter, GameResult, Observation, PlayerId

END, PAD = "<end>", "<pad>"
CHARACTERS = "".join(map(chr, range(32, 127)))
LAYERS, HEADS, HIDDEN, INNER = 2, 4, 64, 128
_CELLS = re.compile(r"^ (.) \| (.) \| (.) *$", re.MULTILINE)


def cells(observation: Observation) -> str:
    """Return the board alone, one character per cell: `X.O......`."""
    rows = _CELLS.findall(observation.board)
    return "".join("." if cell.isdigit() else cell for row in rows for cell in row)


def digit(text: str) -> str | None:
    """Return the first digit of an answer as a move; None without one."""
    found = re.search(r"\d", text)
    return f"[{found[0]}]" if found else None


STYLE = PromptStyle("cells", system="", request="", reasoning=False, body=cells)


def make_tokenizer() -> TokenizersBackend:
    """Return a tokenizer with one token per character."""
    vocab = {END: 0, PAD: 1, "<unknown>": 2}
    vocab |= {character: len(vocab) + i for i, character in enumerate(CHARACTERS)}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unknown>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = TokenizersBackend(
        tokenizer_object=backend, eos_token=END, pad_token=PAD, unk_token="<unknown>"
    )
    tokenizer.chat_template = (
        "{% for message in messages %}{% if message.role == 'user' %}<{{ message.content }}"
        "{% else %}{{ message.content }}<end>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    return tokenizer


def make_model(vocab: int) -> LlamaForCausalLM:
    """Return a model with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=256,
        eos_token_id=0,
        bos_token_id=None,
        pad_token_id=1,
    )
    return LlamaForCausalLM(config).float()


def learn_free_cells(model: LlamaForCausalLM, tokenizer: Any, steps: int, long: bool) -> None:
    """Train the model to answer a board with any free cell."""
    chance, ids = random.Random(0), tokenizer.get_vocab()

    def example() -> list[int]:
        order, moves = chance.sample(range(9), 9), chance.randrange(9)
        marks = {cell: "OX"[i % 2] for i, cell in enumerate(order[:moves])}
        board = "".join(marks.get(cell, ".") for cell in range(9))
        answer = f"[{order[moves]}]" if long else str(order[moves])
        return [*(ids[character] for character in f"<{board}>{answer}"), 0]

    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    for _ in range(steps):
        chats = torch.tensor([example() for _ in range(128)])
        labels = chats.masked_fill(torch.arange(chats.shape[1]) < 11, -100)
        model(input_ids=chats, labels=labels).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval().requires_grad_(False)


def make_adapter(model: LlamaForCausalLM, name: str) -> Adapter:
    """Return a fresh adapter, which has no effect but costs the same as a trained one."""
    peft_model = attach_lora(model, AdapterConfig(), seed=0)
    adapter = TrainedLora(peft_model).export(name)
    peft_model.unload()
    return adapter


def make_config(arguments: argparse.Namespace) -> RunConfig:
    return parse(
        {
            "games": [
                {
                    "env": "TicTacToe-v0",
                    "prompt": "bench.tiny_play:STYLE",
                    "parser": "bench.tiny_play:digit",
                    "invalid_moves": {"allowed": 4},
                }
            ],
            "sampling": {"max_tokens": 4 if arguments.long else 2, "max_prompt_tokens": 32},
            "actors": {"engine": "embedded", "games_in_flight": arguments.in_flight},
        }
    )


async def play(collector: Collector, first: int, turns: int) -> int:
    """Play games from the id `first` on until there are `turns` turns; returns their number."""
    played = 0
    async for result in collector.play(self_play(range(first, first + turns)), turns):
        assert isinstance(result, GameResult), result
        played += len(result.turns)
    return played


class Bare:
    """A hand-written forward of the model: a batch of prompts, then token by token, no padding."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        weights = dict(model.state_dict())
        self._embedding = weights["model.embed_tokens.weight"]
        self._head = weights["lm_head.weight"].T.contiguous()
        self._norm = weights["model.norm.weight"]
        self._layers = [
            {
                name: weights[f"model.layers.{i}.{name}.weight"]
                for name in (
                    *(f"self_attn.{part}_proj" for part in "qkvo"),
                    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
                    "input_layernorm",
                    "post_attention_layernorm",
                )
            }
            for i in range(LAYERS)
        ]
        size = HIDDEN // HEADS
        angles = torch.outer(torch.arange(64.0), 10000.0 ** (-torch.arange(0, size, 2) / size))
        self._cos, self._sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    @torch.inference_mode()
    def answer(self, ids_BT: Tensor, new_tokens: int) -> Tensor:
        """Sample `new_tokens` tokens after each prompt."""
        caches: list[tuple[Tensor, Tensor] | None] = [None] * LAYERS
        place, sampled = 0, []
        for _ in range(new_tokens):
            hidden = self._embedding[ids_BT]
            rows = slice(place, place + ids_BT.shape[1])
            for i, layer in enumerate(self._layers):
                hidden = self._block(hidden, layer, caches, i, rows)
            logits = _norm(hidden[:, -1], self._norm) @ self._head
            cumulated = logits.log_softmax(-1).exp().cumsum(-1)
            chosen = torch.searchsorted(cumulated, torch.rand(len(ids_BT), 1) * cumulated[:, -1:])
            ids_BT, place = chosen.clamp(max=logits.shape[-1] - 1), rows.stop
            sampled.append(ids_BT)
        return torch.cat(sampled, 1)

    def _block(
        self, hidden: Tensor, layer: dict[str, Tensor], caches: list, i: int, rows: slice
    ) -> Tensor:
        x = _norm(hidden, layer["input_layernorm"])
        q, k, v = (
            (x @ layer[f"self_attn.{part}_proj"].T).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in "qkv"
        )
        q, k = (_turn(each, self._cos[rows], self._sin[rows]) for each in (q, k))
        if caches[i] is not None:
            k, v = (torch.cat(pair, 2) for pair in zip(caches[i], (k, v), strict=True))
        caches[i] = (k, v)
        attended = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=q.shape[2] > 1
        )
        hidden = hidden + attended.transpose(1, 2).flatten(2) @ layer["self_attn.o_proj"].T
        x = _norm(hidden, layer["post_attention_layernorm"])
        gate = torch.nn.functional.silu(x @ layer["mlp.gate_proj"].T)
        return hidden + (gate * (x @ layer["mlp.up_proj"].T)) @ layer["mlp.down_proj"].T


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, True) + 1e-6).rsqrt() * weight


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def bare_seconds(bare: Bare, turns: int, in_flight: int, new_tokens: int) -> float:
    """Return the CPU seconds of equally many prompts of 11 tokens, `in_flight` at once."""
    ids = torch.randint(3, 98, (in_flight, 11))
    began = time.process_time()
    for first in range(0, turns, in_flight):
        bare.answer(ids[: min(in_flight, turns - first)], new_tokens)
    return time.process_time() - began


class Measured:
    """The collector with its engine, and the hand-written model."""

    def __init__(self, args: argparse.Namespace, runner: asyncio.Runner) -> None:
        tokenizer = make_tokenizer()
        model = make_model(len(tokenizer))
        learn_free_cells(model, tokenizer, args.steps, args.long)
        self._args, self._runner, self._bare = args, runner, Bare(model)
        adapter = make_adapter(model, PlayerId.policy(0).name)
        self.engine = EmbeddedEngine(model, [0], max_requests=args.in_flight, max_length=64)
        runner.run(self.engine.load(adapter))
        self._recorder = Recorder(self.engine)
        self._collector = Collector(make_config(args), self._recorder, tokenizer)
        self._played = 0  # games

    def play(self) -> tuple[float, int]:
        """Return seconds and turns of a round, in games that no earlier round has played."""
        self._recorder.chains = {}
        began = time.process_time()
        turns = self._runner.run(play(self._collector, self._played, self._args.turns))
        self._played += self._args.turns
        return time.process_time() - began, turns

    def rates(self) -> dict[str, float]:
        """Return the turns per second of each way in a round."""
        seconds, turns = self.play()
        began = time.process_time()
        self._runner.run(replay(self.engine, self._recorder))
        again = time.process_time() - began
        new_tokens = 4 if self._args.long else 2
        by_hand = bare_seconds(self._bare, turns, self._args.in_flight, new_tokens)
        return {"play": turns / seconds, "engine": turns / again, "bare": turns / by_hand}

    def product_seconds(self) -> float:
        """Return the seconds per turn of matrix products alone."""
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            _, turns = self.play()
        names = ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm")
        events = [event for event in profiler.key_averages() if event.key in names]
        return sum(event.self_cpu_time_total for event in events) / 1e6 / turns

    def show_profile(self) -> None:
        """Print the functions that take most of a round's time."""
        with cProfile.Profile() as profiler:
            self.play()
        for order in ("tottime", "cumtime"):
            pstats.Stats(profiler).sort_stats(order).print_stats(45)


def report(rounds: Sequence[dict[str, float]], product_seconds: float) -> None:
    medians = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    for name, rate in medians.items():
        print(
            f"{name:<8}{rate:8.0f} turns/s{1e6 / rate:8.0f} us per turn, "
            f"{rate / medians['bare']:.2f} of the bare arithmetic's speed"
        )
    share = 1 - product_seconds * medians["play"]
    print(f"{share:.0%} of play time is not spent in matrix products")


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(
        __doc__,
        turns=(2048, "turns per round"),
        in_flight=(256, "games in flight"),
        rounds=(5, "measured rounds"),
        steps=(800, "training steps before play"),
    )
    options.add_argument("--long", action="store_true", help="answers of four tokens, as [4]")
    options.add_argument("--profile", action="store_true", help="print a profile of one round")
    args = options.parse_args(argv)
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as in actors
    with asyncio.Runner() as runner:
        measured = Measured(args, runner)
        collect_rarely()
        rounds = [measured.rates() for _ in range(args.rounds + 1)][1:]  # without the warm-up round
        if args.profile:
            measured.show_profile()
        report(rounds, measured.product_seconds())
        runner.run(measured.engine.close())


if __name__ == "__main__":
    main()
