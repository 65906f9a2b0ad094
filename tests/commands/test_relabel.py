"""`--relabel N` of `exploit` and `eval`: the run's games in its own words and in others."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers.cli import in_process
from tests.helpers.locally import locally
from tests.helpers.mistakes import line_of, refused
from unstable.cli import run
from unstable.commands.exploit import measure
from unstable.commands.relabel import Wordings, with_other_words
from unstable.config import ConfigError, RunConfig
from unstable.records.folder import RunFolder

KUHN = "unstable.games.catalog.kuhn:KuhnPoker"
ONE_HAND: dict[str, Any] = {"env": KUHN, "args": {"max_rounds": 1}}
TIC_TAC_TOE: dict[str, Any] = {"env": "TicTacToe-v0"}


def config(*games: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate({"model": {"name": "tiny"}, "games": games})


def test_each_game_is_followed_by_its_relabellings() -> None:
    found, words = with_other_words(config({**ONE_HAND, "name": "Kuhn"}, TIC_TAC_TOE), 2)
    assert words == [
        Wordings("Kuhn", ["Kuhn"], ["relabelled:1:Kuhn", "relabelled:2:Kuhn"]),
        Wordings(
            "TicTacToe-v0",
            ["TicTacToe-v0"],
            ["relabelled:1:TicTacToe-v0", "relabelled:2:TicTacToe-v0"],
        ),
    ]
    assert [game.key for game in found.games] == [n for each in words for n in each[1] + each[2]]
    assert [game.env for game in found.games[:2]] == [KUHN, f"relabelled:1:{KUHN}"]
    assert all(game.args == {"max_rounds": 1} for game in found.games[:3])


def test_seeds_that_the_run_plays_are_left_out() -> None:
    played = [{**ONE_HAND, "env": f"relabelled:{seed}:{KUHN}"} for seed in (1, 3)]
    _, (words,) = with_other_words(config(*played), 3)
    assert words.own == [f"relabelled:{seed}:{KUHN}" for seed in (1, 3)]
    assert words.other == [f"relabelled:{seed}:{KUHN}" for seed in (2, 4, 5)]


def test_games_are_selected_by_name() -> None:
    found, (words,) = with_other_words(config({"env": "Nim-v0"}, TIC_TAC_TOE), 1, ["TicTacToe-v0"])
    assert [game.key for game in found.games] == words.own + words.other


def test_games_without_other_words_are_refused() -> None:
    said = (
        r"^--relabel = 2: games.1.env = 'Nim-v0': relabelled:1:Nim-v0: no other words for it; use"
    )
    refused(said, with_other_words, config(TIC_TAC_TOE, {"env": "Nim-v0"}), 2)
    own = {**ONE_HAND, "legal_moves": "unstable.games.catalog.kuhn:legal_moves"}
    said = r"^--relabel = 2: games.0.legal_moves = .* has the game's own words; set it to null"
    refused(said, with_other_words, config(own), 2)


def test_refusal_precedes_the_model_and_the_weights(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.checkpoint(1).mkdir(parents=True)  # without weights
    folder.config.write_text(
        yaml.safe_dump({"model": {"name": "tiny"}, "games": [{"env": "Nim-v0"}]})
    )
    assert "no other words for it" in line_of(measure, folder.root, None, [], {}, relabel=1)


@pytest.mark.parametrize(
    "words",
    [["eval", "--baseline", "0"], ["exploit", "--learn"], ["exploit", "--policy", "table.csv"]],
)
def test_conflicting_options_are_refused(words: list[str]) -> None:
    command, *others = words
    with pytest.raises(ConfigError, match="^--relabel: .*(remove one of them|leave it out)$"):
        run([command, "run", *others, "--relabel", "2"])


@pytest.mark.slow
def test_policy_that_knows_only_words_fails_in_others(tmp_path: Path) -> None:
    """`tiny_cards` plays legal moves of Kuhn poker in its own words alone."""
    small = ["--loop.steps", "1", "--learner.batch_size", "64", "--learner.micro_batch_size", "64"]
    with locally():
        trained = in_process(tmp_path, "train", "--config", "tiny_kuhn", "--run_dir", "run", *small)
        assert trained.returncode == 0, trained.stderr
        exact = in_process(tmp_path, "exploit", "run", "--relabel", "2")
        evaluated = in_process(
            tmp_path, "eval", "run", "--relabel", "2", "--opponents", "random", "--games", "4"
        )
    assert exact.returncode == 0 and evaluated.returncode == 0, exact.stderr + evaluated.stderr
    lines = exact.stdout.splitlines()
    assert [line.partition(" · ")[2].partition(": ")[0] for line in lines[:-1]] == [
        *("Kuhn", "relabelled:1:Kuhn", "relabelled:2:Kuhn")
    ]
    assert "illegal mass 100 %" in lines[1] and "illegal mass 0 %" in lines[0]
    summary = r"other words · Kuhn: exploitability 0\.4\d\d, in 2 others mean 0\.458 to 2\.000 \("
    assert re.match(summary, lines[-1])
    last = evaluated.stdout.splitlines()[-1]
    assert re.match(r"other words · Kuhn: score against random \S+, in 2 others mean 0.000", last)
