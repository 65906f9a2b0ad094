"""Test recorded games as groups: complete, filtered and held-out groups."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.helpers.builders import game
from tests.helpers.records import game_record
from tests.helpers.rows import every_row
from unstable.config import LearnConfig, RewardConfig
from unstable.datasets.offline import OfflineData, is_held_out
from unstable.datasets.recorded import GroupIndex, Source
from unstable.records.files import whole_size, write_lines
from unstable.records.reading import Skipped
from unstable.rewards.terms import Rewards
from unstable.types import GameResult, PackedTrajectory, PlayerId

REWARDS = Rewards([RewardConfig(term="outcome"), RewardConfig(term="length", weight=-0.1)])


def write(path: Path, games: Sequence[GameResult]) -> Source:
    """A run's file of these games, branches after their parents."""
    rows = [
        game_record(each, REWARDS.trajectories(result), 3, 0)
        for result in games
        for each in result.games
    ]
    write_lines(path, rows)
    return Source({path: whole_size(path)}, REWARDS.recorded)


def index_of(
    sources: Sequence[Source], learn: LearnConfig | None = None, share: float = 0.0, **least: int
) -> GroupIndex:
    held_out = partial(is_held_out, share=share, seed=0)
    return GroupIndex(sources, learn or LearnConfig(), held_out, skipped=Skipped(), **least)


def found(index: GroupIndex, window: int = 2) -> list[list[tuple[int, int]]]:
    """Places (game, seat) of each group's trajectories."""
    groups = index.groups(range(len(index.sizes)), window)
    return [[(each.game_id, each.seat) for each in group] for group in groups]


def group(number: int, members: Sequence[int], size: int = 2, **changes: Any) -> list[GameResult]:
    """Games of a group with that number; `members` are the games' ids."""
    return [
        game(game_id=each, group_size=size, group_ids=[number, number + 50], **changes)
        for each in members
    ]


def branched(game_id: int, branches: int, turns: int = 4) -> GameResult:
    """A game with branches that fork before its third turn."""
    parent = game(game_id=game_id, group_size=branches, group_ids=[game_id, game_id + 50])
    spec = replace(parent.spec, branches=branches)
    made = [
        replace(
            game(outcomes=(1.0, -1.0) if member % 2 else (-1.0, 1.0), turns=turns),
            spec=replace(spec, game_id=game_id + member, member=member, branches=0),
            fork=2,
        )
        for member in range(1, branches + 1)
    ]
    return replace(parent, spec=spec, branches=made)


def test_groups_need_all_games_and_keep_recorded_rewards(tmp_path: Path) -> None:
    games = [*group(7, [1, 2]), *group(8, [3]), *group(9, [4, 5], turns=6)]
    games[1], games[2] = games[2], games[1]  # another group's game comes between
    index = index_of([write(tmp_path / "train-000000.jsonl", games)])
    assert found(index) == [[(1, 0), (2, 0)], [(4, 0), (5, 0)]]
    assert index.counts.incomplete == 1 and index.counts.games == 5
    assert list(index.sizes) == [4, 6]
    assert index.counts.samples == 10 and index.counts.largest == 2
    games = group(7, [1, 2])
    (whole,) = index_of([write(tmp_path / "train-000000.jsonl", games)]).groups([0], 1)
    played = [each for result in games for each in REWARDS.trajectories(result)]
    assert [each.opened() for each in whole] == played


def test_branches_form_a_group_unless_one_is_lost(tmp_path: Path) -> None:
    games = [branched(10, 2), branched(20, 3), branched(30, 2)]
    path = tmp_path / "train-000000.jsonl"
    index = index_of([write(path, games)])
    whole = [[(11, 0), (12, 0)], [(21, 0), (22, 0), (23, 0)], [(31, 0), (32, 0)]]
    assert found(index) == whole
    assert list(index.sizes) == [2, 3, 2]  # samples after the fork
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))  # a branch of the first game is lost
    source = Source({path: whole_size(path)}, REWARDS.recorded)
    assert found(index_of([source])) == whole[1:]
    path.write_bytes(b"".join(lines[1:]))  # the game itself is lost
    source = Source({path: whole_size(path)}, REWARDS.recorded)
    assert found(index_of([source])) == whole[1:]


def test_ids_of_two_runs_differ(tmp_path: Path) -> None:
    sources = [write(tmp_path / f"train-{n}.jsonl", group(7, [1, 2])) for n in range(2)]
    groups = list(index_of(sources).groups([1, 0], 1))
    assert [(group[0].group_id, group[0].game_id) for group in groups] == [(15, 4), (7, 1)]


LOST = (-1.0, 1.0)


@every_row(
    "filters, kept",
    (LearnConfig(), [1, 2, 3, 4, 5]),
    (LearnConfig(winners=True), [1, 4, 5]),
    (LearnConfig(versions=(3, 5)), [1, 2, 3, 5]),
    (LearnConfig(versions=(6, 9)), [4]),
    (LearnConfig(opponents=["random"]), [1, 2, 3]),
    (LearnConfig(opponents=["past"]), [4]),
    (LearnConfig(opponents=["main@2"]), [4]),
    (LearnConfig(opponents=["self", "past"]), [4, 5]),
    (LearnConfig(opponents=["random"], winners=True), [1]),
)
def test_filters_select_trajectories(filters: LearnConfig, kept: list[int], tmp_path: Path) -> None:
    games = [
        game(("main@3", "random"), game_id=1),
        game(("main@3", "random"), LOST, game_id=2),
        game(("main@3", "random"), game_id=3, forfeit=1),
        game(("main@7", "main@2"), game_id=4),
        game(("main@5", "main@5"), game_id=5),
    ]
    games[2].forfeit = 1
    index = index_of([write(tmp_path / "train-000000.jsonl", games)], filters)
    assert sorted({each for group in found(index) for each, _ in group}) == kept
    assert index.opponents == {"random", "past", "main@2", "self"}
    of_self = [group for group in found(index) if group[0][0] == 5]
    assert len(of_self) == (5 in kept) * (1 if filters.winners else 2)  # two seats, one has won


