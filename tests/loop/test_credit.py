"""Credit in a run: a critic of moves learns Kuhn poker, and advantages meet the true ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.loop import KUHN_RUN, make_context
from unstable.loop.train import train
from unstable.records.policies import read_policy
from unstable.records.reading import Skipped, read_rows
from unstable.runtime.local import LocalActor
from unstable.solving.best_response import Policy
from unstable.solving.credit import credit
from unstable.solving.exploiter import policy_by
from unstable.solving.tree import Tree, grow

RUN: dict[str, Any] = {
    **KUHN_RUN,
    "model": {"name": "tiny_cards", "init": "fresh", "dtype": "float32", "adapter": {"rank": 32}},
    "actors": {"games_in_flight": 128},
    "learner": {
        "algorithm": {"name": "vrpo", "kl_loss": 0.1, "critic": {"learning_rate": 1e-2}},
        "learning_rate": 2e-3,
        "batch_size": 384,
        "steps_per_batch": 2,
        "epochs": 2,
        "micro_batch_size": 384,
    },
    "eval": {"every": 0, "exploitability": {"every": 6}},
    "loop": {"mode": "sync", "steps": 13},
}


async def test_a_critic_of_moves_learns_kuhn_and_its_credit_is_measured(tmp_path: Path) -> None:
    context = make_context(Path("tiny_cards"), tmp_path / "run", **RUN)
    await train(context)
    rows = {row["version"]: row for row in read_rows(context.folder.metrics)}
    assert rows[0]["exploit/Kuhn/low"] > 0.4
    assert rows[12]["exploit/Kuhn/high"] < 0.3
    assert rows[13]["learn/explained_variance"] > 0.05

    found = {version: row.get("learn/advantage_correlation") for version, row in rows.items()}
    measured = [version for version, value in found.items() if value is not None]
    assert measured == [1, 7, 13]  # updates from versions 0, 6 and 12
    tree = grow(context.config.games[0])
    for version in (0, 12):
        shares = read_policy(context.folder, version, Skipped())["Kuhn"]
        samples = context.folder.samples(version + 1)
        expected = compared(samples, version, tree, policy_by(tree, shares))
        assert found[version + 1] == pytest.approx(expected, abs=1e-6)
        assert rows[version + 1]["learn/advantage_correlation/Kuhn"] == found[version + 1]
    assert (found[13] or 0.0) > 0.15
    (actor,) = context.actors
    assert isinstance(actor, LocalActor)
    await actor.close()


def compared(samples: Path, version: int, tree: Tree, policy: Policy) -> float:
    """The correlation for a version's samples, by what its games' records say was done."""
    credits = credit(tree, policy, forfeits=True)
    decisions = tree.decisions
    by_text = {
        each.observation.position: (each.actions, credits[each.key])
        for each in decisions
        if each.observation is not None
    }
    records = list(map(json.loads, samples.read_text().splitlines()))
    games = samples.parent.parent / "games"
    turns = {
        (game["game"], turn["index"]): turn
        for path in games.glob("train-*")
        for game in map(json.loads, path.read_text().splitlines())
        for turn in game["turns"]
    }
    pairs = []
    for record in records:
        if record["sampled"]["version"] != version:
            continue  # a game that had begun under the version before
        turn = turns[record["game"], record["turn"]]
        (text,) = (text for text in by_text if text and text in turn["observation"])
        actions, worth = by_text[text]
        if turn["action"] in actions:
            pairs.append((record["advantage"], worth.advantages[actions.index(turn["action"])]))
    assert len(pairs) > 250
    return float(np.corrcoef(np.array(pairs).T)[0, 1])
