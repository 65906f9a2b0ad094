"""A run of `unstable learn`: trains on recorded games instead of playing."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from unstable.commands.finished import FRESH
from unstable.commands.prepare import check, prepare, show_plan
from unstable.commands.session import new_run, starting, status
from unstable.commands.train import go_on
from unstable.config import ConfigError, LearnRun, RunConfig, load, load_as, records, shown
from unstable.datasets.gather import own_pairs
from unstable.datasets.offline import PAIR, OfflineData, is_held_out, split
from unstable.datasets.recorded import GroupIndex, IndexCounts, Source
from unstable.models.base import load_tokenizer
from unstable.models.shape import read_shape
from unstable.planning.resolve import UNDECIDED
from unstable.prompts import AnswerText
from unstable.records.files import json_line, whole_size, write_whole
from unstable.records.folder import RunFolder, existing_run
from unstable.records.judged import read_scores, terms_record
from unstable.records.reading import Skipped, read_document
from unstable.records.shapes import Offline
from unstable.rewards.terms import Rewards
from unstable.types import RecordedGame, Trajectory

_UNPLAYED: Mapping[str, Any] = {
    **{"groups.size": "auto", "groups.drop_tied": False, "buffer.capacity": "auto"},
    **{"openings.share": 0.0, "actors.policy_refresh": "game"},
}
"""Overrides of any config, for a run that plays no training games."""
_BEGINS: Mapping[str, Any] = {
    **UNDECIDED,
    **_UNPLAYED,
    **FRESH,
    **{"loop.max_time": None, "learner.num": "auto"},
}
"""Overrides of a played run's config, for a new run."""


def learn(
    runs: Sequence[Path],
    overrides: Mapping[str, Any],
    command: str | None = None,
    base: LearnRun | None = None,
) -> RunFolder:
    """Train on the recorded games of runs, with the first one's config; return the run's folder.

    Without runs it trains on `learn.pairs` alone, with the config `base`. `overrides` change the
    config, `command` is the command line, for the record. Raises as `train` does; `resume.resume`
    resumes an interrupted run.
    """
    folders = [existing_run(path) for path in runs]
    for number, folder in enumerate(folders):
        if folder.root.resolve() in [each.root.resolve() for each in folders[:number]]:
            raise ConfigError(f"RUN_DIR = {str(folder.root)!r} is given twice; give it once")
    origin = base if base is not None else load(str(folders[0].config))
    if base is None:
        begun = load_as(LearnRun, str(folders[0].config), {**_BEGINS, **overrides})
    else:  # `base` already has the overrides
        begun = base.updated({k: _UNPLAYED[k] for k in _UNPLAYED.keys() - overrides.keys()})
    config = _untaught(begun)
    _check(config, origin)
    with starting():
        check(config)
        origins = [origin_of(folder) for folder in folders]
        check_moves_kept(config, origins)
        data, line = offline_data(config, origins)
        steps = min(config.loop.steps, data.updates) if "loop.steps" in overrides else data.updates
        size = max(data.index.counts.largest, PAIR if config.learn.pairs else 1)
        made = {"loop.steps": steps, "groups.size": size}
        resolved = prepare(config.updated(made))
    show_plan(resolved)
    status(f"{line} · {steps:,} updates")
    with new_run(resolved.config, command, "offline") as new:
        write_origins(new, config, origins, data.index.counts)
        go_on(resolved, new, None, offline=data)
    return new


def _untaught(config: LearnRun) -> LearnRun:
    """Return the config with only the opponents of its evaluation, as training plays no games."""
    named = config.opponents_among(config.eval.opponents)
    actions = [action for action in config.guard.action if action != "opponents"]
    draw = {"opponents.draw.self": 1.0, "opponents.draw.past": 0.0, "opponents.draw.fixed": 0.0}
    return config.updated(
        {**draw, "opponents.fixed": named, "guard.action": actions, "loop.mode": "sync"}
    )


def _check(config: LearnRun, origin: RunConfig) -> None:
    """Raise `ConfigError` for settings that cannot train on recorded games."""
    algorithm, learn = config.learner.algorithm, config.learn
    name = f"learner.algorithm.name = {algorithm.name!r}"
    if (why := algorithm.why_not_offline()) is not None:
        raise ConfigError(f"{name} on recorded games: {why}")
    if algorithm.kl_opponents:
        raise ConfigError(
            "learner.algorithm.kl_opponents = true: batches of recorded games rarely have both "
            "seats of a game; set it to false"
        )
    if learn.pairs and not algorithm.takes_pairs:
        raise ConfigError(
            f"learn.pairs: {algorithm.name} does not support pairs; choose an algorithm that does, "
            "such as dpo or kto, or leave it out"
        )
    if learn.winners and algorithm.needs_groups:
        raise ConfigError(
            f"learn.winners = true: {algorithm.name} compares the trajectories of a group, but "
            "winners have equal outcomes; leave it out"
        )
    own, theirs = (terms_record(each.buffer.rewards, each.judges) for each in (config, origin))
    if own != theirs:
        raise ConfigError(
            "buffer.rewards: recorded games keep their recorded rewards; leave it out"
        )