def test_winners_filter_and_judges_select_trajectories(tmp_path: Path) -> None:
    games = [*group(7, [1]), *group(7, [2], outcomes=LOST), *group(8, [3, 4])]
    source = write(tmp_path / "train-000000.jsonl", games)
    winners = LearnConfig(winners=True)
    assert found(index_of([source], winners)) == [[(1, 0)], [(3, 0), (4, 0)]]
    compared = index_of([source], winners, least=2)
    assert found(compared) == [[(3, 0), (4, 0)]]
    assert compared.counts.filtered == 1
    games = [game(("main@5", "main@5"), game_id=each) for each in (1, 2)]
    source = write(tmp_path / "train-000000.jsonl", games)
    assert found(index_of([source._replace(judged=frozenset({(1, 1), (2, 0)}))])) == [
        [(1, 1)],
        [(2, 0)],
    ]


def data_of(index: GroupIndex, **changes: Any) -> OfflineData:
    asked: dict[str, Any] = {"batch_size": 6, "seed": 4} | changes
    own = {name: asked.pop(name) for name in changes.keys() & LearnConfig.model_fields.keys()}
    return OfflineData(index=index, learn=LearnConfig(**{"epochs": 2, "window": 3} | own), **asked)


def lone_games(number: int, turns: int = 4) -> list[GameResult]:
    """Games in which each of two trained seats has two turns, with one group per seat."""
    return [game(("main@5", "main@5"), game_id=each, turns=turns) for each in range(number)]


def test_held_out_games_are_never_trained_on(tmp_path: Path) -> None:
    index = index_of([write(tmp_path / "train-000000.jsonl", lone_games(200))], share=0.3)
    data = data_of(index)
    held_out = [each for batch in data.held_out() for group in batch.groups for each in group]
    trained = [each for batch in data.batches(0) for group in batch.groups for each in group]
    assert 90 < len(held_out) < 150 and len(held_out) % 2 == 0  # both seats of a game
    assert not {each.game_id for each in held_out} & {each.game_id for each in trained}
    again = [batch for batch in data.held_out()]
    assert [each for batch in again for group in batch.groups for each in group] == held_out


def places(batch: Any) -> list[tuple[int, int]]:
    return [(each.game_id, each.seat) for group in batch.groups for each in group]


def test_each_epoch_has_its_own_order(tmp_path: Path) -> None:
    index = index_of([write(tmp_path / "train-000000.jsonl", lone_games(10))])
    data = data_of(index)  # 20 groups of 2 samples, 3 per batch: 2 groups remain
    batches = list(data.batches(0))
    assert data.ends == [6, 12] and len(batches) == data.updates == 12
    assert [batch.version for batch in batches] == list(range(12))
    assert all(batch.num_samples == 6 and batch.recorded for batch in batches)
    epochs = [[place for b in part for place in places(b)] for part in (batches[:6], batches[6:])]
    assert all(len(set(epoch)) == 18 for epoch in epochs) and epochs[0] != epochs[1]
    for version in (0, 4, 6, 11, 12):
        assert list(data.batches(version)) == batches[version:]
    assert list(data_of(index, window=50).batches(0)) == batches
    assert list(data_of(index, seed=5).batches(0)) != batches
    assert [data.epoch(version) for version in (3, 6, 9, 12)] == [0.5, 1.0, 1.5, 2.0]


def test_too_few_games_form_one_batch(tmp_path: Path) -> None:
    index = index_of([write(tmp_path / "train-000000.jsonl", lone_games(2))])
    (batch,) = data_of(index, batch_size=100, epochs=1).batches(0)
    assert sorted(places(batch)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_held_out_loss_is_due_at_epoch_ends_or_interval(tmp_path: Path) -> None:
    games = lone_games(40)
    index = index_of([write(tmp_path / "train-000000.jsonl", games)], share=0.3)
    data, often = data_of(index), data_of(index, held_out_every=4)
    due = [v for v in range(data.updates + 1) if data.measures(v, is_last=False)]
    assert due == [0, *data.ends]
    assert [v for v in range(9) if often.measures(v, is_last=v == 7)] == [0, 4, 7, 8]
    nothing = data_of(index_of([write(tmp_path / "train-000001.jsonl", games)]))
    assert not nothing.measures(0, is_last=True)


def test_packed_samples_keep_sampling_version(tmp_path: Path) -> None:
    index = index_of([write(tmp_path / "train-000000.jsonl", lone_games(3))])
    (batch,) = data_of(index, epochs=1, batch_size=12).batches(0)
    packed: list[PackedTrajectory] = [each for group in batch.groups for each in group]
    assert {each.version for each in packed} == {5}
    opened = batch.opened()
    assert {opened.staleness(sample) for sample in opened.samples} == {None}
    assert PlayerId.parse("main@5").version == opened.samples[0].version
