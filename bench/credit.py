"""Accuracy of credit assignment methods, in games where the true advantage of every move is known.

    python -m bench.credit FOLDER [--config CONFIG] [--updates 20] [--batches 8] [--critic 40]
    python -m bench.credit FOLDER --during 20 100 200 [--config CONFIG]

A policy that has learned for `--updates` is frozen. For each estimator a separate run plays it
against itself and computes advantages like any run; they are read from its files. Critics first
learn for `--critic` batches. The game's tree gives the true advantage A of every move. An estimate
is c + s A + error, with s and c by least squares. The error has two parts:

- bias is the part that a move has in every game, relative to the other moves of its decision: an
  error that the policy would learn however much it played;
- noise is the rest: the spread of a move's estimates, and the part common to all moves of a
  decision.

Both are root mean squares, divided by the root mean square of s A. s is scaled by the spread of the
estimates, so that it is their correlation with A. The square of the bias is the product of a move's
mean errors in two halves of the games, which share no deal: without a bias it is 0 on average, so
it may be negative, which a minus sign before its root shows. Illegal answers are left out. The
table shows the mean over 20 random halvings; intervals are the middle 95 % of 400 bootstrap samples
of the games in random halves, of whole groups if groups are compared.

With `--during`, each estimator instead trains the policy with the config's regularization, and the
table compares the advantages of these updates with exact ones of the version that played them.
"""

import argparse
import asyncio
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.judging import asked_of
from unstable.collectors.players.model import ModelPlayer, legal_answers
from unstable.commands.prepare import alone, exact_games, prepare
from unstable.commands.train import train
from unstable.config import GameConfig, RunConfig, load
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.games.game import Game
from unstable.learners.advantages import generalized_advantages
from unstable.models.adapters import read_adapter
from unstable.models.base import load_model, load_tokenizer, stop_token_ids
from unstable.records.folder import RunFolder
from unstable.records.games import answer_tokens
from unstable.records.reading import Skipped, read_records
from unstable.records.shapes import SampleRecord
from unstable.runtime.local import LocalActor
from unstable.solving.best_response import Policy, PolicyValues
from unstable.solving.exploiter import Exploiter, policy_by
from unstable.solving.solver import LocalSolver
from unstable.solving.tree import Node, Shown, Tree
from unstable.types import PlayerId, SampledTokens, Shares

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Masks ratios of 1: only the critic has a gradient, at any learning rate.
STILL = {"importance": "mask", "importance_floor": 1e8, "importance_cap": 1e9}


def of_critic(name: str, **critic: Any) -> dict[str, Any]:
    """Return an algorithm with a critic, in which only the critic learns."""
    return {"name": name, **STILL, "critic": {"normalize": "none", "learning_rate": 1e-2, **critic}}


ESTIMATORS: dict[str, dict[str, Any]] = {
    "role baseline": {"name": "reinforce", "normalize": "none"},
    "group of 8, z-score": {"name": "grpo"},
    "group of 8, leave-one-out": {"name": "rloo"},
    "branches of 8, leave-one-out": {"name": "rloo"},
    "GAE 0.95, V a layer": of_critic("ppo"),
    "GAE 0.95, V a LoRA": of_critic("ppo", kind="adapter"),
    "Q of the whole state": {"name": "vrpo"},
    "Q of the whole state, a LoRA": {"name": "vrpo", "critic": {"kind": "adapter"}},
    "Q of the seat's view": {"name": "vrpo", "critic": {"sees": "seat"}},
}
"""The learner's algorithm of each estimator."""
CRITICS = ("ppo", "vrpo")
REGULARIZATION = {"kl_loss", "entropy", "reference", "decay"}
JUDGES_NOISE = 2.0  # in standard deviations of the true advantages
SPLITS, BOOTSTRAPS = 20, 400


class Turns(NamedTuple):
    """Turns [S] of a run's samples, by trajectory, with the truth about each."""

    advantages_S: Floats
    truth_S: Floats  # exact advantage Q - V
    actions_S: Floats  # the tree's Q and V
    values_S: Floats
    rewards_S: Floats  # paid at a trajectory's last turn
    trajectories_S: Ints
    turns_S: list[int]
    moves_S: Ints  # index of prompt and answer
    decisions_S: Ints  # index of the prompt
    clusters_S: Ints  # index of the game or its group
    kl_S: Floats  # log ratio of the expert's to the policy's probability of the move, in nats

    def first(self, count: int) -> "Turns":
        """Return the first `count` turns."""
        return Turns(*(column[:count] for column in self))  # type: ignore[arg-type]


