"""Sources of examples: experts, random play, a user's files, and recorded games."""

import logging
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

from unstable.config import ConfigError, GameConfig, ThoughtsConfig
from unstable.datasets.examples import Example, PairExample, answer_tokens, make_example
from unstable.datasets.formats import Chat, is_text, preference_of, read_rows, turns_of
from unstable.games.game import Game
from unstable.prompts import AnswerText, PromptBuilder, TextEncoder, write_answer
from unstable.records.files import read_lines
from unstable.records.games import read_game
from unstable.types import GameResult, Observation, SampledTokens, Segment, TokenSample, Turn
from unstable.types.seeds import derive_seed

_PATIENCE = 200  # consecutive games without a new position after which the search stops
_AMPLE = 4  # generated positions per requested position

log = logging.getLogger(__name__)


# Experts


def expert_examples(
    game: GameConfig, prompts: PromptBuilder, *, number: int, seed: int, rationale: bool = False
) -> list[Example]:
    """Return `number` different prompts of a game, evenly from its seats, with an expert's moves.

    They come from games in which every seat plays the expert's moves at a rate of its own and
    random ones otherwise; positions whose legal moves are all equally good are left out. If
    `_PATIENCE` games bring nothing new, all found examples are returned, and the log states their
    number. `rationale` adds a sentence of reasoning before the move. Raises `ConfigError` if the
    prompt style has no place for it, or if the parser reads the move from no form of answer, and
    `ValueError` for a game without an expert.
    """
    style = prompts.style
    if rationale and not style.reasoning:
        raise ConfigError(
            f"rationale = true: the prompt style {style.name!r} of {game.key} has no reasoning; "
            "set games.prompt to think, or rationale to false"
        )
    pools: dict[int | None, list[Example]] = {seat: [] for seat in range(game.seats)}
    quota = -(-number // game.seats)
    seen: set[tuple[int, ...]] = set()
    played = idle = progress = 0
    while idle < _PATIENCE and min(map(len, pools.values())) < quota:
        for example in _play(game, prompts, derive_seed(seed, "sft", game.key, played), rationale):
            if (ids := tuple(example.tokens.prompt_ids)) not in seen:
                seen.add(ids)
                pools[example.seat].append(example)
        played += 1
        before, progress = progress, _progress(pools.values(), number, quota)
        idle = idle + 1 if progress == before else 0
    evenly = [example for turn in zip_longest(*pools.values()) for example in turn if example]
    if len(evenly) < number:
        log.warning("%s: found only %d of %d requested positions", game.key, len(evenly), number)
    return evenly[:number]


def _progress(pools: Collection[list[Example]], number: int, quota: int) -> int:
    """Count how far the pools are filled: in all up to `number`, then each up to `quota`."""
    total = sum(map(len, pools))
    return total if total < number else number + sum(min(len(pool), quota) for pool in pools)


def _play(
    config: GameConfig, prompts: PromptBuilder, seed: int, rationale: bool
) -> Iterator[Example]:
    """Yield a game's positions whose moves differ in value, each with a move of the expert."""
    rng = random.Random(derive_seed(seed, "moves"))
    game = Game(config, seed)
    expert_share = [rng.random() for _ in range(config.seats)]
    while not game.done:
        observation = game.observe()
        expert, legal = game.expert_moves(), game.legal_moves()
        (action,) = rng.choices(list(expert), list(expert.values()))
        if len(expert) < len(legal) or len(set(expert.values())) > 1:
            reason = game.expert_reason(action) if rationale else ""
            answer = write_answer(prompts, action, reason)
            yield make_example(config, prompts, observation, answer)
        if rng.random() >= expert_share[observation.seat]:
            action = rng.choice(legal)
        game.step(action)


# Random play


def random_turns(
    game: GameConfig, seed: int, rng: random.Random
) -> Iterator[tuple[Observation, list[str]]]:
    """Yield each turn's observation and legal moves in a game of random legal moves.

    Raises `ValueError` for a game that does not list its legal moves.
    """
    play = Game(game, seed)
    while not play.done:
        observation, legal = play.observe(), play.legal_moves()
        yield observation, legal
        play.step(rng.choice(legal))


def random_positions(
    game: GameConfig, prompts: PromptBuilder, *, number: int, most: int, seed: int
) -> list[list[Example]]:
    """Return `number` positions of random games, each with all legal moves or `most` random ones.

    They are taken evenly from all sets of legal moves that occurred, so that rare ones are learned
    too. Raises `ConfigError` if the game's parser reads a legal move from no form of answer, and
    `ValueError` for a game that does not list its moves.
    """
    found: dict[tuple[str, ...], list[list[Example]]] = {}  # by the legal moves
    for index in count():
        if sum(map(len, found.values())) >= _AMPLE * number:
            break
        rng = random.Random(derive_seed(seed, "random moves", game.key, index))
        of_game = derive_seed(seed, "random game", game.key, index)
        for observation, legal in random_turns(game, of_game, rng):
            position = [
                make_example(game, prompts, observation, write_answer(prompts, action))
                for action in rng.sample(legal, min(most, len(legal)))
            ]
            found.setdefault(tuple(legal), []).append(position)
    evenly = [each for turn in zip_longest(*found.values()) for each in turn if each]
    return evenly[:number]


# JSONL files


def jsonl_examples(path: Path, game: GameConfig, prompts: PromptBuilder) -> list[Example]:
    """Read a user's own examples of a game from JSON lines, or a list of rows.

    {"observation": text, "action": text}: the text as a player of the game sees it, and the action
    as the game's parser reads it. Else a chat in any of the forms of `formats.turns_of`, of which
    each answer is an example. Raises `ConfigError` that names file and row.
    """
    return [
        example
        for place, row in read_rows(path)
        for example in own_examples(place, row, game, prompts)
    ]


def own_examples(
    place: str, row: dict[str, Any], game: GameConfig, prompts: PromptBuilder
) -> list[Example]:
    """Return the examples of a row of `jsonl_examples`; `place` names its file and line."""
    if row.keys() >= {"observation", "action"}:
        return [action_example(place, row["observation"], row["action"], game, prompts)]
    turns = turns_of(place, row)
    if turns is None:
        raise ConfigError(
            f"{place}: unknown format (keys: {', '.join(row) or 'none'}); use observation and "
            "action, messages, or prompt and completion"
        )
    chat = turns.chat
    return [chat_example(chat[:at], chat[at]["content"], game, prompts) for at in turns.answers]


def action_example(
    place: str, observation: Any, action: Any, game: GameConfig, prompts: PromptBuilder
) -> Example:
    """Return the example of an action in answer to an observation; raises `ConfigError`."""
    if not (is_text(observation) and is_text(action)):
        raise ConfigError(f"{place}: observation and action must be non-empty UTF-8 text")
    # Recorded observations include the request, which the prompt adds again.
    text = observation.removesuffix(prompts.style.request).rstrip()
    seen = Observation(seat=0, rules=text, events=[], board="", notice="", brief=text)
    try:
        answer = write_answer(prompts, action)
        return replace(make_example(game, prompts, seen, answer), seat=None)
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from None


def chat_example(chat: Chat, answer: str, game: GameConfig, prompts: PromptBuilder) -> Example:
    """Return the example of an answer to a chat, both unchanged."""
    return Example(
        env=game.key,
        seat=None,
        prompt=chat[-1]["content"],
        answer=answer,
        tokens=answer_tokens(prompts, prompts.template.encode(chat), answer),
    )


def jsonl_pairs(path: Path, game: GameConfig, prompts: PromptBuilder) -> list[PairExample]:
    """Read a user's own pairs of a game from JSON lines, or a list of rows.

    {"observation": text, "chosen": action, "rejected": action}: the text as a player of the game
    sees it, and two actions as the game's parser reads them. Else a preference in any of the forms
    of `formats.preference_of`, whose prompt and answers are used unchanged. Raises `ConfigError`
    that names file and row.
    """
    return [_pair(place, row, game, prompts) for place, row in read_rows(path)]


def _pair(place: str, row: dict[str, Any], game: GameConfig, prompts: PromptBuilder) -> PairExample:
    if row.keys() >= {"observation", "chosen", "rejected"} and "prompt" not in row:
        for name in ("chosen", "rejected"):
            if not is_text(row[name]):
                raise ConfigError(f"{place}: {name} = {row[name]!r}: must be non-empty UTF-8 text")
        seen = row["observation"]
        pair = PairExample(
            chosen=action_example(place, seen, row["chosen"], game, prompts),
            rejected=action_example(place, seen, row["rejected"], game, prompts),
        )
    else:
        found = preference_of(place, row)
        if found is None:
            raise ConfigError(
                f"{place}: unknown format (keys: {', '.join(row) or 'none'}); use observation or "
                "prompt, chosen and rejected"
            )
        sides = (
            None if answer is None else chat_example(found.prompt, answer, game, prompts)
            for answer in (found.chosen, found.rejected)
        )
        pair = PairExample(chosen=next(sides), rejected=next(sides))
    if len({example.key for example in pair.answers}) < len(pair.answers):
        raise ConfigError(f"{place}: chosen and rejected are the same answer; remove the line")
    return pair


# Recorded games


def recorded_examples(
    files: Sequence[Path],
    tokenizer: Any,
    *,
    winners_only: bool = True,
    forfeits: bool = False,
    thoughts: ThoughtsConfig | None = None,
) -> list[Example]:
    """Return turns of the policy from `games/train-*.jsonl`, each pair of prompt and answer once.

    Token ids stay as recorded. A turn counts if its move was legal, the parser read its answer, the
    answer was not cut off, and it is not part of an opening; with `winners_only` only winners'
    turns count, and a win by another seat's forfeit counts only with `forfeits`. Prompts in which
    text became control tokens, as older records may have them, are left out and counted in the log.
    Raises `ConfigError` for games of an evaluation, which are never trained on, and for games of
    another tokenizer.
    """
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], Example] = {}
    encoder, forged = TextEncoder(tokenizer), 0
    answers = AnswerText(tokenizer, thoughts or ThoughtsConfig())
    for path in files:
        if path.name.startswith("eval-"):
            raise ConfigError(f"{path}: evaluation games are never trained on; use train-*.jsonl")
        for place, row in read_lines(path):
            game = read_game(place, row)
            if game.spec.purpose == "eval":
                raise ConfigError(
                    f"{place}: evaluation games are never trained on; remove the line"
                )
            for turn in game.turns[game.spec.opening :]:
                answer, tokens = turn.answer, turn.answer.sampled
                if tokens is None or not _teaches(turn, tokens, game, winners_only, forfeits):
                    continue
                if answers.text(tokens.token_ids) != answer.text:
                    raise ConfigError(
                        f"{place}: token ids of another tokenizer; set model.name to the run's"
                    )
                if not encoder.spells(answer.observation, tokens.prompt_ids):
                    forged += 1
                    continue
                example = _example(turn, tokens, game.spec.env)
                found.setdefault(example.key, example)
    if forged:
        log.warning("skipped %d turns: text became control tokens in their prompts", forged)
    return list(found.values())


def _teaches(
    turn: Turn, tokens: SampledTokens, game: GameResult, winners_only: bool, forfeits: bool
) -> bool:
    if tokens.version is None or turn.invalid or not turn.answer.formatted:
        return False
    if tokens.finish_reason != "stop":
        return False
    won = game.standing(turn.seat) == "win" and (forfeits or game.forfeit is None)
    return won or not winners_only


def _example(turn: Turn, tokens: SampledTokens, env: str) -> Example:
    segments = [Segment(token_ids=each.token_ids, scored=each.scored) for each in tokens.segments]
    return Example(
        env=env,
        seat=turn.seat,
        prompt=turn.answer.observation,
        answer=turn.answer.text,
        tokens=TokenSample(prompt_ids=tokens.prompt_ids, segments=tuple(segments)),
    )
