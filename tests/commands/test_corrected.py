"""`eval --baseline`: a language model's payoff with control variates, against the exact one."""

import re
from pathlib import Path

import pytest

from tests.helpers.locally import locally
from tests.helpers.mistakes import refused
from tests.helpers.trees import uniform
from unstable.cli import run
from unstable.config import load
from unstable.records.folder import RunFolder
from unstable.records.policies import read_policy
from unstable.records.reading import Skipped
from unstable.solving.exploiter import policy_by
from unstable.solving.pool import won_from
from unstable.solving.tree import grow

LINE = re.compile(
    r"control variates by version 0 · version 1 · Kuhn against ([a-z]+): payoff "
    r"(\S+) \((\S+) to (\S+)\) · 400 games are worth ([\d,]+) "
    r"\(([\d.,]+) times; draws of ([^)]+)\)"
)
PAYOFF = re.compile(r"payoff ([+-][\d.]+) \(([+-][\d.]+) to")
CRITIC = re.compile(
    r"control variates by version 4 · version 4 · Kuhn against random: payoff "
    r"(\S+) \((\S+) to (\S+)\) · 300 games are worth [\d,]+ \(([\d.]+) times; draws of ([^)]+)\)"
)


@pytest.mark.slow
@pytest.mark.tables("solving rotating", 1)
def test_corrected_payoffs_of_a_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(tmp_path / "run")
    train = ["train", "--config", "tiny_kuhn", "--run_dir", str(folder.root), "--steps", "1"]
    train += ["--learner.batch_size", "64", "--eval.exploitability.every", "1"]
    evaluated = ["eval", str(folder.root), "--games", "400", "--seed", "5"]
    evaluated += ["--eval.opponents", "random", "base"]
    with locally():
        assert run(train) == 0
        capfd.readouterr()
        assert run([*evaluated, "--baseline", "0"]) == 0
        shown = capfd.readouterr().out
        folder.policies(0).unlink()  # then its checkpoint answers
        assert run([*evaluated, "--baseline", "0"]) == 0
        assert LINE.findall(capfd.readouterr().out) == LINE.findall(shown)
        assert run([*evaluated, "--baseline", "0", "--eval.temperature", "0.5"]) == 0
        assert "main@1" not in capfd.readouterr().out.partition("draws of")[2]
    rows = {row[0]: row[1:] for row in LINE.findall(shown)}
    assert set(rows) == {"random", "base"}, shown
    config = load(str(folder.config))
    tree = grow(config.games[0])
    own = policy_by(tree, read_policy(folder, 1, Skipped())["Kuhn"])
    exact = float(won_from(tree, own, [uniform(tree)], forfeits=True)[0])
    mean, low, high = (float(each.replace("−", "-")) for each in rows["random"][:3])
    assert low < exact < high and low < mean < high
    assert (
        rows["random"][5] == "chance, main@1, random"
        and float(rows["random"][4].replace(",", "")) > 3
    )
    assert rows["base"][5] == "chance, base, main@1"

    unknown = "^--baseline = 9: neither a policy nor a checkpoint in"
    refused(unknown, run, [*evaluated, "--baseline", "9"])
    large = ["--games.0.args.max_rounds", "5", "--baseline", "0"]
    (folder.checkpoint(0) / "learner.pt").unlink()
    refused("^--baseline = 0: no game of this run can be solved", run, [*evaluated, *large])


@pytest.mark.slow
@pytest.mark.tables("learners rotating", 1)
def test_critic_saves_games_where_no_tree_does(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Five hands of Kuhn poker: the corrected mean agrees with many more plain games."""
    folder, large = str(tmp_path / "run"), ["--games.0.args.max_rounds", "5"]
    train = ["train", "--config", "tiny_kuhn", "--run_dir", folder, "--steps", "4", *large]
    train += ["--learner.batch_size", "300", "--eval.exploitability.every", "0"]
    evaluated = ["eval", folder, "--eval.opponents", "random", "--games"]
    with locally():
        assert run(train) == 0
        assert run([*evaluated, "2000", "--seed", "6"]) == 0
        plain = PAYOFF.findall(capfd.readouterr().out)[-1]
        assert run([*evaluated, "300", "--seed", "5", "--baseline", "4"]) == 0
    *payoff, factor, draws = CRITIC.findall(capfd.readouterr().out)[0]
    assert draws == "main@4, random" and float(factor) > 1.5
    (mean, low, _), (many, many_low) = map(float, payoff), map(float, plain)
    assert low < mean and abs(mean - many) < (mean - low) + (many - many_low)