def play(base: str, still: dict[str, Any], folder: Path, name: str, steps: int) -> RunFolder:
    """Run with the policy frozen, so that only a critic learns."""
    algorithm = ESTIMATORS[name]
    options = still | {"learner.algorithm": algorithm, "loop.steps": steps}
    if algorithm["name"] != "ppo":  # whose critic steps at the policy's rate
        options["learner.learning_rate"] = 1e-12
    if name.startswith("branches"):
        options["groups.by"] = "branch"
    return trained(base, options, folder)


def learning(base: str, options: dict[str, Any], folder: Path, name: str, steps: int) -> RunFolder:
    """Run with the policy learning by an estimator, and keep all versions."""
    regular = load(base).learner.algorithm.model_dump(include=REGULARIZATION, exclude_unset=True)
    kept = {field: value for field, value in ESTIMATORS[name].items() if field not in STILL}
    run = {"learner.algorithm": regular | kept, "loop.steps": steps, "tracking.keep_every": 1}
    if name.startswith("branches"):
        run["groups.by"] = "branch"
    return trained(base, options | run, folder)


def trained(base: str, options: dict[str, Any], folder: Path) -> RunFolder:
    """Return the run in the folder, training it first unless it exists."""
    if folder.exists():
        return RunFolder(folder)
    if options.get("learner.algorithm", {}).get("name") == "vrpo":  # which needs the state
        options = options | {"sampling.moves": "auto"}
    return train(load(base, options | {"tracking.run_dir": str(folder)}))


@dataclass(frozen=True, slots=True)
class Credit:
    """A decision's true values, in payoffs of the seat that moves, given its information."""

    reach: float  # expected number of visits per game
    value: float  # V before the move
    actions: tuple[float, ...]  # Q of each legal action

    @property
    def advantages(self) -> tuple[float, ...]:
        """Advantage Q - V of each legal action."""
        return tuple(each - self.value for each in self.actions)


class Worth(NamedTuple):
    """Values of a prompt for its seat, and of each legal answer to it, in payoffs."""

    value: float
    answers: dict[tuple[int, ...], float]  # Q, by token ids


Credits = dict[tuple[int, ...], Worth]
"""Worths by prompt ids, of prompts that play reaches."""


def credit(tree: Tree, policy: Policy, *, forfeits: bool) -> dict[Shown, Credit]:
    """Return the credit of each information set that the policy reaches, in every seat.

    The seat cannot distinguish positions with the same observation: their values are weighted by
    the probability that the policy reaches them. Illegal mass is as in `best_response.assess`: if
    it forfeits, it is part of V.
    """
    values = PolicyValues(tree, policy, forfeits)
    positions: dict[Shown, list[Credit]] = defaultdict(list)
    for node, reach in reached(values):
        if node.seat >= 0 and node.children and reach:
            value, *actions = (values.of(each)[node.seat] for each in (node, *node.children))
            positions[node.key].append(Credit(reach, value, tuple(actions)))
    return {shown: joined(found) for shown, found in positions.items()}


def joined(parts: Sequence[Credit]) -> Credit:
    """Combine positions with the same actions that the seat cannot distinguish."""
    reach = sum(each.reach for each in parts)
    value = sum(each.reach * each.value for each in parts) / reach
    rows = zip(*(each.actions for each in parts), strict=True)
    shares = [each.reach / reach for each in parts]
    actions = (sum(map(mul, shares, row)) for row in rows)
    return Credit(reach, value, tuple(actions))


def action_advantages(turns: Turns, decay: float) -> Floats:
    """Compute the advantages [S] of the exact Q and V, corrected by later errors.

    A = Q - V + decay * sum over k of decay^k * (reward + next V - Q), k turns later: Expected
    SARSA(lambda), as in VRPO, https://arxiv.org/abs/2605.19235.
    """
    controls_S = turns.actions_S - turns.values_S
    # GAE gives the errors relative to V; subtracting the controls gives the errors relative to Q.
    errors_S = generalized_advantages(
        turns.rewards_S - controls_S,
        turns.values_S,
        turns.trajectories_S,
        turns.turns_S,
        gamma=1.0,
        decay=decay,
    )
    return controls_S + decay * errors_S


