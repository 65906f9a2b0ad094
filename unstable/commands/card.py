"""Model card of a version in Markdown: its quality, its origin and how to load it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel

from unstable.config import escape_control
from unstable.loop.sft import EPOCH, HELD_OUT_LOSS
from unstable.records.tables import evaluations, facts
from unstable.records.text import markdown_table, number
from unstable.report.charts import line_chart
from unstable.report.run import Run
from unstable.report.sections import score_curves
from unstable.report.settings import differences

PICTURE = "scores.png"
PROMPTS = "prompts.json"
_PRIVATE = (
    *("tracking.", "actors.", "cluster.", "listen.", "learner.state"),
    *("loop.start_timeout", "loop.stall_timeout"),
)
_HIDDEN = ("base_url", "url", "api_key_env")
"""Settings of the machine and, at any depth, of endpoints, which do not affect the result."""
_PLACES = ("path", "init", "zip", "ledger")
"""Fields that are files or folders of the machine."""


class Export(NamedTuple):
    """Content of a card in addition to the run."""

    version: int
    merged: bool
    base: str  # its public name
    base_hint: str  # where others find it; "" if a hub has that name
    fingerprint: str | None  # SHA-256 of the base's tensors
    dtype: str
    max_lora_rank: int | None  # None: whole weights
    prompts: dict[str, dict[str, Any]]  # content of prompts.json, by game


def scores_picture(run: Run) -> bytes | None:
    """Return the scores over the versions with their intervals as PNG; None without scores."""
    curves = score_curves(run)
    if not curves:
        return None
    import vl_convert  # 80 MB

    spec = line_chart("", "score", curves)["spec"]
    spec = {**spec, "width": 640, "background": "white"}
    return bytes(vl_convert.vegalite_to_png(spec, scale=1.5))


def model_card(run: Run, export: Export) -> str:
    """Return the card, which names no path of this machine and no endpoint."""
    parts = [
        _front_matter(export),
        _about(run, export),
        _scores(run, export.version),
        f"![Scores over the versions of the run]({PICTURE})" if score_curves(run) else "",
        _loading(export),
        _prompts(export),
        _settings(run),
        _packages(run),
    ]
    return escape_control("\n\n".join(part for part in parts if part)) + "\n"


def start_card(run: Run, version: int, counts: Mapping[str, int]) -> str:
    """Return the card of a warm start for self-play; `counts` are numbers of examples by use."""
    begun = None if run.environment is None else run.environment.command
    # The card shows it as one line of printable characters.
    command = "".join(c if c.isprintable() else " " for c in begun or "unstable sft")
    rows = [row for row in run.rows if row["version"] == version]
    row = next(row for row in rows if HELD_OUT_LOSS in row)
    examples = ", ".join(f"{count} {use}" for use, count in counts.items())
    parts = [
        "# A warm start for self-play",
        f"A LoRA in bfloat16, made by `{command}`. `base.json` names the base model.\n"
        f"Examples: {examples}. Epoch {row[EPOCH]}, step {version}, held-out loss "
        f"{number(row[HELD_OUT_LOSS])} nats per token.",
        _scores(run, version),
        _settings(run),
        _packages(run),
    ]
    return escape_control("\n\n".join(part for part in parts if part)) + "\n"


def _front_matter(export: Export) -> str:
    values = {
        "base_model": export.base,
        "base_model_relation": "finetune" if export.merged else "adapter",
        "library_name": "transformers" if export.merged else "peft",
        "pipeline_tag": "text-generation",
        "tags": ["self-play", "reinforcement-learning", "text-games", "unstable"],
    }
    return f"---\n{yaml.safe_dump(values, sort_keys=False)}---"


def _about(run: Run, export: Export) -> str:
    games = ", ".join(game.key for game in run.config.games)
    what = "Weights" if export.merged else "A LoRA adapter"
    algorithm = run.config.learner.algorithm.name
    made = f"{facts(run.summary)[1][1]} games" if run.updates else "no games yet"
    known = f" (SHA-256 of its tensors: `{export.fingerprint}`)" if export.fingerprint else ""
    return (
        f"# {export.base} after self-play: {games}\n\n"
        f"{what} of `{export.base}`{known}, trained by playing text games against {_met(run)}, "
        f"with unstable. This is version {export.version} of a run of "
        f"{run.summary.version} updates of `{algorithm}`, which played {made}."
    )


def _met(run: Run) -> str:
    """Return the opponents that the config draws in training, in words."""
    draw = run.config.opponents.draw
    fixed = ", ".join(opponent.key for opponent in run.config.opponents.fixed) or "fixed opponents"
    kinds = {"itself": draw.self, "its past versions": draw.past, fixed: draw.fixed}
    met = [name for name, share in kinds.items() if share > 0]
    return " and ".join([", ".join(met[:-1]), met[-1]] if len(met) > 1 else met)


def _sampling(run: Run) -> str:
    """Return sentences on how the version chose its answers in evaluation; "" by default."""
    evaluation = run.config.eval
    held = " Its answers were constrained to legal moves." if evaluation.constrained else ""
    votes = evaluation.votes
    best_of = evaluation.best_of.answers
    voted = f" It played the majority of {votes} answers." if votes > 1 else ""
    chosen = f" A judge chose the best of {best_of} answers." if best_of > 1 else ""
    return held + voted + chosen


def _scores(run: Run, version: int) -> str:
    found = [each for each in run.summary.newest if each.version <= version]
    if not found:
        return "## Evaluation\n\nThis version was not evaluated."
    newest = found[0].version
    table = evaluations(run.summary, [each for each in found if each.version == newest])
    return (
        f"## Evaluation\n\n{markdown_table(table.columns, table.rows)}\n\n"
        f"Results of version {newest}. {table.caption} Each deal is played from every side."
        f"{_sampling(run)}"
    )


def _loading(export: Export) -> str:
    """Return two programs that load the version, to be run in the folder."""
    game = json.dumps(next(iter(export.prompts)))
    hint = f"  # {export.base_hint}" if export.base_hint else ""
    base = "" if export.merged else f"base = {json.dumps(export.base)}{hint}\n"
    values = {
        "head": f'folder = "."  # this folder\n{base}'
        f'game = json.load(open(f"{{folder}}/{PROMPTS}"))[{game}]',
        "dtype": export.dtype,
        "rank": export.max_lora_rank,
    }
    _, *sections = Path(__file__).with_name("loading.txt").read_text("utf-8").split("# --- ")
    codes = dict(section.split("\n", 1) for section in sections)
    kind, vllm = ("transformers", "vllm merged") if export.merged else ("PEFT", "vllm")
    hugging_face = codes["merged" if export.merged else "peft"] + codes["generate"]
    return (
        f"## How to load it\n\nWith {kind}:\n\n{_python(hugging_face.format(**values))}\n\n"
        f"With vLLM:\n\n{_python(codes[vllm].format(**values))}"
    )


def _python(code: str) -> str:
    return f"```python\n{code}```"


def _prompts(export: Export) -> str:
    parts = [
        "## Prompt format",
        f"It was trained on one prompt format per game and knows no other. `{PROMPTS}` has them: a "
        "chat of the system message, if any, and one user message with the game so far. The answer "
        "is the action.",
    ]
    for name, prompt in export.prompts.items():
        facts = [
            f"style `{prompt['style']}`",
            f"parser `{prompt['parser']}`",
            f"at most {prompt['max_tokens']} tokens sampled at temperature {prompt['temperature']}",
        ]
        parts.append(f"**{name}**: {', '.join(facts)}.")
        if "prompt" in prompt:
            parts += [_fenced(prompt["prompt"]), "Its answer:", _fenced(prompt["answer"])]
    return "\n\n".join(parts)


def _fenced(text: str) -> str:
    """Return a block of code whose fence is longer than any in the text."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 0)
    return f"{fence}text\n{text}\n{fence}"


def _settings(run: Run) -> str:
    rows = [
        [f"`{each.path}`", _shown(each.path, each.value), _shown(each.path, each.default)]
        for each in differences(run.config)
        if not each.path.startswith(_PRIVATE) and each.path.rpartition(".")[2] not in _HIDDEN
    ]
    table = markdown_table(["field", "value", "default"], rows)
    return f"## Settings\n\nFields that differ from unstable's defaults.\n\n{table}"


def _shown(path: str, value: Any) -> str:
    """Format a value as JSON, with files and folders of this machine by their last part."""
    return json.dumps(_public(path.rpartition(".")[2], value), default=str, ensure_ascii=False)


def _public(name: str, value: Any) -> Any:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, dict):
        return {key: _public(key, each) for key, each in value.items() if key not in _HIDDEN}
    if isinstance(value, list | tuple):
        return [_public(name, each) for each in value]
    if isinstance(value, str) and (name in _PLACES or value.startswith(("/", "~", "."))):
        return value.rstrip("/").rpartition("/")[2]
    return value


def _packages(run: Run) -> str:
    packages = {} if run.environment is None else run.environment.packages
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    return f"## Versions\n\n{versions}" if versions else ""
