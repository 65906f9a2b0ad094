"""Supervised examples out of files: games that a run has recorded, and pairs of a person's own."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from unstable.config import ConfigError, GameConfig
from unstable.prompts import PromptBuilder, write_answer
from unstable.sft.data import Example, make_example
from unstable.types import GameResult, GameSpec, Observation, SeatSpec, Turn

_TURN_FIELDS = [field.name for field in fields(Turn)]
_ROLES = ("system", "user", "assistant")


def recorded_examples(
    files: Sequence[Path], tokenizer: Any, *, winners_only: bool = True, forfeits: bool = False
) -> list[Example]:
    """Turns of the policy out of `games/train-*.jsonl`, each pair of prompt and answer once.

    Their ids are taken as they were recorded. Only legal moves in answers that the parser read and
    that were not cut off count; of winners only, unless told otherwise, and a win by another seat's
    forfeit is none, unless `forfeits`. Raises `ConfigError` for games of an evaluation, which are
    never trained on, and for those of another tokenizer.
    """
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], Example] = {}
    for path in files:
        if path.name.startswith("eval-"):
            raise ConfigError(
                f"{path}: an evaluation's games, never trained on; give train-*.jsonl"
            )
        for place, row in _rows(path):
            game = _read_game(place, row)
            for turn in game.turns:
                if not _teaches(turn, game, winners_only, forfeits):
                    continue
                if tokenizer.decode(turn.token_ids, skip_special_tokens=True) != turn.text:
                    raise ConfigError(
                        f"{place}: its ids are another tokenizer's; set model.name to its run's"
                    )
                key = tuple(turn.prompt_ids), tuple(turn.token_ids)
                found.setdefault(key, _taught(turn, game.spec.env))
    return list(found.values())


def _teaches(turn: Turn, game: GameResult, winners_only: bool, forfeits: bool) -> bool:
    if turn.version is None or turn.invalid or not turn.formatted or turn.finish_reason != "stop":
        return False
    won = game.standing(turn.seat) == "win" and (forfeits or game.forfeit is None)
    return won or not winners_only


def _taught(turn: Turn, env: str) -> Example:
    return Example(
        env=env,
        seat=turn.seat,
        prompt=turn.observation,
        prompt_ids=turn.prompt_ids,
        answer=turn.text,
        token_ids=turn.token_ids,
    )


def _read_game(place: str, row: dict[str, Any]) -> GameResult:
    if "turns" not in row:
        raise ConfigError(f"{place}: not a recorded game; give games/train-*.jsonl of a run")
    if row["purpose"] == "eval":
        raise ConfigError(f"{place}: a game of an evaluation, never trained on; leave it out")
    return GameResult(
        spec=GameSpec(
            game_id=row["game"],
            purpose=row["purpose"],
            env=row["env"],
            seed=row["seed"],
            seats=tuple(SeatSpec(**seat) for seat in row["seats"]),
        ),
        turns=[Turn(**{name: turn[name] for name in _TURN_FIELDS}) for turn in row["turns"]],
        outcomes=row["outcomes"],
        forfeit=row["forfeit"],
        truncated=row["truncated"],
        reason=row["reason"],
        seconds=row["seconds"],
    )


def jsonl_examples(path: Path, game: GameConfig, prompts: PromptBuilder) -> list[Example]:
    """A person's own examples of a game, one JSON object a line, in either of two forms.

    {"observation": text, "action": text}: the text as a player of the game sees it, and the action,
    written as the game's parser reads it. {"messages": [{"role": ..., "content": ...}, ...]}: a
    chat that ends with the answer, taken as it is. Raises `ConfigError` naming file and line.
    """
    return [_own_example(place, row, game, prompts) for place, row in _rows(path)]


def _own_example(
    place: str, row: dict[str, Any], game: GameConfig, prompts: PromptBuilder
) -> Example:
    if row.keys() == {"messages"}:
        return _chat_example(place, row["messages"], game, prompts)
    if row.keys() != {"observation", "action"} or not all(map(_is_text, row.values())):
        raise ConfigError(
            f"{place}: has {', '.join(row) or 'no keys'}; give the texts observation and action, "
            "or messages"
        )
    # Games files record a model's observation with the request, which the prompt adds.
    text = row["observation"].removesuffix(prompts.style.request).rstrip()
    observation = Observation(seat=0, rules=text, events=[], board="", notice="")
    try:
        answer = write_answer(game, prompts, row["action"])
        return replace(make_example(game, prompts, observation, answer), seat=None)
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from None


def _chat_example(place: str, messages: Any, game: GameConfig, prompts: PromptBuilder) -> Example:
    if not (isinstance(messages, list) and len(messages) > 1 and all(map(_is_message, messages))):
        raise ConfigError(
            f"{place}: messages needs two or more, each a content and a role of {', '.join(_ROLES)}"
        )
    *chat, last = messages
    if last["role"] != "assistant":
        raise ConfigError(
            f"{place}: the last of messages is the {last['role']}'s; end with assistant"
        )
    return Example(
        env=game.key,
        seat=None,
        prompt=chat[-1]["content"],
        prompt_ids=prompts.encode_chat(chat),
        answer=last["content"],
        token_ids=prompts.encode_answer(last["content"]),
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"role", "content"}
        and value["role"] in _ROLES
        and _is_text(value["content"])
    )


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's place, file:line, and the object in it; lines of white space are passed over."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; give a JSONL file")
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            place = f"{path}:{number}"
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ConfigError(
                    f"{place}: not JSON ({error.msg}); write an object a line"
                ) from None
            if not isinstance(row, dict):
                raise ConfigError(f"{place}: a {type(row).__name__}; write an object a line")
            yield place, row