def reached(values: PolicyValues) -> Iterator[tuple[Node, float]]:
    """Yield each position of the tree, parents first, with the probability of reaching it."""
    reaches: dict[int, float] = defaultdict(float)
    reaches[id(values.tree.root)] = 1.0
    for node in values.tree.parents_first():
        yield node, reaches[id(node)]
        if node.children:
            probabilities, _ = values.probabilities(node)
            for p, child in zip(probabilities, node.children, strict=True):
                reaches[id(child)] += reaches[id(node)] * p


async def worths(game: GameConfig, model: ModelPlayer, adapter: str) -> Credits:
    """Return the true value of each answer to each prompt if the model plays all seats.

    A prompt shared by several decisions gets their mean, weighted by reach.
    """
    solver = LocalSolver(game)
    exploiter = Exploiter(game, model, solver=solver)
    probabilities = await exploiter.decide(adapter, 0, 1)
    found = await solver.ask(partial(_credit_by, probabilities=probabilities))
    credits: Credits = {}
    for prompt_ids, actions, numbers in await exploiter.questions():
        if known := [each for number in numbers if (each := found[number]) is not None]:
            answers = legal_answers(model.prompts, actions, model.max_tokens)
            own = dict(zip(map(tuple, answers), joined(known).actions, strict=True))
            credits[tuple(prompt_ids)] = Worth(joined(known).value, own)
    return credits


def _credit_by(tree: Tree, probabilities: Shares) -> list[Credit | None]:
    """Return the credit of each decision, by its number; None if no game reaches it."""
    found = credit(tree, policy_by(tree, probabilities), forfeits=True)
    return [found.get(node.key) for node in tree.decisions]


async def truth(config: RunConfig) -> tuple[Credits, float]:
    """Return the value of each answer under the initial policy, and a reward's payoff."""
    (key,) = exact_games(config.updated({"eval.exploitability.every": 1}))
    model, tokenizer = load_model(config.model), load_tokenizer(config.model)
    engine = EmbeddedEngine(model, stop_token_ids(model, config.model, tokenizer), max_requests=256)
    actor = LocalActor(config, RunFolder(Path()), engine, tokenizer)
    player = PlayerId.policy(0)
    await actor.publish(player, read_adapter(Path(config.model.init), player.name))
    game = config.game_by_key[key]
    asked = asked_of(engine, actor.collector.prompts[key], config.sampling.max_tokens)
    found = await worths(game, asked, player.name)
    await actor.close()
    return found, game.payoff_scale or Game(game, 0).stakes or 1.0


def read(paths: Sequence[Path], found: Credits, scale: float) -> Turns:
    """Return the turns of these files of samples, without illegal answers."""
    numbers: dict[object, int] = {}
    clusters: dict[object, int] = {}
    rows: list[tuple[Any, ...]] = []
    for path in paths:
        for record in read_records(path, SampleRecord, Skipped()):
            prompt = tuple(record.sampled.prompt_ids)
            answer = tuple(answer_tokens(record.sampled).token_ids)
            worth = found[prompt]
            if (action := worth.answers.get(answer)) is None:
                continue
            group, game = ("group", record.group), record.game
            cluster = clusters.setdefault(group, clusters.get(game, len(clusters)))
            clusters.setdefault(game, cluster)
            rows.append(
                (
                    record.advantage,
                    (action - worth.value) / scale,
                    action / scale,
                    worth.value / scale,
                    record.outcome,
                    numbers.setdefault((game, record.seat), len(numbers)),
                    record.turn,
                    numbers.setdefault((prompt, answer), len(numbers)),
                    numbers.setdefault(prompt, len(numbers)),
                    cluster,
                    expert_ratio(record.sampled),
                )
            )
    floats = np.array([row[:5] for row in rows]).T
    trajectories, turns, moves, decisions, cluster_of = np.array([row[5:10] for row in rows]).T
    last: dict[int, int] = {}
    for place, (owner, turn) in enumerate(zip(trajectories.tolist(), turns.tolist(), strict=True)):
        if owner not in last or turns[last[owner]] < turn:
            last[owner] = place
    rewards_S = np.zeros(len(rows))
    rewards_S[[*last.values()]] = floats[4][[*last.values()]]
    kl_S = np.array([row[10] for row in rows])
    known = rewards_S, trajectories, turns.tolist(), moves, decisions, cluster_of, kl_S
    return Turns(*floats[:4], *known)  # type: ignore[call-arg]


