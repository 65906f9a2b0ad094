"""Run files are read back unchanged, and each file is either complete or absent."""

import json
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.helpers.builders import completion, game, sampled, spec, turn
from tests.helpers.loop import Begin, publish_start
from tests.helpers.mistakes import refused
from tests.helpers.records import as_played, game_record
from tests.helpers.rows import every_row
from tests.helpers.tracking import lines, make_game, make_trajectories, take_in
from unstable.config import ConfigError
from unstable.records import files
from unstable.records.files import (
    LineFile,
    check_target,
    json_line,
    new_folder,
    read_lines,
    whole_size,
    write_lines,
    write_whole,
)
from unstable.records.folder import RunFolder
from unstable.records.games import answer_tokens, game_body, game_line, read_game, sample_lines
from unstable.records.reading import Skipped, parse_record, read_records, read_rows
from unstable.records.scan import scan_games
from unstable.records.shapes import SampleRecord
from unstable.rewards.terms import Rewards
from unstable.types import (
    Answer,
    Batch,
    Completion,
    GameResult,
    GameSpec,
    Group,
    PlayerId,
    Purpose,
    RecordedGame,
    Reward,
    Sample,
    SampledTokens,
    SeatSpec,
    Segment,
    Trajectory,
    Turn,
)

# Games

NAMES = ["random", "base", "openai:some/model", "checkpoint:warm@2", "policy@best", "an Ä @ 3 ✓"]
PURPOSES: list[Purpose] = ["train", "eval"]
SEGMENT = {"kind": "sampled", "finish_reason": "stop", "adapter": "main@0"}
INTEGERS = st.integers(0, 2**40)
NUMBERS = st.floats(-1e99, 1e99)
LOGPROBS = st.floats(-1e99, 0)
PLAYERS = st.integers(0, 99_999).map(PlayerId.policy) | st.sampled_from(NAMES).map(PlayerId)
TOKEN_IDS = st.integers(0, 2**31 - 1)
IDS = st.lists(TOKEN_IDS, min_size=1, max_size=3)


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    ids = draw(IDS)
    likeliest = st.lists(st.tuples(TOKEN_IDS, LOGPROBS), max_size=2)
    return Completion(
        token_ids=ids,
        logprobs=[draw(LOGPROBS) for _ in ids],
        finish_reason=draw(st.sampled_from(["stop", "length"])),
        adapter=draw(st.none() | st.sampled_from(NAMES)),
        top_logprobs=draw(st.none() | st.just([draw(likeliest) for _ in ids])),
    )


INSERTED = st.builds(Segment, token_ids=IDS, scored=st.just(False))
SEGMENTS = st.tuples(st.lists(completions() | INSERTED, max_size=2), completions())
TOKENS = st.builds(
    SampledTokens,
    prompt_ids=st.lists(TOKEN_IDS, max_size=3),
    segments=SEGMENTS.map(lambda parts: (*parts[0], parts[1])),
    temperature=NUMBERS,
    version=st.none() | INTEGERS,
    prompt_cut=INTEGERS,
)
SEATS = st.builds(
    SeatSpec,
    player=PLAYERS,
    temperature=NUMBERS,
    group_id=st.none() | INTEGERS,
    group_size=INTEGERS,
)


@st.composite
def games(draw: st.DrawFn) -> GameResult:
    """Any game that was played, of up to three seats."""
    seats = draw(st.lists(SEATS, min_size=1, max_size=3))
    places = st.integers(0, len(seats) - 1)
    turns = [
        Turn(
            seat=(seat := draw(places)),
            index=index,
            answer=Answer(
                player=seats[seat].player,
                observation=draw(st.text(max_size=5)),
                sampled=draw(st.none() | TOKENS),
                text=draw(st.text(max_size=5)),
                action=draw(st.text(max_size=5)),
                formatted=draw(st.booleans()),
                cut_characters=draw(INTEGERS),
                votes=draw(st.none() | INTEGERS),
            ),
            invalid=draw(st.booleans()),
            seconds=draw(NUMBERS),
        )
        for index in range(draw(st.integers(0, 3)))
    ]
    drawn = GameSpec(
        game_id=draw(INTEGERS),
        purpose=draw(st.sampled_from(PURPOSES)),
        env=draw(st.text(max_size=5)),
        seed=draw(INTEGERS),
        seats=tuple(seats),
        member=draw(INTEGERS),
        branches=draw(INTEGERS),
        opening=draw(INTEGERS),
        opener=draw(SEATS),
    )
    return GameResult(
        spec=drawn,
        turns=turns,
        payoffs=[draw(NUMBERS) for _ in seats],
        outcomes=[draw(NUMBERS) for _ in seats],
        forfeit=draw(st.none() | places),
        truncated=draw(st.booleans()),
        reason=draw(st.text(max_size=5)),
        seconds=draw(NUMBERS),
        stakes=draw(st.none() | NUMBERS),
        fork=draw(st.integers(0, len(turns))),
    )


