"""TRL's GRPO against the versions of a run, which `unstable serve --openenv` deals as opponents.

In an environment with `pip install trl datasets openenv`:

    unstable serve RUN --versions 0,100,200 --openenv --against expert
    python trl_openenv.py http://127.0.0.1:8000 MODEL [UPDATES]

Each row is a seed, so that the games of a GRPO group share deal, seat and opponent. A game is one
sample: its turns follow each other, and only the model's tokens are trained.
"""

import sys
from contextlib import ExitStack
from typing import Any

import torch
from datasets import Dataset
from openenv import GenericEnvClient
from trl import GRPOConfig, GRPOTrainer

GROUP, GAMES, TOKENS = 8, 128, 6


def sampled(trainer: GRPOTrainer, texts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
    """Sample an answer to each text of token ids; returns its ids and their log-probabilities."""
    tokenizer, model = trainer.processing_class, trainer.model
    padded = tokenizer.pad({"input_ids": texts}, padding_side="left", return_tensors="pt")
    with torch.no_grad():
        found = model.generate(
            **padded.to(model.device),
            max_new_tokens=TOKENS,
            do_sample=True,
            top_k=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    scores = torch.stack(found.logits, 1).log_softmax(-1)
    answers = found.sequences[:, padded["input_ids"].shape[1] :]
    logprobs = scores.gather(2, answers[:, :, None])[:, :, 0]
    lengths = [_length(row, tokenizer.eos_token_id) for row in answers.tolist()]
    pairs = zip(answers.tolist(), logprobs.tolist(), lengths, strict=True)
    return [(ids[:count], row[:count]) for ids, row, count in pairs]


def _length(ids: list[int], end: int) -> int:
    return ids.index(end) + 1 if end in ids else len(ids)


def games(prompts: list[Any], trainer: GRPOTrainer) -> dict[str, list[Any]]:
    """Play a game for each prompt, all at once; rewards are the games' outcomes."""
    tokenizer = trainer.processing_class
    found: dict[str, list[Any]] = {"prompt_ids": [], "completion_ids": []}
    found |= {"logprobs": [], "env_mask": [], "reward": [0.0] * len(prompts)}
    with ExitStack() as stack:
        envs = [stack.enter_context(GenericEnvClient(URL).sync()) for _ in prompts]
        player = f"grpo-{trainer.state.global_step // 20 * 20}"  # in the server's ratings
        seen = [
            env.reset(seed=int(prompt[0]["content"]), seat=1, player=player)
            for env, prompt in zip(envs, prompts, strict=True)
        ]
        for each in seen:
            chat = each.observation["messages"]
            ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
            found["prompt_ids"].append(ids)
        for name in ("completion_ids", "logprobs", "env_mask"):
            found[name] = [[] for _ in prompts]
        while open_games := [i for i, each in enumerate(seen) if not each.done]:
            texts = [found["prompt_ids"][i] + found["completion_ids"][i] for i in open_games]
            answers = sampled(trainer, texts)
            for i, (ids, logprobs) in zip(open_games, answers, strict=True):
                found["completion_ids"][i] += ids
                found["logprobs"][i] += logprobs
                found["env_mask"][i] += [1] * len(ids)
                text = tokenizer.decode(ids, skip_special_tokens=True)
                seen[i] = envs[i].step({"message": text})
                found["reward"][i] = seen[i].reward
                if not seen[i].done:  # the next turn's chat, which is not trained on
                    chat = seen[i].observation["messages"]
                    ids = tokenizer.apply_chat_template(
                        chat, add_generation_prompt=True, return_dict=False
                    )
                    found["completion_ids"][i] += ids
                    found["logprobs"][i] += [0.0] * len(ids)
                    found["env_mask"][i] += [0] * len(ids)
    return found


def outcome(completions: list[Any], reward: list[float], **_: Any) -> list[float]:
    """Return the games' outcomes as rewards."""
    return reward


if len(sys.argv) < 3:
    sys.exit("usage: python trl_openenv.py URL MODEL [UPDATES]")
URL, MODEL, UPDATES = sys.argv[1], sys.argv[2], int((sys.argv[3:] or ["20"])[0])

if __name__ == "__main__":
    seeds = range(GAMES // GROUP * UPDATES)
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": str(s)}]} for s in seeds])
    options = GRPOConfig(
        output_dir="trl_openenv",
        max_steps=UPDATES,
        per_device_train_batch_size=GAMES,
        num_generations=GROUP,
        max_completion_length=256,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        beta=0.0,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    trainer = GRPOTrainer(MODEL, outcome, args=options, train_dataset=rows, rollout_func=games)
    trainer.train()
    trainer.save_model("trl_openenv/last")
