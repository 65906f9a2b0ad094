"""Examples that build on the public loop: a custom algorithm and a custom league."""

import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from examples import gated_league, ranked
from examples import loop as plain_loop
from examples.gated_league import CHANGES, loop
from tests.helpers.learners import save_model, solve_bandit
from tests.helpers.locally import locally
from tests.helpers.loop import KUHN_RUN, Begin, played
from tests.helpers.resume import rows
from unstable.cli import SHORT_FORMS, parse_options
from unstable.config import load
from unstable.learners.algorithms import algorithm_class
from unstable.records.folder import RunFolder
from unstable.records.reading import read_rows
from unstable.types import PlayerId


def test_the_ranked_algorithm_solves_a_bandit(tmp_path: Path) -> None:
    algorithm = {"name": "examples.ranked:Ranked"}
    solve_bandit(save_model(tmp_path), updates=40, algorithm=algorithm)


@pytest.mark.parametrize("example", [plain_loop, gated_league])
def test_an_example_trains_and_resumes(example: ModuleType, tmp_path: Path) -> None:
    """Call `main`, as `python -m examples.NAME` does, twice for the same folder."""
    small = {"learner.batch_size": 64, "learner.micro_batch_size": 64, "eval.games": 8}
    never = {"eval.every": 0, "eval.exploitability.every": 0}
    with locally():
        example.main(tmp_path / "run", 1, **small, **never)
        example.main(tmp_path / "run", 2)
    assert RunFolder(tmp_path / "run").versions() == [0, 1, 2]
    assert [row["version"] for row in read_rows(tmp_path / "run/metrics.jsonl")] == [0, 1, 2]


async def test_league_plays_only_champions(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.gated_league.ENOUGH", 0.5)
    context = begin(
        model=KUHN_RUN["model"],
        games=KUHN_RUN["games"],
        sampling=KUHN_RUN["sampling"],
        learner={"batch_size": 64, "micro_batch_size": 64, "learning_rate": 3e-2},
        loop={"mode": "sync", "steps": 6},
        opponents={"draw": CHANGES["opponents.draw"], "fixed": [], "pool_size": 1},
        eval={"every": 0, "games": 32, "opponents": ["past"], "temperature": [1.0]},
    )
    assert await loop(context) == "all updates made"
    champions = list(map(int, (context.folder.root / "champions.txt").read_text().split()))
    assert 1 < len(champions) < 7 and champions[0] == 0
    met: dict[int, set[int]] = {}  # opponents by trained version
    for game in played(context.folder):
        versions = {PlayerId.parse(name).version or 0 for name in game["players"]}
        met.setdefault(max(versions), set()).update(versions - {max(versions)})
    assert set().union(*met.values()) <= set(champions)
    assert any(version < newest - 1 for newest, own in met.items() for version in own)
    assert len(rows(context.folder)) == 7


def test_documented_custom_algorithm_command_parses() -> None:
    """The command in the example's docstring parses and selects the example's algorithm."""
    found = re.search(r"unstable train --config (\w+) (.*?)\n\n", str(ranked.__doc__), re.DOTALL)
    assert found is not None
    options = parse_options(shlex.split(found[2].replace("\\\n", " ")), SHORT_FORMS)
    assert algorithm_class(load(found[1], options).learner.algorithm) is ranked.Ranked
