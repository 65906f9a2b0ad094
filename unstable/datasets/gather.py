"""Collection of a run's examples from the sources in the config."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from unstable.config import (
    ConfigError,
    DataConfig,
    ExpertData,
    GameConfig,
    JSONLData,
    LearnRun,
    LegalMovesData,
    RecordedData,
    RunConfig,
    SFTRun,
    nearest,
)
from unstable.datasets.examples import Example, PairExample
from unstable.datasets.sources import (
    expert_examples,
    jsonl_examples,
    jsonl_pairs,
    random_positions,
    recorded_examples,
)
from unstable.games.catalog.table import EXPERT_GAMES
from unstable.games.services import game_info, lists_legal_moves, prompts_of


def check_data(config: SFTRun) -> None:
    """Raise `ConfigError` if data is missing; needs no tokenizer."""
    for index, data in enumerate(config.sft.data):
        field = f"sft.data.{index}"
        if isinstance(data, RecordedData):
            _recorded_files(data, field)
        else:
            _games(data, config, field)


def gather_examples(config: SFTRun, tokenizer: Any) -> list[Example]:
    """Return the examples of every source, each pair of prompt and answer once.

    Raises `ConfigError` for data that cannot be trained on: no example at all, or prompts and
    answers that are longer than in play.
    """
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], Example] = {}
    for index, data in enumerate(config.sft.data):
        try:
            gathered = list(_source(data, config, tokenizer, f"sft.data.{index}"))
        except ValueError as error:  # such as a prompt that is too long
            raise ConfigError(str(error)) from None
        for example in gathered:
            found.setdefault(example.key, example)
    examples = list(found.values())
    if not examples:
        raise ConfigError("sft.data: no examples found; add files or an expert")
    _check_lengths(config, examples)
    return examples


def own_pairs(config: LearnRun, tokenizer: Any) -> list[PairExample]:
    """Return the pairs of `learn.pairs`; raises `ConfigError` if they cannot be trained on."""
    learn, known = config.learn, config.game_by_key
    if learn.pairs is None:
        return []
    field, path = f"learn.pairs = {learn.pairs!r}", Path(learn.pairs).expanduser()
    if not path.is_file():
        raise ConfigError(f"{field}: no such file; give a JSONL file")
    name = learn.pairs_game or (next(iter(known)) if len(known) == 1 else None)
    if name not in known:
        hint = nearest(name, list(known)) if name else f"use one of {', '.join(known)}"
        raise ConfigError(f"learn.pairs_game = {name!r}: unknown game; {hint}")
    pairs = jsonl_pairs(path, known[name], prompts_of(config, known[name], tokenizer))
    if not pairs:
        raise ConfigError(f"{field}: no pairs found; use another file")
    algorithm = config.learner.algorithm
    is_comparing = algorithm.grouped or algorithm.needs_groups
    if is_comparing and any(len(pair.answers) < 2 for pair in pairs):
        raise ConfigError(
            f"{field}: labeled single answers are unsupported by {algorithm.name}, which compares "
            "pairs; use kto, or give pairs"
        )
    _check_lengths(config, [each for pair in pairs for each in pair.answers])
    return pairs


def _source(data: DataConfig, config: RunConfig, tokenizer: Any, field: str) -> Iterator[Example]:
    if isinstance(data, RecordedData):
        yield from recorded_examples(
            _recorded_files(data, field),
            tokenizer,
            winners_only=data.winners_only,
            forfeits=data.forfeits,
            thoughts=config.sampling.thoughts,
        )
        return
    for game in _games(data, config, field):
        prompts = prompts_of(config, game, tokenizer)
        if isinstance(data, JSONLData):
            yield from jsonl_examples(Path(data.path).expanduser(), game, prompts)
        elif isinstance(data, LegalMovesData):
            yield from chain.from_iterable(
                random_positions(
                    game, prompts, number=data.number, most=data.moves, seed=config.seed
                )
            )
        else:
            yield from expert_examples(
                game, prompts, number=data.number, seed=config.seed, rationale=data.rationale
            )


def _games(
    data: ExpertData | JSONLData | LegalMovesData, config: RunConfig, field: str
) -> list[GameConfig]:
    """Return the games of the data; raises `ConfigError` if none fits."""
    known = config.game_by_key
    if data.game is not None and data.game not in known:
        hint = nearest(data.game, list(known))
        raise ConfigError(f"{field}.game = {data.game!r}: unknown game; {hint}")
    games = list(known.values()) if data.game is None else [known[data.game]]
    names = ", ".join(game.key for game in games)
    if isinstance(data, ExpertData):
        if with_expert := [game for game in games if game_info(game).expert]:
            return with_expert
        raise ConfigError(f"{field}: {names} has no expert; games with an expert: {EXPERT_GAMES}")
    if isinstance(data, LegalMovesData):
        if listing := [game for game in games if lists_legal_moves(game)]:
            return listing
        raise ConfigError(f"{field}: {names} does not list legal moves; set games.0.legal_moves")
    if len(games) > 1:
        raise ConfigError(f"{field}.game: missing; set it to one of {', '.join(known)}")
    if not Path(data.path).expanduser().is_file():
        raise ConfigError(f"{field}.path = {data.path!r}: no such file; give a JSONL file")
    return games


def _recorded_files(data: RecordedData, field: str) -> list[Path]:
    files: list[Path] = []
    for index, name in enumerate(data.files):
        path = Path(name).expanduser()
        found = sorted(path.glob("games/train-*.jsonl")) if path.is_dir() else [path]
        if not found or not found[0].is_file():
            raise ConfigError(
                f"{field}.files.{index} = {name!r}: no training games found; "
                "use a run's folder or its games/train-*.jsonl"
            )
        files += found
    return files


def _check_lengths(config: RunConfig, examples: Sequence[Example]) -> None:
    sampling = config.sampling
    for field, limit, lengths in (
        ("max_tokens", sampling.max_tokens, [each.tokens.num_scored for each in examples]),
        (
            "max_prompt_tokens",
            sampling.max_prompt_tokens,
            [len(each.tokens.prompt_ids) for each in examples],
        ),
    ):
        if (longest := max(lengths)) > limit:
            longer = sum(length > limit for length in lengths)
            raise ConfigError(
                f"sampling.{field} = {limit}: {longer} of {len(lengths)} examples are longer and "
                f"would be truncated in play; set it to {longest}"
            )
