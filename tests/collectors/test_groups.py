"""Grouped play: groups are drawn, played, waited for, dropped and trained on whole."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.helpers.builders import game, packed
from tests.helpers.collector import Scripted, collector, specs
from tests.helpers.collector import played as results_of
from tests.helpers.groups import branching, drawn_groups
from tests.helpers.loop import Begin, lines, make_context, played
from tests.helpers.mistakes import refused
from tests.helpers.rows import every_row
from unstable.buffers.buffer import Buffer
from unstable.collectors.branches import Forks, play_branches
from unstable.collectors.play import turn_seed
from unstable.config import ConfigError, RewardConfig, RunConfig, parse
from unstable.engines.base import EngineDiedError, SamplingRequest
from unstable.league.schedule import Schedule
from unstable.loop.train import train
from unstable.rewards.terms import Rewards
from unstable.types import Answer, GameFailure, GameResult, GameSpec, PlayerId, SeatSpec, Turn

GRPO = {"algorithm": {"name": "grpo"}, "batch_size": 16, "micro_batch_size": 8}
REWARDS = Rewards([RewardConfig()])


def config(by: str = "game", size: int = 4, **changes: Any) -> RunConfig:
    data = {"learner": {"algorithm": {"name": "grpo"}}, "groups": {"size": size, "by": by}}
    return parse(data | changes)


# Drawing


def test_group_members_share_seed_and_seats() -> None:
    kinds = set()
    for group in drawn_groups(Schedule(config()), 200):
        first = group[0]
        assert [spec.member for spec in group] == [0, 1, 2, 3]
        assert [spec.game_id for spec in group] == list(range(first.game_id, first.game_id + 4))
        for spec in group:
            assert (spec.env, spec.seed, spec.seats) == (first.env, first.seed, first.seats)
        trained = [seat for seat in first.seats if seat.trained]
        assert all(seat.group_size == 4 for seat in trained)
        assert len({seat.group_id for seat in trained}) == len(trained)  # one group per seat
        kinds.add(len(trained))
    assert kinds == {1, 2}


def test_groups_never_share_games_seeds_or_ids() -> None:
    groups = drawn_groups(Schedule(config()), 100)
    assert len({group[0].seed for group in groups}) == 100
    assert [spec.game_id for group in groups for spec in group] == list(range(400))
    ids = [seat.group_id for group in groups for seat in group[0].seats if seat.trained]
    assert len(set(ids)) == len(ids)


def test_branch_group_is_one_game_with_one_trained_seat() -> None:
    groups = drawn_groups(Schedule(config("branch")), 100)
    assert all(len(group) == 1 and group[0].branches == 4 for group in groups)
    assert [group[0].game_id for group in groups] == list(range(0, 500, 5))
    mirrors = [g for (g,) in groups if {seat.player for seat in g.seats} == {PlayerId.policy(2)}]
    assert mirrors
    assert all(sum(seat.trained for seat in spec.seats) == 1 for (spec,) in groups)
    assert len({[seat.trained for seat in spec.seats].index(True) for spec in mirrors}) == 2


@every_row("groups, field", ({"size": 1}, "groups.size"), ({"size": 129}, "groups.size"))
def test_invalid_group_sizes_are_rejected(groups: dict, field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field} = .*(set|lower|raise) groups.size"):
        parse({"learner": {"algorithm": {"name": "rloo"}}, "groups": groups})


def test_grouped_algorithms_reject_policy_refresh_by_turn() -> None:
    with pytest.raises(ConfigError, match=r"^actors.policy_refresh = 'turn'.*set .* to game"):
        config(actors={"policy_refresh": "turn"})


def test_drop_tied_requires_groups() -> None:
    refused(r"^groups.drop_tied = true", parse, {"groups": {"drop_tied": True}})


# The buffer


def add(buffer: Buffer, game_id: int, outcome: float, turns: int = 4, size: int = 2) -> None:
    result = game(
        outcomes=(outcome, -outcome),
        game_id=game_id,
        group_ids=[7, 8],
        group_size=size,
        turns=turns,
    )
    buffer.add(result.spec, packed(REWARDS.trajectories(result)))


def test_group_with_failed_game_is_dropped_when_complete() -> None:
    buffer = Buffer(capacity=100, batch_size=1, max_staleness=4)
    add(buffer, 0, outcome=1.0, size=3)
    buffer.lose(game(game_id=1, group_ids=[7, 8], group_size=3).spec)
    assert buffer.stats()["waiting"] == 2
    add(buffer, 2, outcome=-1.0, size=3)
    assert buffer.draw(version=0) is None
    assert buffer.stats() | {"dropped_failed": 4, "waiting": 0, "size": 0} == buffer.stats()


def test_only_tied_groups_are_dropped_and_counted() -> None:
    buffer = Buffer(capacity=100, batch_size=1, max_staleness=4, max_tied=100)
    for game_id in range(2):
        add(buffer, game_id, outcome=1.0)
    assert (buffer.size, buffer.dropped.tied) == (0, 4)
    for game_id, outcome in enumerate((1.0, -1.0)):
        add(buffer, game_id, outcome)
    assert (buffer.size, buffer.dropped.tied) == (4, 4)


def test_ties_do_not_depend_on_number_of_turns() -> None:
    """Adding 0.1 three times differs from 0.3 by rounding."""
    shaped = Rewards([RewardConfig(), RewardConfig(term="format", weight=0.1)])
    buffer = Buffer(capacity=100, batch_size=1, max_staleness=4, max_tied=100)
    for game_id, turns in enumerate((2, 6, 14)):
        result = game(
            outcomes=(0.0, 0.0), game_id=game_id, group_ids=[7, 8], group_size=3, turns=turns
        )
        buffer.add(result.spec, packed(shaped.trajectories(result)))
    assert (buffer.size, buffer.dropped.tied) == (0, 11)


def test_max_tied_raises_and_a_draw_resets_it() -> None:
    buffer = Buffer(capacity=100, batch_size=1, max_staleness=4, max_tied=4)
    add(buffer, 0, outcome=1.0)
    add(buffer, 1, outcome=1.0)
    add(buffer, 0, outcome=1.0)
    add(buffer, 1, outcome=0.0)
    assert buffer.draw(version=0) is not None
    add(buffer, 0, outcome=1.0)
    add(buffer, 1, outcome=1.0)
    add(buffer, 0, outcome=1.0)
    with pytest.raises(RuntimeError, match=r"^groups.drop_tied = true: dropped 8 samples .*size"):
        add(buffer, 1, outcome=1.0)


# The collector


def grouped(count: int, size: int) -> list[GameSpec]:
    return [replace(spec, member=spec.game_id % size) for spec in specs(count)]


@every_row("enough", 1, 7, 20)
@every_row("size", 2, 3, 5)
@every_row("in_flight", 1, 4)
async def test_enough_never_splits_a_group(enough: int, size: int, in_flight: int) -> None:
    play = collector(Scripted(), in_flight).play(grouped(20, size), enough)
    ids = sorted(result.spec.game_id for result in await results_of(play))
    assert ids == list(range(len(ids)))
    assert len(ids) % size == 0
    assert len(ids) < 20


@pytest.mark.parametrize("fork", ["uniform", "uncertain"])
async def test_branches_share_history_and_differ_after_fork(fork: str) -> None:
    engine = collector(Scripted(), 4, groups={"fork": fork, "size": 3, "by": "branch"})
    results = await results_of(engine.play(branching(20, 3, "TicTacToe-v0")))
    assert len(results) == 20
    places, differ = set(), 0
    for result in results:
        assert isinstance(result, GameResult)
        if not result.branches:  # it ended before the fork's turn
            continue
        first = result.spec.game_id
        assert [game.spec.game_id for game in result.games] == list(range(first, first + 4))
        (place,) = {branch.fork for branch in result.branches}
        assert result.turns[place].seat == 0  # the trained seat
        for branch in result.branches:
            before = [(t.answer.action, t.answer.observation) for t in result.turns[:place]]
            shared = branch.turns[:place]
            assert [(turn.answer.action, turn.answer.observation) for turn in shared] == before
            assert branch.turns[place].answer.observation == result.turns[place].answer.observation
            assert len(branch.own_turns) == len(branch.turns) - place
        places.add(place)
        differ += (
            len({tuple(turn.answer.action for turn in game.turns) for game in result.branches}) > 1
        )
    assert len(places) > 1
    assert differ > 10


class Adding:
    """Plays by the sum of its own draws."""

    def __init__(self) -> None:
        self.sum = 0

    def __call__(self, observation: str, rng: random.Random) -> str:
        self.sum += rng.randrange(3)
        return f"[{1 + self.sum % 3}]"


@pytest.mark.parametrize(("opening", "isolated"), [(0, False), (1, False), (1, True)])
async def test_opponents_of_branches_remember_shared_turns(opening: int, isolated: bool) -> None:
    bot = {"kind": "python", "target": f"{__name__}:Adding", "name": "bot"}
    branched = {"groups": {"size": 3, "by": "branch"}, "opponents": {"fixed": [bot]}}
    playing, late = collector(Scripted(), 4, **branched), 0
    if isolated:
        playing.play_isolated("count")
    opener = SeatSpec(player=PlayerId("base"), temperature=1.0) if opening else None
    games = [
        replace(
            each,
            seats=(each.seats[0], replace(each.seats[1], player=PlayerId("bot"))),
            opening=opening,
            opener=opener,
        )
        for each in branching(12, 3)
    ]
    try:
        results = await results_of(playing.play(games))
    finally:
        await playing.close()
    for result in results:
        assert isinstance(result, GameResult)
        for each in result.games:
            total = 0
            for turn in each.turns[opening:]:
                if turn.seat == 1:
                    spec = result.spec if turn.index < each.fork else each.spec
                    seed = turn_seed(playing._config.seed, spec, 1, turn.index)
                    total += random.Random(seed).randrange(3)
                    assert turn.answer.action == f"[{1 + total % 3}]"
            late += each.fork > 1
    assert late > 3


async def test_branches_share_env_randomness() -> None:
    """Numbers that the env draws during play are equal in all branches after equal actions."""
    engine = collector(Scripted(), 4, groups={"size": 4, "by": "branch"})
    compared = 0
    async for result in engine.play(branching(20, 4)):
        assert isinstance(result, GameResult)
        for branch in result.branches:
            for ours, theirs in zip(result.turns, branch.turns, strict=False):
                assert ours.answer.observation == theirs.answer.observation
                compared += ours.index > branch.fork
                if ours.answer.action != theirs.answer.action:
                    break
    assert compared > 0


async def test_only_branch_turns_after_fork_are_trained() -> None:
    engine = collector(Scripted(), 4, groups={"size": 3, "by": "branch"})
    async for result in engine.play(branching(10, 3)):
        assert isinstance(result, GameResult)
        trajectories = REWARDS.trajectories(result)
        assert [each.game_id for each in trajectories] == [g.spec.game_id for g in result.branches]
        samples = [sample for each in trajectories for sample in each.samples]
        assert min(sample.turn for sample in samples) == result.branches[0].fork
        assert len(samples) == result.num_trained
        buffer = Buffer(capacity=100, batch_size=1, max_staleness=4)
        buffer.add(result.spec, packed(trajectories))
        assert buffer.size == len(samples)  # the group is whole


async def test_failing_branch_fails_its_group() -> None:
    engine = collector(Scripted(), 4, groups={"size": 3, "by": "branch"})
    faulty = specs(10, ("main@0", "bot"))
    group = [replace(spec, game_id=4 * spec.game_id, branches=3) for spec in faulty]
    results = await results_of(engine.play(group))
    assert len(results) == 10
    failures = [result for result in results if isinstance(result, GameFailure)]
    assert failures
    assert all("out of patience" in failure.error for failure in failures)


async def test_engine_death_in_branch_ends_all_play() -> None:
    class Mortal(Scripted):
        async def generate(self, request: SamplingRequest) -> Any:
            if len(self.asked) == 10:  # the first game has at most 5 turns
                raise EngineDiedError("gone")
            return await super().generate(request)

    engine = collector(Mortal(), 16, groups={"size": 16, "by": "branch"})
    with pytest.raises(EngineDiedError, match="gone"):
        await results_of(engine.play(branching(1, 16, "TicTacToe-v0")))


def test_forks_prefer_turns_with_outcome_spread() -> None:
    forks = Forks("uncertain")
    chance = random.Random(0)
    chosen = []
    for _ in range(400):
        turn = forks.choose("env", 0, chance)
        chosen.append(turn)
        forks.count("env", 0, 4)
        forks.learn("env", 0, turn, [1.0, -1.0] if turn == 2 else [1.0, 1.0])
    counts = [chosen.count(turn) for turn in range(4)]
    assert counts[2] > 200
    assert min(counts) >= 5
    again = Forks("uncertain")
    again.restore(forks.state())
    assert again.state() == forks.state()
    draws = [each.choose("env", 0, random.Random(9)) for each in (forks, again)]
    assert draws[0] == draws[1]


@every_row("rule", "uniform", "uncertain")
async def test_fork_rate_does_not_depend_on_later_turns(rule: str) -> None:
    """Half of the deals give the seat one turn, the other half three."""
    forks, forked, turns = Forks(rule), Counter[tuple[int, int]](), {0: 1, 1: 3}

    async def play(
        spec: GameSpec, shared: Sequence[Turn] = (), first: Answer | None = None
    ) -> GameResult:
        if not spec.branches:
            forked[spec.seed, len(shared) // 2] += 1
        return replace(game(turns=2 * turns[spec.seed]), spec=spec)

    for number in range(3000):
        spec = game(game_id=3 * number).spec
        await play_branches(replace(spec, seed=number % 2, branches=2), play, 7, forks)
    assert forked[0, 0] == pytest.approx(forked[1, 0], rel=0.1)
    assert min(forked[1, 1], forked[1, 2]) > 300 and set(forked) == {(0, 0), (1, 0), (1, 1), (1, 2)}


# The whole loop


def groups_trained(context: Any) -> dict[tuple[int, int], list[dict[str, Any]]]:
    groups: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for update in range(1, context.config.loop.steps + 1):
        for sample in lines(context.folder.samples(update)):
            groups.setdefault((update, sample["group"]), []).append(sample)
    return groups


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("by", ["game", "branch"])
async def test_batches_contain_whole_groups(begin: Begin, by: str, mode: str) -> None:
    context = begin(
        learner=GRPO,
        groups={"size": 4, "by": by},
        loop={"mode": mode, "steps": 2},
        eval={"every": 0},
    )
    assert await train(context) == "all updates made"
    on_file = {record["game"]: record for record in played(context.folder)}
    groups = groups_trained(context)
    assert groups
    for samples in groups.values():
        games = [on_file[game] for game in {sample["game"] for sample in samples}]
        assert len({record["seed"] for record in games}) == 1
        assert len({tuple(record["players"]) for record in games}) == 1
        assert len({sample["sampled"]["version"] for sample in samples}) == 1
        assert len(games) <= 4
        assert all(record["member"] > 0 for record in games if by == "branch")
        turns = [
            (record["game"], turn["index"])
            for record in games
            for turn in record["turns"][record["fork"] :]
            if turn["seat"] == samples[0]["seat"]
        ]
        assert sorted(turns) == sorted((sample["game"], sample["turn"]) for sample in samples)
    assert max(len({s["game"] for s in samples}) for samples in groups.values()) == 4
    if mode == "async":  # games that end after the last update are recorded but unrated
        return
    rated = sum(row.games for row in context.registry.ratings())
    trunks = [record for record in on_file.values() if by == "game" or record["member"] == 0]
    players = [set(record["players"]) for record in trunks]
    assert rated == sum(len(each) for each in players if len(each) > 1)  # self-play is unrated


async def test_branch_groups_are_reproducible(tiny_folder: Path, tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        context = make_context(
            tiny_folder,
            tmp_path / name,
            learner=GRPO,
            groups={"size": 4, "by": "branch", "fork": "uncertain"},
            loop={"mode": "sync", "steps": 2},
            eval={"every": 0},
        )
        await train(context)
        runs.append(json.dumps(played(context.folder)))
    assert runs[0] == runs[1]


async def test_run_with_only_tied_groups_stops_with_reason(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unstable.loop.context.MAX_REFILLS", 1)
    context = begin(
        learner=GRPO,
        groups={"size": 2, "drop_tied": True},
        opponents={"draw": {"self": 0, "past": 0, "fixed": 1}},
        eval={"every": 0},
    )
    with pytest.raises(RuntimeError, match="groups.drop_tied"):  # every game is a forfeit
        await train(context)
