"""Contents of the game viewer: the games that a rule selects, with their texts and solutions."""

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.helpers.builders import answering
from tests.helpers.models import tiny_tokenizer
from tests.helpers.records import game_record
from tests.helpers.rows import every_row
from tests.helpers.tracking import make_game, make_trajectories
from unstable.commands import report as runtime
from unstable.config import GameConfig, ModelConfig, parse
from unstable.games.game import Game
from unstable.games.replay import is_known, replay
from unstable.models.base import load_decoder
from unstable.prompts import TokenStrings
from unstable.records.files import write_lines
from unstable.records.folder import GameFile, RunFolder
from unstable.records.scan import GameLocation
from unstable.report.games import Sources, chosen, packed_games, point_of_view, rule, spread
from unstable.report.run import Run
from unstable.report.survey import survey
from unstable.types import GameResult

# Selection of games


def places(train: dict[int, int], evaluated: dict[int, int]) -> list[GameLocation]:
    """List the locations of the given number of games per version."""
    files = [GameFile("eval", version, Path()) for version in evaluated]
    files += [GameFile("train", version, Path()) for version in train]
    counts = {"train": train, "eval": evaluated}
    files.sort(key=lambda file: (file.version, file.purpose))
    return [GameLocation(f, at, at) for f in files for at in range(counts[f.purpose][f.version])]


def test_first_and_last_evaluations_are_preferred() -> None:
    found = chosen(places({v: 1000 for v in range(10)}, {0: 300, 5: 300, 9: 300}), 2000)
    assert len(found) == len(set(found)) == 2000
    count = {
        (purpose, version): sum(p.file[:2] == (purpose, version) for p in found)
        for purpose in ("train", "eval")
        for version in range(10)
    }
    assert count["eval", 0] == count["eval", 9] == 300
    assert 30 < count["eval", 5] < 50
    assert all(130 < count["train", version] < 141 for version in range(10))
    assert [p.file.version for p in found] == sorted((p.file.version for p in found), reverse=True)


def test_evaluations_fill_at_most_half() -> None:
    found = chosen(places({0: 5000, 1: 5000}, {0: 4000, 1: 4000}), 1000)
    assert sum(place.file.purpose == "eval" for place in found) == 500


@given(st.integers(0, 60), st.integers(0, 60))
def test_spread_keeps_both_ends_and_order(number: int, most: int) -> None:
    found = spread(range(number), most)
    assert len(found) == min(number, most) and found == sorted(set(found))
    if len(found) > 1:
        assert (found[0], found[-1]) == (0, number - 1)


def test_selection_rule_is_stated() -> None:
    assert rule(7, 7) == "All 7 recorded games."
    assert rule(2000, 67000).startswith("2,000 of 67,000 recorded games: up to half are evaluation")


# Content of games

NOTHING = Sources()


def packed(games: list[GameResult], root: Path, sources: Sources = NOTHING) -> tuple[Any, Any]:
    folder = RunFolder(root)
    records = [game_record(each, make_trajectories(each), 1, 0) for each in games]
    for name in ("games", "train"):
        (root / name).mkdir()
    write_lines(folder.games("train", 1), records)
    sample = {"game": 0, "turn": 2, "advantage": 0.25}
    write_lines(folder.samples(2), [sample, {**sample, "game": 99, "advantage": 9.0}])
    run = Run("run", folder, parse({}), [{"version": 1}], None)
    index, chunks = packed_games([run], [survey(run)], [sources])
    return index, [game for chunk in chunks for game in json.loads(gzip.decompress(chunk))]


def test_index_rows_match_their_games(tmp_path: Path) -> None:
    games = [make_game(n, outcomes=((1.0, -1.0) if n % 2 else (-1.0, 1.0))) for n in range(60)]
    index, stored = packed(games, tmp_path)
    assert [row["game"] for row in index["rows"]] == list(range(60))
    assert len(stored) == 60 and index["chunk"] == 25
    for row, game in zip(index["rows"], stored, strict=True):
        assert row["result"] == ("win" if game["outcomes"][row["seat"]] > 0 else "loss")
        assert (row["against"], row["kinds"], row["turns"]) == ("random", ["random"], 3)
        assert row["temperature"] == 1.0
    (first, second, third) = stored[0]["turns"]
    assert (third["advantage"], third["update"]) == (0.25, 2) and "advantage" not in first
    assert third["rewards"]["format"] == {"raw": 1.0, "weighted": 0.1}
    assert second["rewards"] is None and "logprobs" not in second


@every_row(
    "players, trained, against, kinds, seat",
    (("main@1", "main@1"), (0, 1), "self", ["self"], 0),
    (("random", "main@1"), (1,), "random", ["random"], 1),
    (("main@0", "main@3"), (), "main@0", ["past versions"], 1),
)
def test_index_row_takes_perspective_of_policy(
    players: tuple[str, ...],
    trained: tuple[int, ...],
    against: str,
    kinds: list[str],
    seat: int,
    tmp_path: Path,
) -> None:
    game = make_game(0, players, trained)
    assert point_of_view(game) == seat
    index, _ = packed([game], tmp_path)
    (row,) = index["rows"]
    assert (row["against"], row["kinds"]) == (against, kinds)


