"""How exploitable a run's version is, exactly, or an average of several, or a table's policy."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unstable.commands.finished import (
    Version,
    check_adapter,
    checkpoint_of,
    from_folder,
    run_on_actors,
)
from unstable.commands.prepare import (
    alone,
    check_exact_games,
    exact_games,
    prepare,
    settle,
    show_plan,
)
from unstable.commands.session import starting
from unstable.commands.tables import read_tables, write_tables
from unstable.config import ConfigError, GameConfig, RunConfig
from unstable.loop.context import decide, exploit
from unstable.loop.protocols import Actor
from unstable.records.folder import RunFolder
from unstable.solving.average import averaged
from unstable.solving.best_response import Policy, assess
from unstable.solving.table import TableRow, policy_of, tabulated
from unstable.solving.tree import Tree, grow
from unstable.tracking.lines import Lines
from unstable.tracking.text import exploitability_line
from unstable.types import Exploitability, PlayerId

Shares = Mapping[int, Sequence[float]]
"""By a decision's number: the probability of each legal action."""


def measure(
    run_dir: Path,
    version: Version | None,
    games: Sequence[str],
    overrides: Mapping[str, Any],
    *,
    table: Path | None = None,
    average: tuple[int, int] | None = None,
) -> list[Exploitability]:
    """Compute a version's exploitability in the run's games; prints and returns a row each.

    `version` None is the newest; no `games` are all that can be solved exactly. With `average` it
    is that of the average of all versions from the first to the last of the two; a `table` (.csv,
    .json) is written with the policy. Raises `ConfigError` for a folder, version or game that is
    not there.
    """
    folder = RunFolder(run_dir)
    versions = _between(folder, average) if average else [checkpoint_of(folder, version)]
    config = _with_games(folder, games, overrides)
    with starting():
        check_exact_games(config)
        for number in versions:
            check_adapter(folder.checkpoint(number))
        resolved = prepare(config, learner=False)
    samples = resolved.config.eval.exploitability.samples
    if average and samples:
        raise ConfigError(f"--samples = {samples}: an average is of scored answers; leave it out")
    if table is not None:
        write_tables(table, {}, check=True)
    show_plan(resolved)
    began, config = time.time(), resolved.config
    wanted = _Wanted(exact_games(config), versions, average is None, table is not None)
    found, shares = run_on_actors(resolved, folder, versions[-1], "exploit", wanted.ask)
    of, tables = None, dict[str, list[TableRow]]()
    if average:
        of = f"the average of {len(versions)} versions, {versions[0]} to {versions[-1]}"
    for game, asked in shares.items():
        tree = _tree(config, game)
        policies = [_policy(tree, each) for each in asked]
        if average:
            spread, forfeit = (averaged(tree, policies, forfeits=each) for each in (False, True))
            found.append(_assessed(tree, spread, forfeit, game, versions[-1], began))
            policies = [forfeit]
        tables[game] = tabulated(tree, policies[0])
    for each in found:
        print(exploitability_line(each, of))
    if table is not None:
        write_tables(table, tables)
        print(f"the policy is in {table}")
    return found


class _Wanted(NamedTuple):
    """What actors are asked for."""

    games: list[str]
    versions: list[int]
    assessed: bool  # how exploitable the versions are
    decided: bool  # what they do at each decision

    async def ask(
        self, actors: Sequence[Actor], lines: Lines
    ) -> tuple[list[Exploitability], dict[str, list[Shares]]]:
        """Both, the second by game, for each version; the last version is served already."""
        lines.phase("computing exploitability", len(self.versions) * len(self.games))
        found: list[Exploitability] = []
        shares: dict[str, list[Shares]] = {}
        for number in self.versions:
            player, served = PlayerId.policy(number), number == self.versions[-1]
            for actor in () if served else actors:
                await actor.publish(player)
            for game in self.games:
                if self.assessed:
                    found.append(await exploit(actors, game, player))
                if self.decided or not self.assessed:
                    shares.setdefault(game, []).append(await decide(actors, game, player))
                lines.advance()
            for actor in () if served else actors:
                await actor.retire(player)
        return found, shares


def measure_table(
    run_dir: Path, table: Path, games: Sequence[str], overrides: Mapping[str, Any]
) -> list[Exploitability]:
    """The exploitability of a table's policy in the games of a run; no model is loaded.

    Raises `ConfigError` for a table that does not fit.
    """
    config = _with_games(RunFolder(run_dir), games, overrides)
    rows = read_tables(table)
    check_exact_games(config)
    if unknown := [game for game in rows if game not in config.game_by_key]:
        raise ConfigError(
            f"--policy = {str(table)!r}: has the game {unknown[0]!r}, which is none of the run's: "
            f"{', '.join(config.game_by_key)}"
        )
    found = []
    for game in games or list(rows):
        began = time.time()
        tree = _tree(config, game)
        policy = policy_of(tree, rows.get(game, []), f"--policy = {str(table)!r}, {game}")
        found.append(_assessed(tree, policy, policy, game, 0, began))
        print(exploitability_line(found[-1], f"the policy in {table}"))
    return found


def _with_games(folder: RunFolder, games: Sequence[str], overrides: Mapping[str, Any]) -> RunConfig:
    wanted = {"eval.exploitability.every": 1, "eval.exploitability.games": list(games)}
    return settle(alone(from_folder(folder, {**overrides, **wanted})))


def _between(folder: RunFolder, ends: tuple[int, int]) -> list[int]:
    """The versions that have a checkpoint, from one to another."""
    checkpoint_of(folder, None)
    known = folder.versions()
    first, last = ends
    if len(found := [each for each in known if first <= each <= last]) < 2:
        raise ConfigError(
            f"--average = {first}:{last}: {len(found)} of {folder.root}'s checkpoints are among "
            f"these; known: {', '.join(map(str, known))} (tracking.keep_checkpoints)"
        )
    return found


def _tree(config: RunConfig, game: str) -> Tree:
    found: GameConfig = config.game_by_key[game]
    return grow(found, config.eval.exploitability.nodes)


def _policy(tree: Tree, shares: Shares) -> Policy:
    return {
        node.key: dict(zip(node.actions, shares[number], strict=True))
        for number, node in enumerate(tree.decisions)
    }


def _assessed(
    tree: Tree, spread: Policy, forfeit: Policy, game: str, version: int, began: float
) -> Exploitability:
    """By a policy with illegal mass spread, and by one where it forfeits."""
    even, lost = assess(tree, spread, forfeits=False), assess(tree, forfeit, forfeits=True)
    return Exploitability(
        version=version,
        env=game,
        low=min(even.exploitability, lost.exploitability),
        high=max(even.exploitability, lost.exploitability),
        values=even.values,
        best=even.best,
        illegal_mass=lost.illegal_mass,
        decisions=len(tree.decisions),
        prompts=len(tree.decisions),
        seconds=time.time() - began,
    )