@settings(deadline=None, derandomize=True, max_examples=200)
@given(games(), INTEGERS, st.none() | st.integers(0, 3), st.booleans())
def test_game_round_trip(
    result: GameResult, version: int, actor: int | None, has_format: bool
) -> None:
    line = game_line(game_body(result), version, actor)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    row = json.loads(line)
    assert row.pop("format") == 2
    assert (row["version"], row["actor"]) == (version, actor)
    if not has_format:
        assert as_played(read_game("a line", row)) == result
        line = json.dumps(row).encode()
    assert as_played(parse_record(line, RecordedGame, "a line")) == result


async def test_games_of_real_actor_round_trip(begin: Begin) -> None:
    """Models, a program, forfeits and branches, as a run writes them."""
    context = begin(
        learner={"algorithm": {"name": "grpo"}, "batch_size": 4, "micro_batch_size": 4},
        groups={"by": "branch", "size": 2},
        opponents={"draw": {"self": 1, "past": 0, "fixed": 1}},
        tracking={"top_logprobs": 2},
    )
    await publish_start(context)
    specs = [s for _ in range(12) for s in context.schedule.draw(0, context.current, context.past)]
    played: list[GameResult] = []
    rewards = Rewards(context.config.buffer.rewards)
    async for result in context.actors[0].play(specs):
        assert isinstance(result, GameResult)
        played += map(as_played, result.games)
        trajectories = rewards.trajectories(result)
        take_in(context.tracker, result, trajectories, version=0)
    path = context.folder.games("train", 0)
    assert [as_played(read_game(place, row)) for place, row in read_lines(path)] == played
    turns = [turn for each in played for turn in each.turns]
    assert {turn.answer.sampled is None for turn in turns} == {True, False}
    sampled = [turn.answer.sampled for turn in turns if turn.answer.sampled is not None]
    assert {len(each.segments) for each in sampled} == {1}
    completions = [completion for each in sampled for completion in each.completions]
    assert {len(found) for each in completions for found in each.top_logprobs or ()} == {2}
    assert {turn.player for turn in turns} == {PlayerId.policy(0), PlayerId("random")}
    assert any(each.forfeit is not None for each in played)
    assert any(each.fork for each in played)
    assert {each.spec.branches for each in played} == {0, 2}


def test_segments_of_an_answer_are_concatenated() -> None:
    """Inserted tokens have no log-probability, in files, frames and reports."""
    first = completion(top_logprobs=[[(7, -0.5)], [(8, -0.25)]])
    last = completion(token_ids=[4], logprobs=[-1.0], finish_reason="length")
    tokens = replace(sampled(), segments=(first, Segment(token_ids=[5, 6], scored=False), last))
    played = game(turns=1)
    played.turns = [turn(0, 0, "main@0", sampled=tokens)]
    (found,) = read_game("a line", game_record(played, [], 3, 1)).turns
    assert answer_tokens(found.answer.sampled) == (
        [7, 8, 5, 6, 4],
        [-0.5, -0.25, None, None, -1.0],
        [[(7, -0.5)], [(8, -0.25)], [], [], []],
        "length",
    )
    assert answer_tokens(None) == ([], [], None, None)
    assert found.answer.sampled == tokens
    assert (tokens.scored_ids, tokens.logprobs) == ([7, 8, 4], [-0.5, -0.25, -1.0])


def test_only_trained_turns_contain_rewards() -> None:
    result = make_game(5, turns=3)
    record = game_record(result, make_trajectories(result), 3, 1)
    assert "prompt_cut" not in record["turns"][0]["answer"]["sampled"], "it is the default"
    rewards = {"outcome": {"raw": 1.0, "weighted": 1.0}, "format": {"raw": 1.0, "weighted": 0.1}}
    assert [turn.get("rewards") for turn in record["turns"]] == [rewards, None, rewards]


