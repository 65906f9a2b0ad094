"""Test all of `unstable learn` but Ray, in this process: recorded games, learner and files."""

import asyncio
import gc
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load as tensors

from tests.helpers.loop import lines
from tests.helpers.mistakes import line_of, refused
from tests.helpers.recorded import MortalLearner, processes, recorded_run
from tests.helpers.resume import rows, weights
from unstable.cli import run as command
from unstable.commands.learn import learn, offline_data, origin_of, read_offline
from unstable.commands.resume import resume
from unstable.config import ConfigError, GameConfig, LearnRun, load, load_as
from unstable.games.game import Game
from unstable.models.adapters import read_adapter
from unstable.records.folder import RunFolder
from unstable.records.reading import read_rows
from unstable.runtime.local import LocalLearner
from unstable.types import PackedBatch, PackedTrajectory


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Three updates of self-play."""
    return recorded_run(tmp_path_factory.mktemp("recorded") / "run")


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unstable.runtime.processes.processes", processes)


def options(new: Path, **changes: Any) -> dict[str, Any]:
    """Return overrides for a run on recorded games in the folder `new`; `__` means a dot."""
    own = {"tracking.run_dir": str(new), "tracking.dashboard": "off", "tracking.report": False}
    return own | {name.replace("__", "."): value for name, value in changes.items()}


DPO = {"name": "dpo", "pairs": "position", "beta": 0.5}
ALGORITHMS: list[dict[str, Any]] = [
    {"learner": {"algorithm": {"name": "rft"}}},
    {"learner": {"algorithm": {"name": "reinforce"}}},
    {"learner": {"algorithm": {"name": "ppo", "critic": None}, "steps_per_batch": 2, "epochs": 2}},
    {"learner": {"algorithm": {"name": "a2c"}}},
    {"learner": {"algorithm": {"name": "grpo"}}, "groups": {"size": 4}},
    {"learner": {"algorithm": {"name": "rloo"}}, "groups": {"size": 4, "by": "branch"}},
    {"learner": {"algorithm": {"name": "dpo"}}, "groups": {"size": 4, "by": "branch"}},
    {"learner": {"algorithm": {"name": "vrpo"}}},
    {"learner": {"algorithm": {"name": "distill"}}},
]


@pytest.mark.parametrize("changes", ALGORITHMS, ids=lambda c: c["learner"]["algorithm"]["name"])
async def test_offline_update_equals_the_online_update(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    learner = {"batch_size": 48, "micro_batch_size": 64, "learning_rate": 3e-3}
    played = {**changes, "learner": learner | changes["learner"], "loop": {"mode": "sync"}}
    played["loop"]["steps"] = 2
    folder = await asyncio.to_thread(recorded_run, tmp_path / "run", **played)
    config = load_as(LearnRun, str(folder.config))
    data, _ = offline_data(config, [origin_of(folder)])
    groups = {
        group[0].group_id: group
        for group in data.index.groups(range(len(data.index.sizes)), window=8)
    }
    for version in (0, 1):
        trained = dict.fromkeys(row["group"] for row in lines(folder.samples(version + 1)))
        batch = PackedBatch(version, tuple(groups[each] for each in trained), recorded=True)
        assert batch.num_samples == len(lines(folder.samples(version + 1)))
        offline = LocalLearner(config, folder)
        await offline.load(version)
        update = await offline.update(batch)
        assert update.metrics.get("learn/staleness_max") is None and update.lines is None
        made = offline.learner.snapshot().adapter
        online = read_adapter(folder.checkpoint(version + 1), "online")
        assert largest_difference(made.weights, online.weights) < 1e-6
        before = read_adapter(folder.checkpoint(version), "before")
        assert largest_difference(made.weights, before.weights) > 1e-4


def largest_difference(one: bytes, two: bytes) -> float:
    first, second = tensors(one), tensors(two)
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def test_epochs_losses_and_evaluations_are_recorded(run: RunFolder, tmp_path: Path) -> None:
    new = learn(
        [run.root],
        options(
            tmp_path / "new",
            learner__algorithm__name="rft",
            learn__epochs=2,
            learn__held_out=0.2,
            eval__every=3,
            eval__exploitability__every=4,
        ),
        "unstable learn run",
    )
    found = read_rows(new.metrics)
    assert found[-1]["version"] == load(str(new.config)).loop.steps == 4
    assert [row["offline/epoch"] for row in found[1:]] == [0.5, 1.0, 1.5, 2.0]
    measured = [row["version"] for row in found if row.get("offline/held_out_loss") is not None]
    assert measured == [0, 2, 4]  # at the ends of epochs
    losses = {row["version"]: row["offline/held_out_loss"] for row in found}
    assert found[-1]["offline/best"] == min(measured, key=lambda version: losses[version])
    score = "eval/Nim-v0/random/sampled/score"
    assert [row["version"] for row in found if row.get(score) is not None] == [0, 3, 4]
    assert new.best.is_dir()
    exploited = [row["version"] for row in found if row.get("exploit/Nim-v0/low") is not None]
    assert exploited == [0, 4]
    assert all(row.get("learn/staleness_mean") is None for row in found)
    assert found[1]["learn/mismatch_kl"] is not None
    assert json.loads(new.environment.read_text())["command"] == "unstable learn run"
    sources = json.loads(new.offline.read_text())
    assert [Path(each["run"]) for each in sources["runs"]] == [run.root]
    assert sources["counts"]["groups"] > sources["counts"]["held_out"] > 0


def test_best_held_out_version_is_kept(run: RunFolder, tmp_path: Path) -> None:
    """At a rate at which every update is worse than the one before it."""
    new = learn(
        [run.root],
        options(
            tmp_path / "new",
            learner__algorithm__name="rft",
            learner__learning_rate=0.3,
            learn__epochs=3,
            learn__held_out=0.2,
            learn__held_out_every=1,
            tracking__keep_checkpoints=1,
        ),
    )
    losses = [row["offline/held_out_loss"] for row in read_rows(new.metrics)]
    best = losses.index(min(losses))
    assert best < len(losses) - 2
    assert new.best_version == best == read_rows(new.metrics)[-1]["offline/best"]
    assert {0, best} < set(new.versions())


@pytest.mark.parametrize("dies_at", [0, 1, 2])
def test_resumed_run_equals_an_uninterrupted_one(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    source = RunFolder(shutil.copytree(run.root, tmp_path / "source"))
    asked = {"learner__algorithm__name": "reinforce", "learn__held_out": 0.2, "learn__epochs": 2}
    asked |= {"eval__every": 2, "eval__games": 4, "learn__window": 3}
    whole = learn([source.root], options(tmp_path / "whole", **asked))
    monkeypatch.setattr(MortalLearner, "dies_at", dies_at)
    with pytest.raises(KeyboardInterrupt):
        learn([source.root], options(tmp_path / "halved", **asked))
    halved = RunFolder(tmp_path / "halved")
    assert halved.versions()[-1] == dies_at
    monkeypatch.setattr(MortalLearner, "dies_at", None)
    games = source.game_files()[-1].path  # later games of the source are ignored
    games.write_bytes(games.read_bytes() + games.read_bytes())
    resume(halved.root, {})
    assert rows(halved) == rows(whole)
    assert all(weights(halved, each) == weights(whole, each) for each in whole.versions())


def test_resume_conditions(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = RunFolder(shutil.copytree(run.root, tmp_path / "source"))
    monkeypatch.setattr(MortalLearner, "dies_at", 1)
    with pytest.raises(KeyboardInterrupt):
        learn([source.root], options(tmp_path / "new"))
    monkeypatch.setattr(MortalLearner, "dies_at", None)
    new = RunFolder(tmp_path / "new")
    with pytest.raises(ConfigError, match=r"loop.steps = 9: the games suffice for \d updates in"):
        resume(new.root, {"loop.steps": 9})
    with pytest.raises(ConfigError, match="learn.epochs = 2: cannot change on resume .it is"):
        resume(new.root, {"learn.epochs": 2})
    games = source.game_files()[0].path
    moved = games.rename(games.with_suffix(".moved"))
    refused("recorded games are missing; restore them", resume, new.root, {})
    moved.rename(games)
    command(["train", "--resume", str(new.root)])  # as the summary of an interrupted run says
    assert read_rows(new.metrics)[-1]["version"] == load(str(new.config)).loop.steps > 1


def test_resume_rejects_changed_pairs(run: RunFolder, tmp_path: Path) -> None:
    pairs = own_pairs(tmp_path)
    own = options(tmp_path / "new") | {"learner.algorithm": DPO, "learn.pairs": str(pairs)}
    new = learn([], {**own, "eval.every": 0}, base=load_as(LearnRun, str(run.config), own))
    content = pairs.read_text()
    pairs.write_text(content.replace("chosen", "x").replace("rejected", "chosen").replace("x", "y"))
    config = load(str(new.config))
    refused(r"jsonl': the pairs have changed since the run started; r", read_offline, config, new)
    pairs.write_text(content)
    assert read_offline(config, new) is not None


@pytest.mark.parametrize(
    "name, change, said",
    [
        ("token_ids", lambda ids: [ids[0] ^ 1, *ids[1:]], "token ids of game .* do not"),
        ("token_ids", lambda ids: [10_000, *ids[1:]], "token ids of game .* do not match the"),
        ("logprobs", lambda each: [5.0] * len(each), "the filters leave no training data"),
    ],
)
def test_games_of_another_model_are_rejected(
    run: RunFolder, tmp_path: Path, name: str, change: Any, said: str
) -> None:
    folder = RunFolder(shutil.copytree(run.root, tmp_path / "other"))
    for file in folder.game_files():
        games = lines(file.path)
        for turn in (turn for game in games for turn in game["turns"] if turn["sampled"]):
            (segment,) = turn["sampled"]["segments"]
            segment[name] = change(segment[name])
        file.path.write_text("".join(f"{json.dumps(each)}\n" for each in games))
    refused(said, learn, [folder.root], options(tmp_path / "new"))
    folder.config.write_text("\n")
    with pytest.raises(ConfigError, match=r"config.yaml: is empty; restore the run's config.yaml"):
        learn([folder.root], options(tmp_path / "new"))


def test_games_of_several_runs_are_mixed(run: RunFolder, tmp_path: Path) -> None:
    other = recorded_run(tmp_path / "other", seed=2, loop={"mode": "sync", "steps": 1})
    config = load_as(LearnRun, str(run.config))
    origins = [origin_of(run), origin_of(other)]
    both, alone = (offline_data(config, part)[0].index for part in (origins, origins[:1]))
    assert both.counts.groups > alone.counts.groups
    groups = list(both.groups(range(len(both.sizes)), window=5))
    assert len({group[0].group_id for group in groups}) == len(groups) == both.counts.groups
    games = {each.game_id for group in groups for each in group}
    assert len(games) == both.counts.games
    assert groups[: len(alone.sizes)] == list(alone.groups(range(len(alone.sizes)), window=50))


@pytest.mark.parametrize(
    "changes, words",
    [
        (
            {"learner.algorithm.name": "ppo", "learner.algorithm.importance": "none"},
            "learner.algorithm.name = 'ppo' on recorded games: importance = 'none': recorded gam",
        ),
        (
            {"learner.algorithm.kl_opponents": True, "learner.algorithm.kl_reward": 0.1},
            "learner.algorithm.kl_opponents = true: batches of recorded games rarely have both",
        ),
        ({"learner.algorithm.name": "grpo"}, "in these games each group has only one; choose a"),
        (
            {"learner.algorithm.name": "rloo", "learn.winners": True},
            "learn.winners = true: rloo compares the trajectories of a group, but winners have",
        ),
        ({"learn.versions": [5, 9]}, "learn: the filters leave no training data ("),
        ({"learn.versions": [5, 3]}, "learn.versions = [5, 3]: first version above the last; "),
        ({"learn.opponents": ["past", "expert"]}, "learn.opponents.1 = 'expert': not in these"),
        (
            {"learn.judged": {"file": "judged/kind.jsonl", "term": "kind", "least": 0.5}},
            "learn.judged.file = 'judged/kind.jsonl': not found in ",
        ),
        (
            {"buffer.rewards": [{"term": "outcome", "weight": 2.0}]},
            "buffer.rewards: recorded games keep their recorded rewards; leave it out",
        ),
        ({"learn.held_out": 1.0}, "learn.held_out = 1.0: input should be less than 1"),
        ({"learner.algorithm.name": "vrpo"}, "'vrpo' requires sampling.moves = 'state', but "),
        ({"learner.algorithm.name": "distill"}, "'distill' requires sampling.moves = 'expert', "),
        ({"learn.pairs": "none.jsonl"}, "learn.pairs: reinforce does not support pairs; choose"),
        (
            {"learn.pairs": "none.jsonl", "learner.algorithm": DPO},
            "learn.pairs = 'none.jsonl': no such file; give a JSONL file",
        ),
    ],
)
def test_mistake_is_one_line_and_leaves_no_folder(
    changes: dict[str, Any], words: str, run: RunFolder, tmp_path: Path
) -> None:
    assert words in line_of(learn, [run.root], options(tmp_path / "new") | changes)
    assert not (tmp_path / "new").exists()


def own_pairs(folder: Path) -> Path:
    """Write pairs that prefer all of the first pile to one of it, for any sizes of the others."""
    brief = Game(GameConfig(env="Nim-v0", prompt="compact"), seed=0).observe().brief
    pairs = [
        {
            "observation": f"{brief}\n{first} {second} {third}",
            "chosen": f"[0 {first}]",
            "rejected": "[0 1]",
        }
        for first in (2, 3)
        for second in range(5)
        for third in range(6)
    ]
    path = folder / "pairs.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in pairs))
    return path


def test_labeled_answers_are_learned(run: RunFolder, tmp_path: Path) -> None:
    """By kto; a pair's algorithm refuses them."""
    rows = [
        {"prompt": f"Pile {size}.", "completion": f"[{size % 2}]", "label": bool(size % 3)}
        for size in range(48)
    ]
    path = tmp_path / "labels.json"
    path.write_text(json.dumps(rows))
    kto = {"name": "kto", "beta": 1.0}
    own = {**options(tmp_path / "new"), "learner.algorithm": kto, "learn.pairs": str(path)}
    own |= {"learner.batch_size": 16, "learn.epochs": 6, "eval.every": 0}
    new = learn([], own, base=load_as(LearnRun, str(run.config), own))
    first, *_, last = read_rows(new.metrics)[1:]
    assert last["version"] == 18 and last["learn/loss"] < 0.97 * first["learn/loss"]
    assert last["learn/kto_margin"] > first["learn/kto_margin"]
    own |= {"learner.algorithm": DPO, "tracking.run_dir": None}
    with pytest.raises(ConfigError, match="labeled single answers are unsupported by dpo, which"):
        learn([], own, base=load_as(LearnRun, str(run.config), own))


