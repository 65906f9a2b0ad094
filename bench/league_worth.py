"""Exact results of a sweep's runs on a small game, for settings with and without leagues.

By setting, the mean over seeds with its 95 % interval by Student's t: games; exploitability; the
least that the last version wins from any of its own past versions, at most eight, evenly chosen;
the least that it wins from the last versions of the other seeds; and the distance between policies,
as the KL of a whole game in nats: the expectation, over games of one policy against itself, of the
sum of its KL from another at each decision. The KL is between seeds, and between the members of a
league that are not exploiters. Runs that are not done are left out.

Run: python -m bench.league_worth outputs/league_leduc
"""

import argparse
import asyncio
import math
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from statistics import mean

import torch

from bench import parser
from unstable.commands.prepare import alone, exact_games, prepare
from unstable.config import RunConfig
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.loop.context import decide
from unstable.models.adapters import read_adapter
from unstable.models.base import load_model, load_tokenizer, stop_token_ids
from unstable.records.folder import RunFolder
from unstable.records.text import fixed, interval
from unstable.runtime.local import LocalActor
from unstable.solving.best_response import Policy, PolicyValues, assess
from unstable.solving.exploiter import policy_by
from unstable.solving.pool import least_won
from unstable.solving.tree import Node, Tree, grow
from unstable.studies.league.population import MemberTurn
from unstable.studies.sweep.trials import LeagueJob, SweepFolder, Trial, measured, trials_of
from unstable.types import PlayerId
from unstable.types.intervals import student_interval

MOST_PAST = 8
LEAST = 1e-12


def versions_of(trial: Trial, folder: SweepFolder) -> list[Path]:
    """Return the measured policy's checkpoints, evenly chosen, ending with the last."""
    job = trial.job(folder)
    if isinstance(job, LeagueJob):
        member, generations = measured(job.config), range(1, job.config.generations + 1)
        runs = [job.folder.run(MemberTurn(member, each).name) for each in generations]
    else:
        runs = [RunFolder(job.root)]
    every = trial.config.tracking.keep_every or 1
    found = [run.checkpoint(v) for run in runs for v in kept(run, every) if v > 0]
    past = len(found) - 1
    chosen = {past - round(n * past / MOST_PAST) for n in range(1, MOST_PAST + 1)} - {past}
    return [found[at] for at in sorted(chosen) if at >= 0] + [found[-1]]


def kept(run: RunFolder, every: int) -> list[int]:
    """Return versions that `keep_every` retains, and the last."""
    known = run.versions()
    return [version for version in known if version % every == 0 or version == known[-1]]


def members_of(trial: Trial, folder: SweepFolder) -> list[Path]:
    """Return the last versions of a league's members that are not exploiters."""
    job = trial.job(folder)
    if not isinstance(job, LeagueJob):
        return []
    mains = [name for name, each in job.config.members.items() if each.role == "main"]
    runs = [job.folder.run(MemberTurn(name, job.config.generations).name) for name in mains]
    return [run.checkpoint(run.versions()[-1]) for run in runs]


def divergence(tree: Tree, own: Policy, other: Policy) -> float:
    """Return the KL in nats, over one policy's games against itself, from the other policy."""
    mine, others = (PolicyValues(tree, each, forfeits=False) for each in (own, other))
    known: dict[int, float] = {}

    def below(node: Node) -> float:
        if not node.children:
            return 0.0
        if id(node) not in known:
            p, q = (each.probabilities(node)[0] for each in (mine, others))
            here = zip(p, q, strict=True) if node.seat >= 0 else ()
            found = sum(a * math.log(a / max(b, LEAST)) for a, b in here if a > 0)
            later = zip(p, node.children, strict=True)
            known[id(node)] = found + sum(a * below(child) for a, child in later if a > 0)
        return known[id(node)]

    return below(tree.root)


class Policies:
    """Versions as exact policies of a game, each queried from the model once."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        (self._game,) = exact_games(config)
        self.tree = grow(config.game_by_key[self._game], config.eval.exploitability.nodes)
        model, tokenizer = load_model(config.model), load_tokenizer(config.model)
        engine = EmbeddedEngine(
            model, stop_token_ids(model, config.model, tokenizer), max_requests=256
        )
        self._actor = LocalActor(config, folder, engine, tokenizer)
        self._found: dict[Path, Policy] = {}

    async def of(self, checkpoint: Path) -> Policy:
        """Return the policy of a checkpoint."""
        if checkpoint not in self._found:
            player = PlayerId.policy(len(self._found))
            await self._actor.publish(player, read_adapter(checkpoint, player.name))
            asked = await decide([self._actor], self._game, player)
            await self._actor.retire(player)
            self._found[checkpoint] = policy_by(self.tree, asked)
        return self._found[checkpoint]

    async def close(self) -> None:
        """End the helper processes."""
        await self._actor.close()

    async def all(self, checkpoints: Sequence[Path]) -> list[Policy]:
        """Return the policies of several checkpoints."""
        return [await self.of(each) for each in checkpoints]


async def figures(
    trials: Sequence[Trial], folder: SweepFolder, policies: Policies
) -> list[list[float | None]]:
    """Return one table row per run of a setting."""
    tree = policies.tree
    own = [await policies.all(versions_of(trial, folder)) for trial in trials]
    rows: list[list[float | None]] = []
    for trial, (*past, last) in zip(trials, own, strict=True):
        games = sum(row.get("collect/games") or 0 for row in trial.job(folder).rows())
        others = [each[-1] for each in own if each[-1] is not last]
        members = await policies.all(members_of(trial, folder))
        pairs = [divergence(tree, *pair) for pair in permutations(members, 2)]
        rows.append(
            [
                games,
                assess(tree, last, forfeits=True).exploitability,
                least_won(tree, last, dict(enumerate(past))).low if past else None,
                least_won(tree, last, dict(enumerate(others))).low if others else None,
                mean(divergence(tree, last, other) for other in others) if others else None,
                mean(pairs) if pairs else None,
            ]
        )
    return rows


def cell(values: Sequence[float | None], digits: int) -> str:
    """Return mean and interval over seeds as text."""
    known = [each for each in values if each is not None]

    def text(value: float) -> str:
        return fixed(value, digits) if digits else f"{value:,.0f}"

    if (found := student_interval(known, least=2)) is None:
        return text(mean(known)) if known else "–"
    return interval(*found, text)


async def measure(arguments: argparse.Namespace) -> None:
    folder = SweepFolder(arguments.sweep)
    trials = [each for each in trials_of(folder.read()) if each.job(folder).state() == "done"]
    first = trials[0].config.updated({"eval.exploitability.every": 1})
    policies = Policies(prepare(alone(first), learner=False).config, folder.run(trials[0].name))
    print(
        "| setting | games | exploitability | least, own past | least, other seeds "
        "| KL between seeds | KL between members |"
    )
    print("|---|---|---|---|---|---|---|")
    named = dict.fromkeys(each.setting.name for each in trials)
    for setting in arguments.settings or named:
        own = [each for each in trials if each.setting.name == setting]
        columns = zip(*await figures(own, folder, policies), strict=True)
        cells = [cell(each, 3 if at else 0) for at, each in enumerate(columns)]
        print(f"| {setting} | {' | '.join(cells)} |", flush=True)
    await policies.close()


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, threads=1)
    options.add_argument("sweep", type=Path, help="folder of a sweep")
    options.add_argument("--settings", nargs="*", help="settings to measure; default: all")
    arguments = options.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    asyncio.run(measure(arguments))


if __name__ == "__main__":
    main()