# The documented format of a line
GAME_LINE = (
    '{"format":2,"version":7,"actor":2,"spec":{"game":5,"purpose":"train","env":"TicTacToe-v0",'
    '"seed":4,"seats":[{"player":"main@1","temperature":1.0,"group_id":50,"group_size":2},'
    '{"player":"minimax","temperature":0.5}],"member":1},"payoffs":[-1.0,1.0],'
    '"outcomes":[-1.0,1.0],"forfeit":0,"truncated":false,"reason":"three in a row","seconds":2.0,'
    '"fork":1,"turns":[{"seat":1,"index":0,"answer":{"observation":"board 0","text":"[1]",'
    '"action":"[1]","player":"minimax"},"invalid":false,"seconds":0.5},{"seat":0,"index":1,'
    '"answer":{"observation":"board 1","text":"Zug ✓","action":"","formatted":false,'
    '"sampled":{"prompt_ids":[7,8,9],"segments":[{"kind":"sampled","token_ids":[0,1],'
    '"logprobs":[-0.25,-0.5],"finish_reason":"length","adapter":"main@2"}],"temperature":1.0,"version":2,'
    '"prompt_cut":5},"player":"main@1"},"invalid":true,"seconds":0.25,'
    '"rewards":{"outcome":{"raw":-1.0,"weighted":-1.0}}}]}\n'
)
ANSWER: dict[str, Any] = {
    **{"prompt_ids": [7, 8, 9], "prompt_cut": 5, "token_ids": [0, 1], "logprobs": [-0.25, -0.5]},
    **{"adapter": "main@2", "finish_reason": "length"},
}
SAID = {"observation": "board 1", "text": "Zug ✓", "action": "", "formatted": False}
SEATED = (
    SeatSpec(player=PlayerId.policy(1), temperature=1.0, group_id=50, group_size=2),
    SeatSpec(player=PlayerId("minimax"), temperature=0.5),
)
GAME_RESULT = replace(
    game(outcomes=(-1.0, 1.0)),
    spec=replace(spec(game_id=5), seed=4, seats=SEATED, member=1),
    turns=[
        turn(1, 0, "minimax", seconds=0.5, observation="board 0", text="[1]", action="[1]"),
        turn(0, 1, "main@1", True, 0.25, sampled=sampled(2, **ANSWER), **SAID),
    ],
    forfeit=0,
    reason="three in a row",
    seconds=2.0,
    fork=1,
)


def test_line_of_documented_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train-000007.jsonl"
    path.write_text(GAME_LINE, encoding="utf-8")
    [(place, row)] = read_lines(path)
    assert place == f"{path}:1"
    assert as_played(read_game(place, row)) == GAME_RESULT
    [record] = read_records(path, RecordedGame, Skipped())
    assert game_line(game_body(as_played(record)), 7, 2).decode() == GAME_LINE.replace(
        ',"rewards":{"outcome":{"raw":-1.0,"weighted":-1.0}}', ""
    )


def test_row_that_is_not_a_game_is_rejected_with_its_place() -> None:
    refused(r"^metrics\.jsonl:3: not a recorded game", read_game, "metrics.jsonl:3", {"version": 1})


# Lines


@every_row("found", 1, 3, 0, "1", None, [1])
def test_other_format_is_an_error_with_file_and_line(tmp_path: Path, found: Any) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"a":1}}\n\n{{"format":2,"a":2}}\n{{"format":{json.dumps(found)},"a":3}}\n')
    rows = []
    with pytest.raises(ConfigError) as raised:
        for place, row in read_lines(path):
            rows.append((place, row))
    assert rows == [(f"{path}:1", {"a": 1}), (f"{path}:3", {"a": 2})]
    text = str(raised.value)
    assert text.startswith(f"{path}:4: format = {found!r}")
    assert ("repeat the run" if found == 1 else "use the release") in text
    assert "\n" not in text
    if isinstance(found, int):
        refused(r"x\.jsonl:4: format", read_rows, path)
    else:
        assert read_rows(path) == []


@every_row(
    "line, complaint",
    ('{"a":', "not JSON"),
    ("[1]", "list, not an object; write one JSON object per line"),
    ("3", "int, not an object"),
)
def test_line_that_is_not_an_object_is_rejected(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"a":1}}\n{line}\n')
    refused(rf"x\.jsonl:2: {complaint}", list, read_lines(path))


def test_missing_file_is_an_error_for_lines_but_not_for_rows(tmp_path: Path) -> None:
    refused(r"x\.jsonl: file not found", list, read_lines(tmp_path / "x.jsonl"))
    assert read_rows(tmp_path / "x.jsonl") == []