@pytest.mark.parametrize("with_games", [False, True])
def test_custom_pairs_are_learned(run: RunFolder, tmp_path: Path, with_games: bool) -> None:
    """Beside the games of a run, whose positions it compares, or alone; and to the bit again."""
    pairs = own_pairs(tmp_path)
    changes = {
        "learner.algorithm": DPO,
        "learner.batch_size": 32,
        "learn.pairs": str(pairs),
        "learn.held_out": 0.25,
        "learn.epochs": 2,
        "eval.every": 0,
    }
    own = options(tmp_path / "new") | changes
    alone = None if with_games else load_as(LearnRun, str(run.config), own)
    new = learn([run.root] if with_games else [], own, base=alone)
    first, *_, last = read_rows(new.metrics)
    assert last["learn/pair_accuracy"] > 0.6
    assert last["offline/held_out_loss"] < 0.9 * first["offline/held_out_loss"]
    origins = [origin_of(run)] if with_games else []
    data, line = offline_data(load_as(LearnRun, str(new.config)), origins)
    assert len(data.pairs) + len(data.held_out_pairs) == 60 and "60 pairs" in line
    groups = [group for batch in data.batches(0) for group in batch.groups]
    ids = [group[0].group_id for group in groups]
    made = [group for group in groups if group[0].group_id < 0]
    assert {len(group) for group in made} == {2}
    # Each pair once per epoch, except for the rest below a batch.
    assert 2 * (len(data.pairs) - 15) <= len(made) <= 2 * len(data.pairs)
    assert any(each >= 0 for each in ids) == with_games