def expert_ratio(sampled: SampledTokens) -> float:
    """Return the log ratio of the expert's probability of the move to the policy's.

    The expert is mixed with 1 % of uniform moves, so that no move is impossible.
    """
    answer, moves = answer_tokens(sampled), sampled.moves
    share = next(expert for token_ids, expert in moves if token_ids == answer.token_ids)
    if share is None:  # the run records the whole state instead
        return math.nan
    mixed = 0.99 * share + 0.01 / len(moves)
    return math.log(mixed) - math.fsum(each for each in answer.logprobs if each is not None)


def computed(turns: Turns) -> dict[str, Floats]:
    """Return estimates that no run has: by the tree's V and Q, and with a judge of each turn."""
    values_S, steps = turns.values_S, (turns.trajectories_S, turns.turns_S)
    noise_S = np.random.default_rng(0).normal(size=len(values_S)) * turns.truth_S.std()
    scores_S = turns.truth_S + JUDGES_NOISE * noise_S

    def gae(decay: float) -> Floats:
        return generalized_advantages(turns.rewards_S, values_S, *steps, gamma=1.0, decay=decay)

    return {
        "GAE 0.95, V exact": gae(0.95),
        "GAE 1, V exact": gae(1.0),
        "Q exact, lambda 0.95": action_advantages(turns, 0.95),
        "Q exact, lambda 1": action_advantages(turns, 1.0),
        "reverse KL to the expert": turns.kl_S,
        "role baseline and a judge": turns.advantages_S + scores_S,
        "a judge alone": scores_S,
    }


def figures(estimates_S: Floats, turns: Turns, halves: Sequence[Floats]) -> Floats:
    """Return correlation, squared bias and squared noise, given each half's weights of turns."""
    weights_S = halves[0] + halves[1]

    def parts(those_S: Floats) -> tuple[Floats, float, Floats]:
        """Return variances of truth and estimates with their covariance; the slope; the errors."""
        total = those_S.sum()
        truth_S = turns.truth_S - those_S @ turns.truth_S / total
        centred_S = estimates_S - those_S @ estimates_S / total
        products = truth_S**2, centred_S**2, truth_S * centred_S
        variances = np.array([those_S @ each for each in products]) / total
        slope = variances[2] / variances[0]
        return variances, slope, centred_S - slope * truth_S

    def own(half_S: Floats) -> Floats:
        """Return the mean error of each turn's move minus its decision's; NaN without any.

        Uses the half's own slope: a common slope would tie its errors to the other half's.
        """
        means, errors_S = [], parts(half_S)[2]
        for keys_S in (turns.moves_S, turns.decisions_S):
            counts = np.bincount(keys_S, half_S)
            sums = np.bincount(keys_S, half_S * errors_S)
            means.append(np.divide(sums, counts, where=counts > 0, out=np.full_like(sums, np.nan)))
        return np.asarray(means[0][turns.moves_S] - means[1][turns.decisions_S])

    variances, slope, errors_S = parts(weights_S)
    products_S = own(halves[0]) * own(halves[1])
    known_S = weights_S * np.isfinite(products_S)
    bias = known_S @ np.nan_to_num(products_S) / max(known_S.sum(), 1e-12)
    noise = weights_S @ errors_S**2 / weights_S.sum() - bias
    signal = slope**2 * variances[0]
    correlation = variances[2] / math.sqrt(variances[0] * max(variances[1], 1e-300))
    return np.array([correlation, bias / signal, max(0.0, noise) / signal])


def split(clusters_S: Ints, chance: np.random.Generator, *, again: bool) -> list[Floats]:
    """Return two halves of the clusters, as weights of turns; `again` resamples each."""
    count = int(clusters_S.max()) + 1
    order, found = chance.permutation(count), []
    for part in (order[::2], order[1::2]):
        weights = np.zeros(count)
        even = np.full(len(part), 1 / len(part))
        weights[part] = chance.multinomial(len(part), even) if again else 1
        found.append(weights[clusters_S])
    return found