@settings(deadline=None, derandomize=True)
@given(st.dictionaries(st.text(max_size=3), st.text(max_size=5) | NUMBERS | st.none()))
def test_any_record_is_written_as_one_line(record: dict[str, Any]) -> None:
    line = json_line(record)
    assert line.count(b"\n") == 1 and b"\r" not in line
    assert json.loads(line) == {"format": 2, **record}


@every_row(
    "make, why",
    (lambda path: path.symlink_to(path.with_name("other")), "is a symbolic link"),
    (lambda path: path.symlink_to("/dev/full"), "is a symbolic link"),
    (os.mkfifo, "is not a regular file"),
    (Path.mkdir, "is a folder"),
)
def test_target_is_a_regular_file(tmp_path: Path, make: Callable[[Path], None], why: str) -> None:
    path = tmp_path / "report.html"
    check_target(path, "--out")
    path.touch()
    check_target(path, "--out")
    path.unlink()
    make(path)
    refused(f"--out = '.*report.html': {why}; give", check_target, path, "--out")
    refused("folder not found", check_target, tmp_path / "none/report.html", "--out")
    refused("is not a regular file", check_target, Path("/dev/full"), "--out")


def objects(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_lines(path)]


def test_lines_are_split_only_at_line_feeds(tmp_path: Path) -> None:
    records = [{"text": "a\u2028b\u0085c\x1cd\r\ne ✓"}, {"text": ""}]
    write_lines(tmp_path / "x.jsonl", records)
    assert objects(tmp_path / "x.jsonl") == records


def test_line_accepts_lone_surrogates_but_no_non_finite_numbers() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_line({"a": float("nan")})
    with pytest.raises(ValueError):
        json_line({"a": [1.0, -float("inf")]})
    assert json.loads(json_line({"a": "NaN and -Infinity"}))["a"] == "NaN and -Infinity"
    assert json_line({"a": "x\ud800\x7f"}) == b'{"format":2,"a":"x\\ud800\\u007f"}\n'