def test_options_apply_to_a_run_on_pairs_alone(run: RunFolder, tmp_path: Path) -> None:
    pairs, new = own_pairs(tmp_path), tmp_path / "new"
    given = {"learner.algorithm.name": "dpo", "learner.algorithm.pairs": "position", "steps": 1}
    given |= {"learner.batch_size": 32, "learn.pairs": pairs, "eval.every": 0, "run_dir": new}
    given |= {"tracking.dashboard": "off", "tracking.report": "false"}
    words = [str(word) for name, value in given.items() for word in (f"--{name}", value)]
    assert command(["learn", "--config", str(run.config), *words]) == 0
    assert RunFolder(new).versions()[-1] == 1


def test_unusable_runs_are_rejected(run: RunFolder, tmp_path: Path, tiny_folder: Path) -> None:
    refused(r"^RUN_DIR = '.*' is given twice; give it once", learn, [run.root, run.root / "."], {})
    needs = "^give one or more RUN_DIR, or --learn.pairs FILE and --config, or --resume"
    refused(needs, command, ["learn"])
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(run.config, bare / "config.yaml")
    refused(r"^RUN_DIR = '.*': no training games; give another run", learn, [bare], {})
    with pytest.raises(ConfigError, match=r"^model.name = .*: the games of .* were played by"):
        learn([run.root], options(tmp_path / "new", model__name=str(tiny_folder)))


