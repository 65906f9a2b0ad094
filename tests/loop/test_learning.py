"""Learning through the whole loop: after a run the policy is stronger than it was, beyond doubt.

Quick: Nim by the shipped tiny model, in this process. Slow: real processes from config to
checkpoints, and a model that knows how to answer and not how to win.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import textarena
import torch
from torch.nn.functional import cross_entropy

import unstable
from tests.helpers.locally import locally
from tests.helpers.loop import make_context
from tests.helpers.models import tiny_model, tiny_tokenizer
from unstable.loop.train import train
from unstable.prompts import PromptBuilder, load_style
from unstable.records.reading import read_rows
from unstable.types import Observation

NIM: dict[str, Any] = {
    "model": {"name": "tiny", "init": "fresh", "dtype": "float32", "adapter": {"rank": 32}},
    "games": [{"env": "Nim-v0", "args": {"piles": [1, 2, 2]}}],
    "opponents": {"draw": {"self": 1, "past": 0, "fixed": 0}, "fixed": []},
    "actors": {"games_in_flight": 128},
    "learner": {
        "algorithm": {"name": "ppo", "critic": None, "kl_loss": 0.1, "old_logprobs": "engine"},
        **{"learning_rate": 3e-3, "batch_size": 512, "steps_per_batch": 4, "epochs": 3},
        "micro_batch_size": 256,
    },
    "eval": {"every": 8, "games": 200, "opponents": ["random"]},
    "loop": {"mode": "sync", "steps": 8},
    "seed": 1,
}
"""Eight updates of Nim, from a model that takes at random: .46 against random play, .77 after."""
DIGITS = "0123"  # random play scores .5, 3 in all deals .6875, the best play .875
STEPS = 40


class Highest(textarena.Env):
    """Each says a digit; the higher one wins, but the deal's trap loses to all others."""

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = textarena.TwoPlayerState(num_players=num_players, seed=seed)
        self.trap = DIGITS[(seed or 0) % len(DIGITS)]
        self.said: list[str] = []
        self.state.reset(game_state={}, player_prompt_function=self._prompt)

    def _prompt(self, player_id: int, game_state: dict[str, Any]) -> str:
        return f"trap {self.trap}"

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        if not re.fullmatch(rf"\[[{DIGITS}]\]", action):
            self.state.set_invalid_move(reason="say a digit")
            return self.state.step()
        self.said.append(action[1])
        if len(self.said) == 2:
            first, second = (DIGITS.index(d) if d != self.trap else -1 for d in self.said)
            if first == second:
                self.state.set_draw(reason="as high")
            else:
                self.state.set_winner(player_id=int(second > first), reason="higher")
        return self.state.step()


def digits(env: Highest) -> list[str]:
    return [f"[{digit}]" for digit in DIGITS]


def brief(observation: Observation) -> str:
    """The trap alone: no seat is shown what the other one has said."""
    return observation.rules


GAME = {
    "env": f"{__name__}:Highest",
    "name": "Highest",
    "prompt": f"{__name__}:brief",
    "legal_moves": f"{__name__}:digits",
}


