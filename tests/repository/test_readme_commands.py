"""README's commands, unchanged, on runs of README's configs."""

from pathlib import Path

import pytest

from tests.helpers.cli import in_process, no_developers_lines
from tests.helpers.locally import locally
from tests.helpers.pages import README, commands
from tests.helpers.tables import table

pytestmark = pytest.mark.slow
SMALL = ["--learner.batch_size", "32", "--learner.micro_batch_size", "32", "--eval.games", "4"]
SMALL += ["--actors.num", "1", "--actors.games_in_flight", "16", "--eval.exploitability.every", "0"]
MORE = {
    "fork": [*SMALL, "--steps", "5"],
    "learn": ["--steps", "1"],
    "resume": ["--steps", "5"],
    "tournament": ["--deals", "2"],
}
"""Options that make a command small, by its name or mode."""
WITH_A_PERSON = {"play", "serve", "watch"}
LONG = {("tiny", "exploit")}
"""The 4,520 positions of TicTacToe take minutes."""


@pytest.mark.parametrize("config", table("commands rotating", ["tiny", "tiny_nim"], ["tiny_nim"]))
def test_readme_commands_run(config: str, tmp_path: Path) -> None:
    begin = ["train", "--config", config, "--run_dir", "outputs/run", "--steps", "4", *SMALL]
    with locally():
        begun = in_process(tmp_path, *begin)
        assert begun.returncode == 0, begun.stderr
        tried = set()
        for words in commands(README):
            name = next((w[2:] for w in words if w in ("--fork", "--resume")), words[0])
            if not any("<run>" in word for word in words) or name in WITH_A_PERSON:
                continue
            if (config, name) in LONG:
                continue
            asked = [word.replace("<run>", "run") for word in words]
            done = in_process(tmp_path, *asked, *MORE.get(name, []))
            assert done.returncode == 0, f"{' '.join(asked)}\n{done.stdout}\n{done.stderr}"
            assert no_developers_lines(done.stdout + done.stderr), done.stderr
            tried.add(name)
    assert tried >= {"resume", "fork", "report", "eval", "learn", "ratings", "replay", "export"}