def test_judge_scores_select_trajectories(run: RunFolder, tmp_path: Path) -> None:
    source = RunFolder(shutil.copytree(run.root, tmp_path / "source"))
    (source.root / "judged").mkdir()
    games = [row for file in source.game_files() for row in lines(file.path)]
    scored = [
        {
            "game": row["game"],
            "judged": [
                {
                    **{"game": row["game"], "seat": 0, "turn": turn},
                    "rewards": {"kind": {"raw": raw, "weighted": 0}},
                }
                for turn, raw in ((None, 1.0), (0, float(row["game"] % 2)))
            ],
        }
        for row in games
    ]
    text = "".join(f"{json.dumps(row)}\n" for row in scored)
    (source.root / "judged/kind.jsonl").write_text(text)
    judged = {"file": "judged/kind.jsonl", "term": "kind", "least": 0.6}
    config = load_as(LearnRun, str(source.config), {"learn.judged": judged})
    index = offline_data(config, [origin_of(source)])[0].index
    kept = [each for group in index.groups(range(len(index.sizes)), 99) for each in group]
    assert kept and {(each.game_id % 2, each.seat) for each in kept} == {(1, 0)}
    with pytest.raises(ConfigError, match=r"learn.judged.term = 'cruel': no scores in"):
        offline_data(config.updated({"learn.judged.term": "cruel"}), [origin_of(source)])