class Origin(NamedTuple):
    """A run whose games are trained on: folder, config, and bytes to read of each file."""

    folder: RunFolder
    config: RunConfig
    files: Mapping[Path, int]


def check_moves_kept(config: RunConfig, origins: Sequence[Origin]) -> None:
    """Raise `ConfigError` for games without the data on moves that the algorithm needs."""
    needed = config.learner.algorithm.moves_needed
    for origin in origins:
        kept = origin.config.moves_kept
        if not records(kept, needed):
            raise ConfigError(
                f"learner.algorithm.name = {config.learner.algorithm.name!r} requires "
                f"sampling.moves = {needed!r}, but {origin.folder.root} has {kept!r}; give games "
                f"recorded with {needed!r}, or choose another algorithm"
            )


def origin_of(folder: RunFolder) -> Origin:
    """Return a run with its current training games; raises `ConfigError` if it has none."""
    files = {f.path: whole_size(f.path) for f in folder.game_files() if f.purpose == "train"}
    if not any(files.values()):
        raise ConfigError(f"RUN_DIR = {str(folder.root)!r}: no training games; give another run")
    return Origin(folder, load(str(folder.config)), files)


def offline_data(config: LearnRun, origins: Sequence[Origin]) -> tuple[OfflineData, str]:
    """Return the games as batches, and a line on them.

    Raises `ConfigError` if no data is left to train on, or if the data is unsuitable.
    """
    learn, skipped = config.learn, Skipped()
    tokenizer = load_tokenizer(config.model)
    index = GroupIndex(
        [_source(each, config, tokenizer, skipped) for each in origins],
        learn,
        partial(is_held_out, share=learn.held_out, seed=config.seed),
        least=2 if config.learner.algorithm.needs_groups else 1,
        skipped=skipped,
    )
    pairs = own_pairs(config, tokenizer)
    line = _line(index.counts, skipped, len(pairs))
    if origins or not pairs:
        _check_index(config, index, line)
    own, held_out = split(pairs, learn.held_out, config.seed)
    data = OfflineData(
        index=index,
        learn=learn,
        batch_size=config.learner.batch_size,
        seed=config.seed,
        pairs=own,
        held_out_pairs=held_out,
    )
    return data, line


def _check_index(config: LearnRun, index: GroupIndex, line: str) -> None:
    algorithm, largest = config.learner.algorithm, index.counts.largest
    for number, name in enumerate(config.learn.opponents):
        if name not in index.opponents:
            known = ", ".join(sorted(each for each in index.opponents if "@" not in each))
            raise ConfigError(
                f"learn.opponents.{number} = {name!r}: not in these games; they have {known}"
            )
    if not index.train:
        raise ConfigError(f"learn: the filters leave no training data ({line}); relax them")
    if algorithm.needs_groups and largest == 1:
        raise ConfigError(
            f"learner.algorithm.name = {algorithm.name!r} compares the trajectories of a group, "
            "but in these games each group has only one; choose another algorithm, or games with "
            "groups.size >= 2"
        )
    if largest > config.learner.batch_size:
        raise ConfigError(
            f"learner.batch_size = {config.learner.batch_size}: smaller than a group of {largest} "
            f"trajectories; set it to at least {largest}"
        )


def write_origins(
    folder: RunFolder, config: LearnRun, origins: Sequence[Origin], counts: IndexCounts
) -> None:
    """Record the training data of a run, so that it resumes with identical games and pairs."""
    runs = [
        {
            "run": str(each.folder.root.resolve()),
            "files": {each.folder.relative(path): size for path, size in each.files.items()},
        }
        for each in origins
    ]
    write_whole(
        folder.offline, json_line({"runs": runs, "counts": asdict(counts), **_pairs(config)})
    )


def _pairs(config: LearnRun) -> dict[str, str]:
    """Return the digest of the file of pairs under its key, or nothing without such a file."""
    if config.learn.pairs is None:
        return {}
    content = Path(config.learn.pairs).expanduser().read_bytes()
    return {"pairs": hashlib.blake2b(content, digest_size=16).hexdigest()}