def row(name: str, estimates_S: Floats, turns: Turns) -> str:
    """Return one line of the table."""
    clusters_S = np.unique(turns.clusters_S, return_inverse=True)[1]
    chance = np.random.default_rng(1)

    def rooted(found: Floats) -> Floats:
        return np.concatenate([found[:1], np.copysign(np.sqrt(abs(found[1:])), found[1:])])

    def drawn(count: int, *, again: bool) -> Floats:
        splits = (split(clusters_S, chance, again=again) for _ in range(count))
        return np.array([figures(estimates_S, turns, halves) for halves in splits])

    found = rooted(drawn(SPLITS, again=False).mean(axis=0))
    lows, highs = map(rooted, np.percentile(drawn(BOOTSTRAPS, again=True), [2.5, 97.5], axis=0))
    cells = [
        f"{value:.2f} ({low:.2f} to {high:.2f})"
        for value, low, high in zip(found, lows, highs, strict=True)
    ]
    ratio = 1 / max(found[2], 1e-9) ** 2
    return f"| {name} | {' | '.join(cells)} | {ratio:.3g} |"


def measured(still: dict[str, Any], args: argparse.Namespace) -> list[str]:
    """Return the table's lines, for the policy that these options freeze."""
    config = prepare(alone(load(args.config, still)), learner=False).config
    found, scale = asyncio.run(truth(config))
    runs: dict[str, Turns] = {}
    for number, (name, algorithm) in enumerate(ESTIMATORS.items()):
        if args.only is not None and number not in args.only:
            continue
        steps = args.batches + args.critic * (algorithm["name"] in CRITICS)
        folder = play(args.config, still, args.folder / f"estimator-{number}", name, steps)
        files = [path for _, path in folder.sample_files()[-args.batches :]]
        runs[name] = read(files, found, scale)
    count = min(len(turns.turns_S) for turns in runs.values())
    runs = {name: turns.first(count) for name, turns in runs.items()}
    lines = [row(name, turns.advantages_S, turns) for name, turns in runs.items()]
    plain = runs["role baseline"]
    lines += [row(name, estimates_S, plain) for name, estimates_S in computed(plain).items()]
    games = defaultdict(set)
    for name, turns in runs.items():
        games[len(np.unique(turns.clusters_S))].add(name)
    print(f"{count} turns of each; standard deviation of advantages {plain.truth_S.std():.3f}")
    print("independent games or groups: " + ", ".join(f"{n} ({len(x)})" for n, x in games.items()))
    return lines


def followed(options: dict[str, Any], args: argparse.Namespace) -> list[str]:
    """Return the table's lines by estimator and update, for policies that learn."""
    lines = []
    for number, name in enumerate(ESTIMATORS):
        if args.only is not None and number not in args.only:
            continue
        last = max(args.during)
        folder = learning(args.config, options, args.folder / f"during-{number}", name, last)
        files = dict(folder.sample_files())
        for update in args.during:
            start = {"model.init": str(folder.checkpoint(update - 1))}
            config = prepare(alone(load(args.config, options | start)), learner=False).config
            turns = read([files[update]], *asyncio.run(truth(config)))
            lines.append(row(f"{name}, update {update}", turns.advantages_S, turns))
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the runs; existing runs are kept")
    parser.add_argument("--config", default="bench/ppo_leduc.yaml")
    parser.add_argument("--updates", type=int, default=20, help="updates of the policy")
    parser.add_argument("--batches", type=int, default=8, help="measured batches")
    parser.add_argument("--critic", type=int, default=40, help="batches that train critics first")
    parser.add_argument("--during", type=int, nargs="+", help="updates of learning policies, >= 2")
    parser.add_argument("--batch_size", type=int, help="turns; default: the config's")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of estimators, including 0")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    options: dict[str, Any] = {"seed": args.seed, "eval.exploitability.every": 0}
    options["sampling.moves"] = "expert"
    if args.batch_size is not None:
        options["learner.batch_size"] = args.batch_size
    if args.during:
        lines = followed(options, args)
    else:
        run = options | {"loop.steps": args.updates}
        folder = trained(args.config, run, args.folder / "policy")
        start = {"model.init": str(folder.checkpoint(args.updates)), "seed": args.seed + 1000}
        rate = {"schedule": "constant", "final_rate": 0.0, "decay_fraction": 1.0}
        lines = measured(options | start | {f"learner.{k}": v for k, v in rate.items()}, args)
    print("| estimator | correlation | bias | noise | signal to noise |")
    print("|---|---|---|---|---|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