@pytest.fixture
def made_since() -> Iterator[Callable[[type], int]]:
    """Yield a function that counts the objects of a type made since the test began."""
    gc.collect()
    gc.freeze()
    yield lambda kind: sum(type(each) is kind for each in gc.get_objects())
    gc.unfreeze()


def test_window_bounds_memory(run: RunFolder, made_since: Callable[[type], int]) -> None:
    config = load_as(LearnRun, str(run.config), {"learn.window": 3, "learner.batch_size": 4})
    data, _ = offline_data(config, [origin_of(run)])
    assert len(data.index.train) > 50
    held = []
    for batch in data.batches(0):
        held.append(made_since(PackedTrajectory) - len(batch.groups))
        del batch
    assert 1 <= max(held) <= 3
    wide = offline_data(config.updated({"learn.window": 1000}), [origin_of(run)])[0]
    assert list(wide.batches(0)) == list(data.batches(0))


def test_command_line_options_reach_the_run(run: RunFolder, tmp_path: Path) -> None:
    words = ["learn", str(run.root), "--algorithm", "reinforce++", "--steps", "1"]
    words += ["--run_dir", str(tmp_path / "new"), "--tracking.report", "false"]
    command([*words, "--init", str(run.checkpoint(2))])
    new = RunFolder(tmp_path / "new")
    assert load(str(new.config)).learner.algorithm.name == "reinforce++"
    assert new.versions() == [0, 1]
    assert weights(new, 0) == weights(run, 2)
    assert "--algorithm reinforce++" in json.loads(new.environment.read_text())["command"]


@pytest.mark.slow
def test_imitating_winners_of_random_games_improves_play(tmp_path: Path) -> None:
    """Nim by a model that takes at random: .46 against random play, .65 after."""
    source = recorded_run(
        tmp_path / "run",
        model={"name": "tiny", "init": "fresh", "dtype": "float32", "adapter": {"rank": 32}},
        learner={"batch_size": 2048, "micro_batch_size": 256, "learning_rate": 1e-9},
        actors={"games_in_flight": 128},
        loop={"mode": "sync", "steps": 1},
    )
    asked = {"learner__learning_rate": 3e-3, "learner__batch_size": 256, "learn__epochs": 10}
    asked |= {"learn__held_out": 0.2, "eval__every": 1000, "eval__games": 200}
    named = {"learner__algorithm__name": "rft"}
    new = learn([source.root], options(tmp_path / "new", **asked, **named))
    first, *_, last = read_rows(new.metrics)
    score = "eval/Nim-v0/random/sampled"
    assert last[f"{score}/low"] > first[f"{score}/high"]
    assert last["offline/held_out_loss"] < 0.9 * first["offline/held_out_loss"]
