"""Exact exploitability of a run's versions before and after search at the table.

At each decision of a small game, the policy takes the mirror step of `kind: search`, with exact
values and with values of rollouts. The search samples new rollouts at each visit, so it plays
the mean of the steps, which is estimated from `--draws` of them. Illegal mass is spread over legal
moves. Values and exploitability are in the game's payoff unit; eta multiplies outcomes.

Run: python -m bench.search outputs/kuhn 8 40 96 --eta 1 --continuations 16 64
"""

import argparse
import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import torch

from bench import parser
from bench.league_worth import Policies
from unstable.commands.finished import from_folder
from unstable.commands.prepare import alone, exact_games, prepare
from unstable.contrib.search.beliefs import TreePositions
from unstable.contrib.search.values import (
    ActionValues,
    ExactValues,
    Question,
    RolloutValues,
    mirror_step,
    normalized,
)
from unstable.games.game import Game
from unstable.records.folder import RunFolder
from unstable.solving.best_response import Policy, PolicyValues, assess
from unstable.solving.tree import Tree, as_key
from unstable.types.seeds import derive_seed


class TabularProbabilities:
    """A policy's table, as the move probabilities that search needs."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def of(self, questions: Sequence[Question]) -> list[list[float]]:
        tables = [self._policy[as_key(observation)] for observation, _ in questions]
        return [
            [table[move] for move in moves]
            for table, (_, moves) in zip(tables, questions, strict=True)
        ]


async def searched(
    tree: Tree,
    positions: TreePositions,
    policy: Policy,
    values: ActionValues,
    eta: float,
    seed: int,
) -> Policy:
    """Return the policy after a mirror step at each decision."""
    found = {}
    for number, node in enumerate(tree.decisions):
        rng = random.Random(derive_seed(seed, number))
        belief = positions.belief(node.shown, policy)
        each = await values.of(belief, node.seat, node.actions, rng)
        own = [policy[node.key][action] for action in node.actions]
        found[node.key] = dict(zip(node.actions, mirror_step(own, each, eta), strict=True))
    return found


def mean_of(policies: Sequence[Policy]) -> Policy:
    """Return the mean of several policies at each decision."""
    return {
        key: {action: sum(p[key][action] for p in policies) / len(policies) for action in table}
        for key, table in policies[0].items()
    }


async def measure(arguments: argparse.Namespace) -> None:
    """Print a row per version."""
    folder = RunFolder(arguments.run)
    config = alone(from_folder(folder, {"eval.exploitability.every": 1}))
    policies = Policies(prepare(config, learner=False).config, folder)
    (game,) = exact_games(config)
    tree, scale = policies.tree, Game(config.game_by_key[game], seed=0).payoff_scale
    positions = TreePositions(tree, scale)
    heads = ["exact Q", *(f"{each} continuations" for each in arguments.continuations)]
    print(f"| {game}, version | eta | before | {' | '.join(heads)} |")
    print("|---" * (3 + len(heads)) + "|")
    for version in arguments.versions:
        raw = await policies.of(folder.checkpoint(version))
        policy = {
            key: dict(zip(table, normalized([*table.values()]), strict=True))
            for key, table in raw.items()
        }
        exact = ExactValues(PolicyValues(tree, policy, forfeits=False), scale)
        for eta in arguments.eta:
            after = [await searched(tree, positions, policy, exact, eta, 0)]
            for continuations in arguments.continuations:
                values = RolloutValues(TabularProbabilities(policy), continuations)
                draws = [
                    await searched(tree, positions, policy, values, eta, seed)
                    for seed in range(arguments.draws)
                ]
                after.append(mean_of(draws))
            cells = [assess(tree, p, forfeits=False).exploitability for p in (policy, *after)]
            print(f"| {version} | {eta:g} | {' | '.join(f'{c:.3f}' for c in cells)} |", flush=True)
    await policies.close()


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, threads=1)
    options.add_argument("run", type=Path, help="folder of a run with one small game")
    options.add_argument("versions", type=int, nargs="+", help="versions to search with")
    options.add_argument("--eta", type=float, nargs="+", default=[1.0], help="step sizes")
    options.add_argument("--continuations", type=int, nargs="*", default=[64, 16])
    options.add_argument("--draws", type=int, default=8, help="steps that are averaged")
    arguments = options.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    asyncio.run(measure(arguments))


if __name__ == "__main__":
    main()
