"""Openings: first moves by another player, shared by a group, recorded, and never trained on."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import textarena
from msgspec.structs import replace

from tests.helpers.builders import game, packed, sampled, turn
from tests.helpers.collector import Scripted, collector, specs
from tests.helpers.collector import played as results_of
from tests.helpers.groups import branching, drawn_games, drawn_groups
from tests.helpers.loop import Begin, lines, played
from tests.helpers.mistakes import line_of, refused
from tests.helpers.models import tiny_tokenizer
from tests.helpers.records import game_record
from tests.helpers.rows import every_row
from tests.helpers.tracking import make_config, make_tracker, take_in
from unstable.buffers.buffer import Buffer
from unstable.commands.prepare import check
from unstable.config import RewardConfig, RunConfig, parse
from unstable.datasets.sources import recorded_examples
from unstable.engines.base import SamplingRequest
from unstable.league.evaluation import evaluation_games
from unstable.league.ratings import Registry
from unstable.league.schedule import Schedule
from unstable.loop.train import train
from unstable.rewards.terms import Rewards
from unstable.types import Completion, GameResult, GameSpec, PlayerId, SeatSpec

RANDOM, START = PlayerId("random"), PlayerId.policy(0)
REWARDS = Rewards([RewardConfig(), RewardConfig(term="format", weight=0.5)])


class Talk(textarena.Env):
    """Five turns of free text; the parity of the last text's length decides the winner."""

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = textarena.TwoPlayerState(num_players=num_players, seed=seed)
        self.state.reset(game_state={}, player_prompt_function=self._prompt)
        self.said = 0

    def _prompt(self, player_id: int, game_state: dict[str, Any]) -> str:
        return f"You are Player {player_id}. Say anything."

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        self.state.add_observation(
            from_id=self.state.current_player_id,
            message=action,
            observation_type=textarena.ObservationType.PLAYER_ACTION,
        )
        self.said += 1
        if self.said == 5:
            self.state.set_winner(player_id=len(action) % 2, reason="said enough")
        return self.state.step()


def config(**openings: Any) -> RunConfig:
    return parse({"seed": 3, "openings": {"share": 0.5} | openings})


def opened(result: GameResult, opening: int) -> GameResult:
    """Return a copy of the game whose first `opening` moves are by version 0."""
    opener = SeatSpec(player=START, temperature=1.0)
    return replace(result, spec=replace(result.spec, opening=opening, opener=opener))


def with_opening(made: list[GameSpec], opening: int, by: str, **changes: Any) -> list[GameSpec]:
    opener = SeatSpec(player=PlayerId.parse(by), temperature=1.0)
    return [replace(spec, opening=opening, opener=opener, **changes) for spec in made]


# Drawing


def test_opening_shares_and_lengths_match_config() -> None:
    drawn = drawn_games(Schedule(config(share=0.3, moves=[2, 4], by="random")), 6000)
    opener = SeatSpec(player=RANDOM, temperature=1.0)
    assert {spec.opener for spec in drawn if spec.opening} == {opener}
    assert {spec.opener for spec in drawn if not spec.opening} == {None}
    lengths = Counter(spec.opening for spec in drawn)
    assert set(lengths) == {0, 2, 3, 4}
    assert abs(lengths[0] / 6000 - 0.7) < 0.03
    for length in (2, 3, 4):  # 1800 openings: three standard deviations are 0.033
        assert abs(lengths[length] / (6000 - lengths[0]) - 1 / 3) < 0.035


@every_row("by, player", ("start", START), ("base", PlayerId("base")), ("random", RANDOM))
def test_opener_uses_training_temperature(by: str, player: PlayerId) -> None:
    made = parse({"openings": {"share": 1, "by": by}, "sampling": {"temperature": 0.7}})
    for spec in drawn_games(Schedule(made), 20):
        assert spec.opener == SeatSpec(player=player, temperature=0.7)
        assert 1 <= spec.opening <= 4


def test_openings_are_seeded_and_change_no_other_draws() -> None:
    drawn = drawn_games(Schedule(config()), 200)
    assert drawn == drawn_games(Schedule(config()), 200)
    for spec, plain in zip(drawn, drawn_games(Schedule(config(share=0)), 200), strict=True):
        assert plain.opening == 0
        assert replace(spec, opening=0, opener=None) == plain