def test_control_characters_are_spelled_out(tmp_path: Path) -> None:
    game = make_game(0)
    game.turns[0] = answering(game.turns[0], text="\x1b[2J\u202e</script>")
    _, (stored,) = packed([game], tmp_path)
    assert stored["turns"][0]["text"] == "\\u001b[2J\\u202e</script>"


# Tokens

TOKENIZER = tiny_tokenizer()


@given(st.lists(st.integers(0, 131), max_size=20))
def test_token_strings_add_up_to_text(ids: list[int]) -> None:
    texts = TokenStrings(lambda ids: str(TOKENIZER.decode(ids, skip_special_tokens=False)))
    strings = texts.strings(ids)
    assert len(strings) == len(ids) and "".join(strings) == texts.text(ids)


@given(st.text("aé✓𝄞 ", max_size=8))
def test_multi_token_character_belongs_to_its_last_token(text: str) -> None:
    ids = list(text.encode())
    strings = TokenStrings(lambda ids: bytes(ids).decode(errors="replace")).strings(ids)
    assert len(strings) == len(ids) and "".join(strings) == text
    assert [string for string in strings if string] == list(text)


def test_decoder_keeps_control_tokens(tiny_folder: Path) -> None:
    decode = load_decoder(ModelConfig(name=str(tiny_folder)))
    assert decode is not None and decode([3, 4 + ord("a"), 0]) == "<|assistant|>a<|end|>"
    assert load_decoder(ModelConfig(name="nobody/no-such-model")) is None


# Positions


@every_row("env", "TicTacToe-v0", "WildTicTacToe-v0", "Nim-v0")
def test_move_value_is_negated_value_of_best_reply(env: str) -> None:
    chance = Random(4)
    for seed in range(6):
        game = Game(GameConfig(env=env), seed)
        game.observe()
        while not game.done:
            action_values, seat = game.action_values(), game.seat
            assert action_values is not None and list(action_values) == game.legal_moves()
            best = max(action_values.values())
            assert all(action_values[move] == best for move in game.expert_moves())
            move = chance.choice(list(action_values))
            game.step(move)
            if game.done:
                assert action_values[move] == game.outcomes[seat]
            else:
                game.observe()
                reply = game.action_values()
                assert reply is not None and action_values[move] == -max(reply.values())


def played(config: GameConfig, seed: int) -> list[str]:
    chance, game, actions = Random(seed), Game(config, seed), []
    while not game.done:
        game.observe()
        actions.append(chance.choice(game.legal_moves()))
        game.step(actions[-1])
    return actions


def test_replay_has_position_before_each_action_and_at_end() -> None:
    config = GameConfig(env="TicTacToe-v0")
    actions = played(config, 3)
    positions = replay(config, 3, actions)
    assert len(positions) == len(actions) + 1
    marks = [position.board.count("X") + position.board.count("O") for position in positions]
    assert marks == list(range(len(actions) + 1))
    assert positions[-1].action_values is None
    assert positions[0].prompted == "012345678"
    assert positions[1].prompted.count("O") == 1  # X is for the player to move
    prompt = config.model_copy(update={"prompt": "answer"})
    assert {position.prompted for position in replay(prompt, 3, actions)} == {""}


def test_hidden_information_games_have_equilibrium_policy() -> None:
    config = GameConfig(env="unstable.games.catalog.kuhn:KuhnPoker", args={"max_rounds": 1})
    first, *_ = replay(config, 3, played(config, 3))
    assert first.action_values is None and first.mix is not None
    assert sum(first.mix.values()) == pytest.approx(1)


def test_replay_stops_at_first_difference() -> None:
    config = GameConfig(env="TicTacToe-v0", invalid_moves={"allowed": 0})
    assert len(replay(config, 3, ["[4]", "[4]", "[1]"])) == 3
    assert is_known(GameConfig(env="Nim-v0"))
    assert not is_known(GameConfig(env="tests.helpers.unruly:Unruly"))
    assert not is_known(GameConfig(env="driver", name="Kuhn")), "only its driver can play it"


def test_replay_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    positions = runtime.sources(parse({})).positions
    assert positions is not None
    played = make_game(3, turns=1)
    assert len(positions(played) or []) == 2
    monkeypatch.setattr(runtime, "REPLAY_S", -1.0)
    assert positions(played) is None
    unruly = replace(played.spec, env="tests.helpers.unruly:Unruly")
    assert positions(replace(played, spec=unruly)) == []


def test_page_counts_games_without_board(tmp_path: Path) -> None:
    late = Sources(positions=lambda game: None if game.spec.game_id > 0 else [])
    index, stored = packed([make_game(n) for n in range(3)], tmp_path, late)
    assert index["rule"].endswith(
        "2 of these games have no board, because replaying reached its time limit."
    )
    assert [game["positions"] for game in stored] == [[], [], []]