def save_base(folder: Path, seed: int) -> None:
    """Save a small Llama that says any digit, for every trap, in the form that the env accepts.

    Half of what it learns is to repeat the digit of another prompt, so that it knows them apart.
    """
    tokenizer = tiny_tokenizer()
    prompts = PromptBuilder(tokenizer, load_style(GAME["prompt"]), {}, 100)
    answers = {digit: prompts.encode_answer(f"[{digit}]") for digit in DIGITS}
    rows = []
    for shown in DIGITS:
        for word, answered in (("trap", DIGITS), ("said", 4 * shown)):
            asked = prompts.template.encode([{"role": "user", "content": f"{word} {shown}"}])
            rows += [[*asked, *answers[digit]] for digit in answered]
    ids = torch.tensor(rows)
    start = ids.shape[1] - len(answers["0"])
    model = tiny_model(seed=seed).train().requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(400):
        logits = model(ids).logits[:, start - 1 : -1]
        loss = cross_entropy(logits.flatten(0, 1), ids[:, start:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def config(folder: Path, seed: int) -> unstable.RunConfig:
    model = {"name": str(folder / "base"), "dtype": "float32", "init": "fresh"}
    return unstable.parse(
        {
            "model": model | {"adapter": {"rank": 8, "alpha": 16}},
            "games": [GAME],
            "sampling": {"max_tokens": 4, "max_prompt_tokens": 100},
            "actors": {"num": 1, "games_in_flight": 64},
            "learner": {
                "algorithm": {"name": "reinforce", "kl_loss": 0.1, "kl_estimator": "k3"},
                **{"learning_rate": 5e-3, "batch_size": 256, "steps_per_batch": 4},
                "micro_batch_size": 64,
            },
            "eval": {"every": STEPS, "games": 256},
            "loop": {"mode": "sync", "steps": STEPS},
            "tracking": {"run_dir": str(folder / "run"), "dashboard": "off"},
            "seed": seed,
        }
    )


@pytest.mark.slow
def test_a_run_learns_to_win(tmp_path: Path) -> None:
    save_base(tmp_path / "base", seed=1)
    folder = unstable.train(config(tmp_path, seed=1))
    before, *_, after = read_rows(folder.metrics)
    of = "eval/Highest/random/sampled"
    assert before[f"{of}/low"] < 0.5 < before[f"{of}/high"]  # as random play
    assert min(row[f"{of}/legal_moves"] for row in (before, after)) > 0.9
    assert after[f"{of}/low"] > before[f"{of}/high"]
    assert all(folder.checkpoint(version).is_dir() for version in (0, STEPS))


async def test_a_short_run_learns_nim(tmp_path: Path) -> None:
    context = make_context(Path("tiny"), tmp_path / "run", **NIM)
    await train(context)
    rows = read_rows(context.folder.metrics)
    score, low, high = (f"eval/Nim-v0/random/sampled/{name}" for name in ("score", "low", "high"))
    assert rows[0][low] < 0.5 < rows[0][high]  # as random play
    assert rows[-1][low] > rows[0][high] + 0.05
    assert rows[-1][score] > rows[0][score] + 0.2


DISTILL: dict[str, Any] = NIM | {
    "learner": NIM["learner"] | {"algorithm": {"name": "distill"}, "steps_per_batch": 8},
    "eval": {"every": 4, "games": 200, "opponents": ["random"]},
    "loop": {"mode": "sync", "steps": 4},
}
"""Four updates of the expert's exact mix, on the positions that the policy comes to."""


def gained(folder: Any, score: float) -> None:
    """Assert that the score starts at random play's level and rises clearly, above `score`."""
    first, *_, last = read_rows(folder.metrics)
    of = "eval/Nim-v0/random/sampled"
    assert first[f"{of}/low"] < 0.5 < first[f"{of}/high"]
    assert last[f"{of}/low"] > first[f"{of}/high"] + 0.05
    assert last[f"{of}/score"] > score


@pytest.mark.slow
@pytest.mark.one_core
async def test_short_run_distills_the_expert(tmp_path: Path) -> None:
    context = make_context(Path("tiny"), tmp_path / "run", **DISTILL)
    await train(context)
    gained(context.folder, 0.7)
    rows = read_rows(context.folder.metrics)
    kl = [row["learn/loss"] - row["learn/expert_entropy"] for row in rows if "learn/loss" in row]
    assert kl[-1] < 0.5 * kl[0]


@pytest.mark.slow
def test_distilled_policy_teaches_another_run(tmp_path: Path) -> None:
    def run(name: str, **changes: Any) -> Any:
        tracking = {"run_dir": str(tmp_path / name), "dashboard": "off"}
        with locally():
            return unstable.train(unstable.parse(DISTILL | {"tracking": tracking} | changes))

    taught = run("expert", actors={"num": 1, "games_in_flight": 128})
    gained(taught, 0.7)
    algorithm = {"name": "distill", "teacher": {"adapter": str(taught.checkpoint(4))}}
    learned = run(
        "pupil",
        actors={"num": 1, "games_in_flight": 128},
        learner=DISTILL["learner"] | {"algorithm": algorithm},
    )
    gained(learned, 0.6)
    kl = [row["learn/kl_teacher"] for row in read_rows(learned.metrics) if "learn/loss" in row]
    assert kl[-1] < 0.5 * kl[0]
