"""Evaluation with control variates: payoffs from which the luck of known draws is subtracted.

The values of positions are those of an earlier version's self-play, fixed before the games: exact
ones in a game with a small tree, else those of the version's critic of the whole state.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from unstable.commands.prepare import exact_games
from unstable.config import CheckpointOpponent, ConfigError, GameConfig, RunConfig
from unstable.games.services import lists_legal_moves, prompt_style, prompts_of
from unstable.league.evaluation import (
    by_deal,
    by_opponent,
    distinct_games,
    game_payoffs,
    game_scores,
    own_side,
)
from unstable.loop.context import decide
from unstable.loop.protocols import Actor
from unstable.models.base import load_tokenizer
from unstable.prompts import PromptBuilder
from unstable.records.folder import RunFolder
from unstable.records.policies import read_policy
from unstable.records.reading import Skipped
from unstable.records.text import against, interval, number, signed
from unstable.solving.best_response import PolicyValues
from unstable.solving.control_variates import Corrected, corrected, luck
from unstable.solving.draws import PROGRAMS, Known, draws, tabled
from unstable.solving.exploiter import policy_by
from unstable.solving.tree import Tree, grow
from unstable.types import BASE, GameResult, GameSpec, KnownPlayer, PlayerId, SeatSpec, Shares, Turn
from unstable.types.intervals import mean
from unstable.types.metrics import sampling_mode


class Baseline(NamedTuple):
    """An earlier version whose self-play values the positions of games."""

    version: int
    trees: Mapping[str, Tree]  # by game
    measured: Mapping[str, Shares]  # policies in the run's folder, by game
    others: Collection[str]  # games without a tree, which the critic values
    critic: Mapping[str, Any]  # of the whole state, from its checkpoint; empty: none

    def lacking(self) -> list[str]:
        """Return the games whose policy its checkpoint must tell."""
        return [game for game in self.trees if game not in self.measured]


def baseline_of(folder: RunFolder, version: int, config: RunConfig) -> Baseline:
    """Return the baseline of a version; raises `ConfigError` if it cannot be one."""
    from unstable.models.checkpoint import read_critic  # imports torch

    place = f"--baseline = {version}"
    games = exact_games(config)
    others = [game.key for game in config.games if game.key not in games and _replays(game)]
    critic = (read_critic(folder.checkpoint(version)) if others else None) or {}
    if not games and not critic:
        raise ConfigError(
            f"{place}: no game of this run can be solved exactly, and {folder.checkpoint(version)} "
            "has no critic of kind network that sees the state; leave it out"
        )
    trees = {
        game: grow(config.game_by_key[game], config.eval.exploitability.nodes) for game in games
    }
    measured = {
        game: shares
        for game, shares in read_policy(folder, version, Skipped()).items()
        if game in trees and _fits(trees[game], shares)
    }
    found = Baseline(version, trees, measured, others if critic else [], critic)
    if found.lacking() and version not in folder.versions():
        known = sorted({*folder.versions(), *folder.measured()})
        raise ConfigError(
            f"{place}: neither a policy nor a checkpoint in {folder.root}; available: "
            f"{', '.join(map(str, known))}"
        )
    return found


def _replays(game: GameConfig) -> bool:
    """Return whether games can be replayed here and list moves with exact probabilities."""
    elsewhere = game.is_driven or game.isolated
    return not elsewhere and not prompt_style(game).reasoning and lists_legal_moves(game)


def _fits(tree: Tree, shares: Shares) -> bool:
    return [*map(len, shares.values())] == [len(node.actions) for node in tree.decisions]


class PlayedLuck(NamedTuple):
    """Luck of each seat in the games of an env, by game number, and the draws that it sums."""

    by_game: Mapping[int, Sequence[float]]
    known: Collection[SeatSpec]  # players with known probabilities
    chance: bool


class Luck(NamedTuple):
    """All that determines the luck in a game's draws, fixed before the game is played."""

    game: GameConfig
    values: PolicyValues
    known: Mapping[SeatSpec, Known]  # players with known probabilities
    is_listed: Callable[[Turn], bool]

    def by_seat(self, result: GameResult) -> list[float]:
        """Return each seat's luck in a game, in payoffs."""
        players = {n: self.known[s] for n, s in enumerate(result.spec.seats) if s in self.known}
        found = [*draws(self.values.tree, self.game, result, players, self.is_listed)]
        return [luck(found, self.values.of, [seat]) for seat in range(len(result.spec.seats))]


def luck_in(
    config: RunConfig,
    game: str,
    tree: Tree,
    values: Shares,
    policies: Mapping[SeatSpec, Shares],
    seats: Collection[SeatSpec],
) -> Luck:
    """Return the luck in a game between `seats`, by the self-play of the policy `values`.

    `policies` are exact ones of local models, as `exact_policies` returns them.
    """
    known = {seat: PROGRAMS[kind] for seat, kind in programs(config, seats).items()}
    known |= {seat: tabled(policy_by(tree, shares)) for seat, shares in policies.items()}
    own = config.game_by_key[game]
    builder = policies and prompts_of(config, own, load_tokenizer(config.model))
    valued = PolicyValues(tree, policy_by(tree, values), forfeits=True)
    return Luck(own, valued, known, lambda turn: not builder or _is_listed(builder, turn))