def read_offline(config: RunConfig, folder: RunFolder) -> OfflineData | None:
    """Return the recorded games that a run continues with; None for a run that plays.

    Raises `ConfigError` if games or pairs are missing or have changed.
    """
    if not (folder.offline.is_file() and isinstance(config, LearnRun)):
        return None
    skipped = Skipped()
    record = read_document(folder.offline, Offline, skipped)
    if record is None:
        raise ConfigError(f"{folder.offline}: unreadable; start the run again")
    if (known := record.pairs) is not None and _pairs(config).get("pairs") != known:
        raise ConfigError(
            f"learn.pairs = {config.learn.pairs!r}: the pairs have changed since the run started; "
            "restore them, or start another run"
        )
    data, _ = offline_data(config, [_again(row.run, row.files) for row in record.runs])
    if config.loop.steps > data.updates:
        raise ConfigError(
            f"loop.steps = {config.loop.steps}: the games suffice for {data.updates} updates in "
            f"learn.epochs = {config.learn.epochs}; set loop.steps to at most {data.updates}"
        )
    return data


def _again(root: str, files: Mapping[str, int]) -> Origin:
    folder = RunFolder(Path(root))
    paths = {folder.root / name: size for name, size in files.items()}
    for path, size in paths.items():
        if not path.is_file() or path.stat().st_size < size:
            raise ConfigError(f"{path}: recorded games are missing; restore them")
    return Origin(folder, load(str(folder.config)), paths)


def _source(origin: Origin, config: LearnRun, tokenizer: Any, skipped: Skipped) -> Source:
    """Return the run's games with its own reward terms; token ids must fit our tokenizer."""
    theirs, ours = origin.config.model, config.model
    if theirs.name != ours.name:
        vocabularies = [load_tokenizer(each).get_vocab() for each in (theirs, ours)]
        if vocabularies[0] != vocabularies[1]:
            raise ConfigError(
                f"model.name = {ours.name!r}: the games of {origin.folder.root} were played by "
                f"{theirs.name!r}, which has another tokenizer; give games of one model"
            )
    rewards = Rewards(origin.config.buffer.rewards, origin.config.judges)
    rows = read_shape(ours).vocabulary
    decoder = AnswerText(tokenizer, origin.config.sampling.thoughts)
    is_read = False  # True once a game's ids match our tokenizer

    def trajectories(game: RecordedGame) -> list[Trajectory]:
        nonlocal is_read
        answers = [turn.answer for each in game.games for turn in each.turns]
        sampled = [(s, each.text) for each in answers if (s := each.sampled) is not None]
        whole = [(s, text) for s, text in sampled if not is_read and s.finish_reason == "stop"]
        if any(max(*s.prompt_ids, *s.token_ids, 0) >= rows for s, _ in sampled) or any(
            decoder.text(s.token_ids) != text for s, text in whole
        ):
            raise ConfigError(
                f"{origin.folder.root}: token ids of game {game.spec.game_id} do not match the "
                f"tokenizer of model.name = {ours.name!r}; give the model that played"
            )
        is_read = is_read or bool(whole)
        try:
            return rewards.recorded(game)
        except KeyError as error:
            raise ConfigError(
                f"{origin.folder.root}: rewards of game {game.spec.game_id} do not match its "
                f"config ({error}); restore the run's config.yaml"
            ) from None

    return Source(origin.files, trajectories, _judged(origin.folder, config, skipped))


def _judged(
    folder: RunFolder, config: LearnRun, skipped: Skipped
) -> frozenset[tuple[int, int]] | None:
    """Return (game, seat) pairs with a sufficient score; None if `learn.judged` is not set."""
    judged = config.learn.judged
    if judged is None:
        return None
    path = folder.root / judged.file
    place = f"learn.judged.file = {judged.file!r}"
    if not path.is_file():
        raise ConfigError(f"{place}: not found in {folder.root}; run unstable judge to create it")
    scores = read_scores(path, judged.term, skipped)
    if not scores:
        raise ConfigError(
            f"learn.judged.term = {shown(judged.term)}: no scores in {path}; choose another term"
        )
    return frozenset(place for place, score in scores.items() if score >= judged.least)


def _line(counts: IndexCounts, skipped: Skipped, pairs: int) -> str:
    parts = [
        f"{pairs:,} pairs" if pairs else "",
        f"{counts.games:,} games",
        f"{counts.groups:,} groups of {counts.samples:,} samples",
        f"{counts.held_out:,} groups held out" if counts.held_out else "",
        f"{counts.incomplete:,} incomplete groups skipped" if counts.incomplete else "",
        f"{counts.filtered:,} trajectories removed by filters" if counts.filtered else "",
        skipped.line,
    ]
    return " · ".join(filter(None, parts))