@every_row("by", "game", "branch")
def test_a_group_shares_its_opening(by: str) -> None:
    groups = {"size": 4, "by": by}
    drawn = drawn_groups(Schedule(parse({"openings": {"share": 0.5}, "groups": groups})), 200)
    assert all(len({(spec.opening, spec.opener) for spec in group}) == 1 for group in drawn)
    assert {group[0].opening for group in drawn} == {0, 1, 2, 3, 4}


def test_evaluation_has_no_openings() -> None:
    games = evaluation_games(config(share=1), version=3)
    assert games
    assert all(spec.opening == 0 and spec.opener is None for spec in games)


@every_row(
    "openings, message",
    (
        {"moves": [4, 1]},
        "openings.moves = [4, 1]: minimum above maximum; set openings.moves to [1, 4]",
    ),
    ({"moves": [0, 1]}, "openings.moves.0 = 0: input should be greater than 0"),
    ({"share": 1.5}, "openings.share = 1.5: input should be less than or equal to 1"),
)
def test_invalid_openings_are_rejected(openings: dict[str, Any], message: str) -> None:
    assert line_of(parse, {"openings": openings}) == message


def test_unplayable_openings_are_rejected_before_loading_a_model() -> None:
    games = [{"env": "TicTacToe-v0"}, {"env": f"{__name__}:Talk", "name": "Talk", "max_turns": 4}]
    model = {"name": "/nowhere"}
    made = {"games": games, "model": model, "opponents": {"fixed": [], "draw": {"fixed": 0}}}
    made |= {"eval": {"every": 0}}
    assert line_of(check, parse(made | {"openings": {"share": 0.5, "by": "random"}})) == (
        "openings.by = 'random' in Talk: the game does not list its legal moves; "
        "set games.1.legal_moves to module:function(env), or openings.by to start"
    )
    assert line_of(check, parse(made | {"openings": {"share": 0.5}})) == (
        "openings.moves = [1, 4]: games.1.max_turns = 4 leaves no turn after the opening; "
        "shorten openings.moves"
    )
    refused("/nowhere", check, parse(made | {"openings": {"by": "random"}}))  # without a share


# Playing


async def test_opener_plays_first_moves_untrained() -> None:
    engine = Scripted()
    made = with_opening(specs(30, ("main@2", "main@1")), 3, "main@0")
    results = await results_of(collector(engine).play(made))
    for result in results:
        assert isinstance(result, GameResult)
        first, rest = result.turns[:3], result.turns[3:]
        assert [t.player for t in first] == [START] * 3
        assert [t.answer.sampled.version for t in first if t.answer.sampled] == [0] * 3
        seats = [PlayerId.policy(2), PlayerId.policy(1)]
        assert [t.player for t in rest] == [seats[t.seat] for t in rest]
        trajectories = REWARDS.trajectories(result)
        trained = {(each.seat, s.turn): s for each in trajectories for s in each.samples}
        assert list(trained) == sorted((t.seat, t.index) for t in rest)
        assert len(trained) == result.num_trained == len(rest)
        assert all(sample.reward == 0.5 for sample in trained.values())
        for each in trajectories:
            assert each.rewards["outcome"].raw == result.outcomes[each.seat]
    assert {"main@0", "main@1", "main@2"} == set(engine.asked)
    assert any(result.num_trained for result in results if isinstance(result, GameResult))


async def test_games_of_one_seed_share_opening_then_differ() -> None:
    made = with_opening(specs(12), 3, "base", seed=5)
    results = await results_of(collector(Scripted(lambda: 2)).play(made))
    games = [[turn.answer.action for turn in result.turns] for result in results]
    assert len({tuple(actions[:3]) for actions in games}) == 1
    assert len({tuple(actions) for actions in games}) > 1
    others = await results_of(collector(Scripted()).play(with_opening(specs(12), 3, "base")))
    assert len({tuple(t.answer.action for t in result.turns[:3]) for result in others}) > 1


class Stubborn(Scripted):
    """An engine that answers every request with [4]."""

    async def generate(self, request: SamplingRequest) -> Completion:
        self.asked.append(request.adapter)
        ids = tiny_tokenizer().encode("[4]", add_special_tokens=False)
        return Completion(
            token_ids=ids,
            logprobs=[-1.0] * len(ids),
            finish_reason="length",
            adapter=request.adapter,
        )