async def fixed_before(
    actors: Sequence[Actor], config: RunConfig, baseline: Baseline, specs: Sequence[GameSpec]
) -> dict[str, Luck]:
    """Return what determines the luck, by game; `actors` serve the players of `specs`."""
    player = PlayerId.policy(baseline.version)
    is_served = any(seat.player == player for spec in specs for seat in spec.seats)
    publishes = baseline.lacking() and not is_served
    for actor in actors if publishes else ():
        await actor.publish(player)
    found = {}
    for game, tree in baseline.trees.items():
        shares = baseline.measured.get(game) or await decide(actors, game, player)
        seats = {seat for spec in specs if spec.env == game for seat in spec.seats}
        policies = await exact_policies(actors, config, game, seats)
        found[game] = luck_in(config, game, tree, shares, policies, seats)
    for actor in actors if publishes else ():
        await actor.retire(player)
    return found


async def luck_by_env(
    actors: Sequence[Actor],
    config: RunConfig,
    baseline: Baseline,
    fixed: Mapping[str, Luck],
    results: Sequence[GameResult],
) -> dict[str, PlayedLuck]:
    """Return the luck in played games, by env; `actors` serve their players."""
    found = {
        env: PlayedLuck(
            {each.spec.game_id: own.by_seat(each) for each in results if each.spec.env == env},
            own.known.keys(),
            chance=True,
        )
        for env, own in fixed.items()
    }
    for env in baseline.others:
        games, count = [each for each in results if each.spec.env == env], len(actors)
        seats = {seat for each in games for seat in each.spec.seats}
        known: dict[SeatSpec, KnownPlayer]
        known = {**exact_models(config, seats), **programs(config, seats)}
        parts = await asyncio.gather(
            *(actor.luck(games[n::count], baseline.critic, known) for n, actor in enumerate(actors))
        )
        by_game = {number: each for part in parts for number, each in part.items()}
        found[env] = PlayedLuck(by_game, known.keys(), chance=False)
    return found


async def exact_policies(
    actors: Sequence[Actor], config: RunConfig, game: str, seats: Iterable[SeatSpec]
) -> dict[SeatSpec, Shares]:
    """Return the exact policies of the local models that have some; `actors` serve them."""
    players = exact_models(config, seats).items()
    return {seat: await decide(actors, game, player) for seat, player in players}


def exact_models(config: RunConfig, seats: Iterable[SeatSpec]) -> dict[SeatSpec, PlayerId]:
    """Return the local models of the seats that have one whose probabilities are exact."""
    players = {seat: exact_model(config, seat) for seat in seats}
    return {seat: player for seat, player in players.items() if player}


def programs(config: RunConfig, seats: Iterable[SeatSpec]) -> dict[SeatSpec, str]:
    """Return the kinds of the seats' built-in programs, whose probabilities are known."""
    kinds = {seat: config.fixed_opponents.get(seat.player.name) for seat in seats}
    return {seat: each.kind for seat, each in kinds.items() if each and each.kind in PROGRAMS}


def exact_model(config: RunConfig, seat: SeatSpec) -> PlayerId | None:
    """Return the local model of a seat whose probabilities of moves are exact; None for others.

    They are if it samples a single free answer at temperature 1, without a search.
    """
    opponent = config.fixed_opponents.get(seat.player.name)
    is_local = seat.player == BASE or seat.player.version is not None
    player = seat.player
    if isinstance(opponent, CheckpointOpponent):
        is_local, player = opponent.answers == 1, PlayerId(opponent.adapter_name)
    plain = seat.temperature == 1 and seat.votes == seat.best_of == 1
    if not (is_local and plain) or config.eval.constrained or config.eval.exploitability.samples:
        return None
    return player


def _is_listed(builder: PromptBuilder, turn: Turn) -> bool:
    """Return whether an answer is the one that a move's exact probability is about."""
    sampled = turn.answer.sampled
    return sampled is None or sampled.token_ids == builder.encode_move(turn.answer.action)


def corrected_lines(
    version: int, results: Sequence[GameResult], lucks: Mapping[str, PlayedLuck], baseline: int
) -> list[str]:
    """Return a line per env, opponent and temperature whose games' luck is known."""
    found, policy = list[str](), PlayerId.policy(version)
    for (env, opponent, temperature), games in by_opponent(version, results).items():
        if env not in lucks:
            continue
        own = lucks[env]
        by_game = {
            each.spec.game_id: mean(
                own.by_game[each.spec.game_id][seat] for seat in own_side(version, each)
            )
            for each in games
        }
        payoffs = game_payoffs(version, games)
        values = payoffs or game_scores(version, games)
        distinct = math.ceil(distinct_games(version, games) / len(games[0].spec.sides))
        lucks_D = by_deal(games, by_game)
        result = corrected(by_deal(games, values), lucks_D, distinct)
        seats = {seat for each in games for seat in each.spec.seats}
        players = {seat.player for seat in seats & {*own.known}}
        known = {opponent if each != policy else each.name for each in players}
        what = f"version {version} · {env} against {against(opponent, sampling_mode(temperature))}"
        name = "payoff" if payoffs else "score"
        text = _text(
            result, name, len(games), len(lucks_D), ["chance"] * own.chance + sorted(known)
        )
        found.append(f"{what}: {text}")
    return [f"control variates by version {baseline} · {line}" for line in found]


def _text(found: Corrected, name: str, games: int, deals: int, draws: Sequence[str]) -> str:
    low, high = (None, None) if found.interval is None else found.interval[1:]
    if not any(found.coefficients):
        return f"not used, since they do not help significantly in {deals // 2} held-out deals"
    digits = interval(found.mean, low, high, lambda value: signed(value, 3))
    return (
        f"{name} {digits} · {games:,} games are worth {number(games * found.factor)} "
        f"({number(found.factor)} times; draws of {', '.join(draws)})"
    )