def test_incomplete_line_is_removed_on_reopening(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":')
    file = LineFile(path)
    file.write({"a": 2})
    file.close()
    assert lines(path) == [{"a": 1}, {"format": 2, "a": 2}]
    with path.open("ab") as torn:
        torn.write(b'{"a":')
    LineFile(path).close()  # opening it suffices
    assert objects(path) == [{"a": 1}, {"a": 2}]


def test_incomplete_last_line_is_not_counted_as_damage(tmp_path: Path) -> None:
    """A run that is being written, or was killed, ends so."""
    skipped, folder = Skipped(), RunFolder(tmp_path)
    path = folder.games("train", 1)
    path.parent.mkdir()
    path.write_bytes(json_line(game_record(game(), [], 1, 0)) + b'{"format":2,"version":')
    assert len([*scan_games(folder, skipped)]) == 1 and len(skipped) == 0


def test_rewind_removes_files_of_later_versions(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    kept = [folder.games("train", 1), folder.games("eval", 1), folder.samples(1)]
    later = [folder.games("train", 2), folder.games("eval", 3), folder.samples(2)]
    for path in (*kept, *later):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"{}\n")
    folder.checkpoint(2).mkdir(parents=True)
    (folder.checkpoint(2) / "x").write_bytes(b"half")
    folder.metrics.write_bytes(b"one\ntwo\n")
    copy = RunFolder(shutil.copytree(tmp_path, tmp_path.parent / "copy"))
    marks = {"metrics.jsonl": 4, folder.relative(folder.games("train", 1)): 0}
    for each, aside in ((folder, None), (copy, copy.root / "set_aside/0")):
        each.rewind(1, marks, aside)
        assert all((each.root / folder.relative(path)).exists() for path in kept)
        assert not any((each.root / folder.relative(path)).exists() for path in later)
        assert not each.checkpoint(2).exists() and each.metrics.read_bytes() == b"one\n"
    aside = copy.root / "set_aside/0"
    found = {str(p.relative_to(aside)): p.read_bytes() for p in aside.rglob("*") if p.is_file()}
    assert found == {
        **{folder.relative(path): b"{}\n" for path in later},
        **{"metrics.jsonl": b"two\n", "games/train-000001.jsonl": b"{}\n"},
        "checkpoints/000002/x": b"half",
    }


class FullDisk:
    """A file of which only the first few bytes of a line fit, as long as `room` is set."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.room: int | None = 4

    def write(self, content: bytes) -> int:
        return self._file.write(content[: self.room])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_partial_line_is_reported_then_dropped(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    file = LineFile(path)
    file.write({"a": 1})
    disk: Any = FullDisk(file._file)
    file._file = disk
    for _ in range(2):
        with pytest.raises(OSError, match="No space left on device"):
            file.write({"a": 2})
    disk.room = None
    file.write({"a": 3})
    file.close()
    assert objects(path) == [{"a": 1}, {"a": 3}]


def test_file_is_replaced_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "folder" / "x"
    with pytest.raises(FileNotFoundError):  # a removed folder is not recreated
        write_whole(path, b"old")
    path.parent.mkdir()
    write_whole(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert [each.name for each in path.parent.iterdir()] == ["x"]
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, b"")


# Batches


def trajectory(game_id: int, seat: int, group_id: int, samples: int) -> Trajectory:
    """Samples that differ in all that a record holds."""
    outcome = 1.0 - 2 * seat
    return Trajectory(
        game_id=game_id,
        env="Nim-v0",
        seat=seat,
        group_id=group_id,
        outcome=outcome,
        forfeit=seat == 1,
        samples=tuple(
            Sample(
                turn=2 * number + seat,
                tokens=sampled(
                    4 - number,
                    prompt_ids=[game_id] * (number + 1),
                    token_ids=[seat, number, 9],
                    logprobs=[-0.1, -0.2, -0.1 / 3],
                    finish_reason="length" if number else "stop",
                    temperature=0.5 + seat,
                    prompt_cut=number,
                ),
                rewards={"outcome": Reward(outcome, outcome), "format": Reward(1.0, 0.1)},
            )
            for number in range(samples)
        ),
    )


def test_batch_is_written_as_one_record_per_sample_in_order() -> None:
    groups = (
        Group(trajectories=(trajectory(8, 0, 30, 2), trajectory(9, 1, 30, 1))),
        Group(trajectories=(trajectory(3, 1, 40, 2),)),
    )
    batch = Batch(version=7, groups=groups)
    rows = sample_lines(batch, [0.5, -0.5, 0.25, 1.0, -1.0]).splitlines()
    records = [json.loads(row) for row in rows]
    assert {record.pop("format") for record in records} == {2}
    places = [(r["group"], r["game"], r["seat"], r["turn"], r["advantage"]) for r in records]
    assert places == [
        (30, 8, 0, 0, 0.5),
        (30, 8, 0, 2, -0.5),
        (30, 9, 1, 1, 0.25),
        (40, 3, 1, 1, 1.0),
        (40, 3, 1, 3, -1.0),
    ]
    rewards = {"outcome": {"raw": -1.0, "weighted": -1.0}, "format": {"raw": 1.0, "weighted": 0.1}}
    segment = {"token_ids": [1, 1, 9], "logprobs": [-0.1, -0.2, -0.1 / 3]}
    assert records[-1] == {
        **{"game": 3, "env": "Nim-v0", "seat": 1, "turn": 3, "group": 40, "staleness": 4},
        **{"prompt_length": 2, "completion_length": 3, "rewards": rewards, "reward": -0.9},
        **{"outcome": -1.0, "forfeit": True, "advantage": -1.0},
        "sampled": {
            **{"version": 3, "temperature": 1.5, "prompt_cut": 1, "prompt_ids": [3, 3]},
            "segments": [SEGMENT | segment | {"finish_reason": "length"}],
        },
    }
    for row, record in zip(rows, records, strict=True):
        read = parse_record(row, SampleRecord, "a line")
        assert json.loads(json_line(read)) == {"format": 2, **record}


@every_row("advantages", [], [0.1], [0.1, 0.2, 0.3])
def test_number_of_advantages_must_match_samples(advantages: list[float]) -> None:
    batch = Batch(version=4, groups=(Group(trajectories=(trajectory(8, 0, 30, 2),)),))
    with pytest.raises(ValueError, match="argument 2"):
        sample_lines(batch, advantages)


# Folders


def fill(scratch: Path, who: str) -> None:
    """Several files, one of them in a folder of its own."""
    (scratch / "inner").mkdir()
    for name in ("a", "b", "inner/c"):
        (scratch / name).write_text(who)


def assert_whole(folder: Path, who: str) -> None:
    """Assert that `who` wrote every file of the folder, and that the folder has no siblings."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    held = {str(path.relative_to(folder)): path.read_text() for path in found}
    assert held == {"a": who, "b": who, "inner/c": who}
    assert list(folder.parent.iterdir()) == [folder]


def make(folder: Path, who: str, replace: bool = False) -> None:
    with new_folder(folder, replace=replace) as scratch:
        fill(scratch, who)


def test_new_folder_appears_with_all_content(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "new"
    with new_folder(folder) as scratch:
        fill(scratch, "me")
        assert not folder.exists()
        assert scratch.stat().st_dev == tmp_path.stat().st_dev
    assert_whole(folder, "me")


@every_row("replace", False, True)
@every_row("error", KeyError, KeyboardInterrupt)
def test_error_leaves_no_folder(tmp_path: Path, replace: bool, error: type[BaseException]) -> None:
    folder = tmp_path / "new"
    with pytest.raises(error), new_folder(folder, replace=replace) as scratch:
        fill(scratch, "me")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_failed_or_second_new_folder_keeps_older_one(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    make(folder, "older")
    with pytest.raises(KeyError), new_folder(folder, replace=True) as scratch:
        fill(scratch, "me")
        raise KeyError
    assert_whole(folder, "older")
    with pytest.raises(FileExistsError, match="new already exists"):
        make(folder, "me")
    assert_whole(folder, "older")


def test_folder_replaces_older_one(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "of the older one").write_text("")
    make(folder, "me", replace=True)
    assert_whole(folder, "me")


def test_first_of_two_concurrent_new_folders_stays(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with pytest.raises(FileExistsError), new_folder(folder) as slow:
        fill(slow, "slow")
        make(folder, "quick")
    assert_whole(folder, "quick")


def test_last_of_two_concurrent_replacements_stays(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    make(folder, "older")
    with new_folder(folder, replace=True) as slow:
        fill(slow, "slow")
        make(folder, "quick", replace=True)
    assert_whole(folder, "slow")


def test_folder_of_faster_process_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    remove = shutil.rmtree

    def removed_and_taken(path: Path, **options: Any) -> None:
        remove(path, **options)
        if path == folder:
            path.mkdir()
            fill(path, "faster")

    monkeypatch.setattr(files.shutil, "rmtree", removed_and_taken)
    make(folder, "me", replace=True)
    assert_whole(folder, "faster")


def test_failed_rename_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PermissionError):
        make(tmp_path / "new", "me")
    assert list(tmp_path.iterdir()) == []


def make_at_once(
    folder: Path, replace: bool, who: str, ready: threading.Barrier, raised: list[type]
) -> None:
    try:
        with new_folder(folder, replace=replace) as scratch:
            fill(scratch, who)
            ready.wait(10)
    except Exception as error:
        raised.append(type(error))


@pytest.mark.parametrize("replace", [False, True])
def test_concurrent_writers_leave_one_complete_folder(tmp_path: Path, replace: bool) -> None:
    for number in range(30):
        folder = tmp_path / str(number) / "new"
        folder.parent.mkdir()
        if replace:
            make(folder, "older")
        ready = threading.Barrier(2)
        raised: list[type] = []
        threads = [
            threading.Thread(target=make_at_once, args=(folder, replace, who, ready, raised))
            for who in ("one", "two")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert_whole(folder, (folder / "a").read_text())
        assert raised == ([] if replace else [FileExistsError])


@every_row("umask, mode", (0o022, 0o755), (0o077, 0o700), (0o027, 0o750))
def test_new_folder_has_default_permissions(tmp_path: Path, umask: int, mode: int) -> None:
    """Others may read a run's folder, though scratch folders are for their owner alone."""
    former = os.umask(umask)
    try:
        make(tmp_path / "new", "me")
        (tmp_path / "plain").mkdir()
    finally:
        os.umask(former)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new", "plain")]
    assert modes == [mode, mode]


@every_row("key", "spec", "outcomes", "payoffs")
def test_game_with_missing_key_gives_one_line_error(key: str) -> None:
    row = json.loads(GAME_LINE)
    del row[key]
    refused(rf"^here:3: invalid record of a game .*{key}", read_game, "here:3", row)


@every_row("content", b"", b"half", b"one\n", b"one\ntwo", b"one\n\nthree\nfo")
@every_row("block", 1, 3, 2**20)
def test_whole_size_ends_at_last_line_feed(content: bytes, block: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    assert whole_size(tmp_path / "file", block) == content.rfind(b"\n") + 1