async def test_illegal_opener_moves_are_replaced_by_random_ones() -> None:
    made = with_opening(specs(20, ("random", "random"), "TicTacToe-v0"), 4, "base")
    results = await results_of(collector(engine := Stubborn()).play(made))
    for result in results:
        assert result.forfeit is None
        taken = [t.index for t in result.turns if t.answer.action == "[4]"]
        expected = [PlayerId("base" if t.index == taken[0] else "random") for t in result.turns[:4]]
        assert [t.player for t in result.turns[:4]] == expected
        assert taken[0] == 0
        assert [t.answer.sampled is None for t in result.turns[:4]] == [False, True, True, True]
    assert len({tuple(t.answer.action for t in result.turns[:4]) for result in results}) > 10
    assert engine.asked == [None] * 80


async def test_opening_forfeit_without_legal_moves_is_not_counted(tmp_path: Path) -> None:
    made = with_opening(specs(1), 2, "main@0")
    (result,) = await results_of(collector(Stubborn()).play(made))  # legal moves: 1 to 3
    assert isinstance(result, GameResult)
    assert (result.forfeit, len(result.turns)) == (0, 1)
    assert_not_counted(result, tmp_path)


async def test_forks_come_after_the_opening() -> None:
    made = with_opening(branching(20, 3, "TicTacToe-v0"), 2, "random")
    forked = collector(Scripted(), groups={"size": 3, "by": "branch"})
    forks = set()
    for result in await results_of(forked.play(made)):
        assert isinstance(result, GameResult)
        samples = [s.turn for each in REWARDS.trajectories(result) for s in each.samples]
        assert len(samples) == result.num_trained
        assert all(place >= branch.fork for branch in result.branches for place in samples)
        for branch in result.branches:
            assert branch.spec.opening == 2
            assert [t.answer for t in branch.turns[:2]] == [t.answer for t in result.turns[:2]]
        forks |= {branch.fork for branch in result.branches}
    assert min(forks) == 2


# Records and metrics


def assert_not_counted(result: GameResult, folder: Path) -> None:
    """A game that ended in its opening is a game, and nothing else."""
    assert result.ended_in_opening
    assert REWARDS.trajectories(result) == []
    assert result.num_trained == 0
    tracker = make_tracker(folder, make_config(games=[{"env": result.spec.env}]))
    take_in(tracker, result, [], version=0)
    assert (tracker.view.games, tracker.view.recent) == (1, ())
    assert tracker.view.forfeits() is None
    tracker.end_update(0)
    (row,) = lines(folder / "metrics.jsonl")
    assert row["collect/games"] == 1
    assert row["collect/turns"] == len(result.turns)
    for name in ("trained_turns", "forfeits", "draws", "versus/self/games"):
        assert row[f"collect/{name}"] == 0
    assert row[f"collect/outcome/{result.spec.env}/0"] is None
    assert row["collect/completion_length"] is None


def test_game_that_ends_in_its_opening_is_not_counted(tmp_path: Path) -> None:
    assert_not_counted(opened(game(("main@0", "main@0"), turns=3), 3), tmp_path)
    after = opened(game(("main@0", "main@0"), turns=4), 3)
    assert not after.ended_in_opening
    assert after.num_trained == 1


def test_member_without_own_turns_counts_as_arrived() -> None:
    buffer = Buffer(capacity=100, batch_size=1, max_staleness=4)
    for game_id, opening in ((0, 3), (1, 4), (2, 2)):  # of four alternating turns
        mirror = game(("main@0", "main@0"), game_id=game_id, group_ids=[7, 8], group_size=3)
        result = opened(mirror, opening)
        buffer.add(result.spec, packed(REWARDS.trajectories(result)))
    assert buffer.stats()["waiting"] == 0
    batch = buffer.draw(version=0)
    assert batch is not None
    (first,) = batch.opened().groups
    assert [(each.game_id, len(each.samples)) for each in first.trajectories] == [(2, 1)]
    batch = buffer.draw(version=0)
    assert batch is not None
    (second,) = batch.opened().groups
    assert [(each.game_id, each.samples[0].turn) for each in second.trajectories] == [
        (0, 3),
        (2, 3),
    ]


@every_row("max_tied", None, 10)
def test_group_that_ends_in_its_opening_is_discarded(max_tied: int | None) -> None:
    buffer = Buffer(capacity=100, batch_size=1, max_staleness=4, max_tied=max_tied)
    for game_id in range(2):
        result = opened(game(game_id=game_id, group_ids=[7, 8], group_size=2, turns=2), 2)
        buffer.add(result.spec, packed(REWARDS.trajectories(result)))
    assert set(buffer.stats().values()) == {0}
    assert buffer.draw(version=0) is None


def test_play_metrics_exclude_the_opening(tmp_path: Path) -> None:
    result = opened(game(("main@1", "random"), turns=6), 3)
    result.turns[0] = turn(0, 0, "main@0", invalid=True, action="[9]")
    tracker = make_tracker(tmp_path)
    take_in(tracker, result, REWARDS.trajectories(result), version=1)
    assert tracker.view.legal_moves() == 1.0
    tracker.end_update(1)
    (row,) = lines(tmp_path / "metrics.jsonl")
    assert row["collect/turns"] == 6
    assert row["collect/trained_turns"] == 1  # index 4; 0 and 2 are the opener's
    assert row["collect/invalid_share"] == 0
    assert row["collect/action_entropy/TicTacToe-v0"] == 0
    assert row["collect/versus/random/win"] == 1
    assert row["collect/outcome/TicTacToe-v0/0"] == 1


def test_games_with_an_opening_are_not_rated() -> None:
    registry = Registry([RANDOM], anchor=RANDOM, pool_size=2)
    registry.add(PlayerId.policy(0))
    before = registry.ratings(), registry.state().draws
    registry.record([opened(game(turns=4), 1)])
    assert (registry.ratings(), registry.state().draws) == before
    registry.record([game(turns=4)])
    assert registry.ratings() != before[0]


def test_supervised_examples_exclude_openings(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    won = game(("main@0", "random"), turns=5)
    for each in won.turns[::2]:
        ids = tokenizer.encode(f"[{each.index}]", add_special_tokens=False)
        tokens = sampled(prompt_ids=[each.index], token_ids=ids, logprobs=[-0.5] * len(ids))
        each.answer = replace(each.answer, sampled=tokens, text=f"[{each.index}]")
    for opening, answers in ((0, ["[0]", "[2]", "[4]"]), (2, ["[2]", "[4]"]), (3, ["[4]"])):
        path = tmp_path / f"train-{opening:06d}.jsonl"
        path.write_text(f"{json.dumps(game_record(opened(won, opening), [], 0, 0))}\n")
        assert [e.answer for e in recorded_examples([path], tokenizer)] == answers


# The whole loop


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_version_0_opens_games_throughout_the_run(begin: Begin, mode: str) -> None:
    context = begin(
        games=[{"env": f"{__name__}:Talk", "name": "Talk", "parser": "raw"}],
        opponents={"draw": {"self": 1, "past": 1, "fixed": 0}, "fixed": [], "pool_size": 1},
        learner={"algorithm": {"name": "grpo"}, "batch_size": 16, "micro_batch_size": 8},
        groups={"size": 2},
        openings={"share": 0.6, "moves": [1, 3]},
        loop={"mode": mode, "steps": 5},
        actors={"games_in_flight": 4},
        eval={"every": 5, "games": 2, "opponents": ["base"]},
    )
    assert await train(context) == "all updates made"
    assert 0 in context.folder.versions()
    assert mode == "async" or 1 not in context.folder.versions()  # unfinished games may name it
    games = {record["game"]: record for record in played(context.folder)}
    assert {record["opening"] for record in games.values()} == {0, 1, 2, 3}
    late = [r for r in games.values() if r["version"] >= 3 and r["opening"]]
    assert late
    for record in late:
        first = record["turns"][: record["opening"]]
        assert {t["player"] for t in first} == {"main@0"} == {record["opener"]["player"]}
        assert {t["sampled"]["version"] for t in first} == {0}
    for record in games.values():
        mate = games.get(record["game"] + 1)
        if record["member"] == 0 and mate is not None:
            turns = zip(record["turns"][: record["opening"]], mate["turns"], strict=False)
            assert all(one["text"] == other["text"] for one, other in turns)
    samples = [s for update in range(1, 6) for s in lines(context.folder.samples(update))]
    assert samples
    assert all(s["turn"] >= games[s["game"]]["opening"] for s in samples)
    assert all(record["opening"] == 0 for record in played(context.folder, "eval"))
