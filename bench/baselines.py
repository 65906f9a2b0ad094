"""Exact exploitability of OpenSpiel's solvers, at the decisions of a run of `bench/untuned.sh`.

Exploitability is NashConv / 2 for any number of seats, in payoffs, as everywhere in this package
(OpenSpiel divides by the number of seats). Decisions are those of all seats that a solver visits:

- CFR+ visits all decisions of the tree once per seat and iteration, without randomness.
- External and outcome sampling (MCCFR) run in C++, which does not count. A pilot in Python with a
  fiftieth of the decisions counts them per iteration. Counts at 60,000 decisions of three games
  differed by at most 3 % from this, but by 12 % for external sampling in liar's dice.
- Deep CFR (https://arxiv.org/abs/1811.00164) is the neural baseline, on torch, with the networks of
  OpenSpiel's example and an iteration per 3,000 decisions of a seat (`pip install dm-tree`).

Results are added to `--out` after each cell; cells that it has are not measured again. Seconds are
CPU time of the solver, without evaluation.

Run: OMP_NUM_THREADS=1 python -m bench.baselines [--games kuhn leduc] [--decisions 300000]
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import pyspiel
from open_spiel.python.algorithms.external_sampling_mccfr import ExternalSamplingSolver
from open_spiel.python.algorithms.outcome_sampling_mccfr import OutcomeSamplingSolver

from bench import parser
from unstable.records.files import write_whole
from unstable.records.text import fixed, markdown_table, number

GAMES = {
    "kuhn": "kuhn_poker",
    "kuhn3": "kuhn_poker(players=3)",
    "leduc": "leduc_poker(suit_isomorphism=True)",
    "goofspiel4": "goofspiel(num_cards=4,imp_info=True,points_order=descending)",
    "goofspiel5": "goofspiel(num_cards=5,imp_info=True,points_order=descending)",
    "liars_dice4": "liars_dice(numdice=1,dice_sides=4)",
    "liars_dice6": "liars_dice(numdice=1,dice_sides=6)",
    "dark_hex2": "dark_hex(num_rows=2,num_cols=2)",
    "oshi_zumo4": "oshi_zumo(coins=4,size=1,horizon=4)",
}
"""Games of `bench/untuned.sh` and small ones; Connect Four has above 2.3 million histories."""
PILOT = 50
PER_ITERATION = 3000
Table = dict[str, list[tuple[int, float]]]
"""Probabilities of actions by information state."""


class Histories(NamedTuple):
    """Size of a game, and a state at each of its information states."""

    decisions: int
    states: dict[str, Any]


class Solved(NamedTuple):
    """Average policy of a solver, and the decisions that it visited."""

    policy: Callable[[Any], Mapping[int, float]]
    visited: float
    solver: Any = None  # the policy reads its memory


class Unsolved(Exception):
    """Reason for which a solver cannot be measured in a game."""


class Walks:
    """Counter of the decisions among the states that a solver's recursive method visits."""

    def __init__(self, solver: Any, method: str) -> None:
        self.count, self._visit = 0, getattr(solver, method)
        setattr(solver, method, self)

    def __call__(self, state: Any, *args: Any, **named: Any) -> Any:
        self.count += state.current_player() >= 0
        return self._visit(state, *args, **named)


def histories(game: Any) -> Histories:
    """Visit all histories of a game."""
    decisions, states, waiting = 0, dict[str, Any](), [game.new_initial_state()]
    while waiting:
        state = waiting.pop()
        if state.current_player() >= 0:
            decisions += 1
            states.setdefault(state.information_state_string(), state)
        waiting += [state.child(action) for action in state.legal_actions()]
    return Histories(decisions, states)


def exploitability(game: Any, table: Table) -> float:
    """Return NashConv / 2, in payoffs."""
    return float(pyspiel.nash_conv(game, table)) / 2


def table_of(found: Histories, policy: Callable[[Any], Mapping[int, float]]) -> Table:
    """Return a policy's probabilities, normalized over the legal actions."""
    table = {}
    for key, state in found.states.items():
        given = policy(state)
        mass = [max(float(given.get(action, 0)), 0) for action in state.legal_actions()]
        whole = sum(mass)
        shares = [each / whole if whole else 1 / len(mass) for each in mass]
        table[key] = [*zip(state.legal_actions(), shares, strict=True)]
    return table


def uniform(game: Any, found: Histories, decisions: int, seed: int) -> Solved:
    return Solved(lambda state: dict.fromkeys(state.legal_actions(), 1.0), 0)


def cfr_plus(game: Any, found: Histories, decisions: int, seed: int) -> Solved:
    each = found.decisions * game.num_players()
    if decisions < each:
        raise Unsolved(f"an iteration visits {each:,} decisions")
    solver = pyspiel.CFRPlusSolver(game)
    for _ in range(decisions // each):
        solver.evaluate_and_update_policy()
    return Solved(solver.average_policy().action_probabilities, decisions // each * each, solver)


def external(game: Any, found: Histories, decisions: int, seed: int) -> Solved:
    pilot = ExternalSamplingSolver(game)
    solver = pyspiel.ExternalSamplingMCCFRSolver(game, seed=seed)
    return sampled(solver, pilot, "_update_regrets", decisions, seed)


def outcome(game: Any, found: Histories, decisions: int, seed: int) -> Solved:
    solver = pyspiel.OutcomeSamplingMCCFRSolver(game, seed=seed)
    return sampled(solver, OutcomeSamplingSolver(game), "_episode", decisions, seed)


def sampled(solver: Any, pilot: Any, method: str, decisions: int, seed: int) -> Solved:
    """Run a solver for as many iterations as its pilot predicts for the decisions."""
    np.random.seed(seed)  # OpenSpiel draws from the global generator
    visits, played = Walks(pilot, method), 0
    while visits.count < decisions / PILOT:
        pilot.iteration()
        played += 1
    iterations = max(1, round(decisions * played / visits.count))
    for _ in range(iterations):
        solver.run_iteration()
    average = solver.average_policy().action_probabilities
    return Solved(average, iterations * visits.count / played, solver)


def deep_cfr(game: Any, found: Histories, decisions: int, seed: int) -> Solved:
    if not game.get_type().provides_information_state_tensor:
        raise Unsolved("no tensor of the information state")
    try:
        from open_spiel.python.pytorch.deep_cfr import DeepCFRSolver
    except ImportError:
        raise Unsolved("not installed: pip install dm-tree") from None
    batch = {"batch_size_advantage": 256, "batch_size_strategy": 256, "memory_capacity": 100_000}
    steps = {"policy_network_train_steps": 2500, "advantage_network_train_steps": 375}
    solver = DeepCFRSolver(game, (64,), (64,), learning_rate=1e-3, seed=seed, **batch, **steps)
    visits, seats = Walks(solver, "_traverse_game_tree"), game.num_players()
    rounds = max(1, decisions // (PER_ITERATION * seats)) * seats
    for step in range(rounds):  # as `DeepCFRSolver.solve`, until the decisions are used up
        seat = step % seats
        while visits.count < decisions * (step + 1) / rounds:
            solver._traverse_game_tree(solver._root_node, seat)
        solver._reinitialize_advantage_network(seat)
        solver._learn_advantage_network(seat)
        solver._iteration += seat == seats - 1
    solver._learn_strategy_network()
    return Solved(solver.action_probabilities, visits.count)


SOLVERS: dict[str, Callable[[Any, Histories, int, int], Solved]] = {
    **{"uniform": uniform, "CFR+": cfr_plus, "external": external},
    **{"outcome": outcome, "deep": deep_cfr},
}
TITLES = {"external": "external sampling", "outcome": "outcome sampling", "deep": "Deep CFR"}


def measure(name: str, solver: str, decisions: int, seed: int, known: dict[str, Any]) -> Any:
    """Return a cell's record: exploitability, decisions visited and seconds, or the reason."""
    if name not in known:
        game = pyspiel.load_game_as_turn_based(GAMES[name])
        known[name] = game, histories(game)
    game, found = known[name]
    began = process_time()
    try:
        solved = SOLVERS[solver](game, found, decisions, seed)
    except Unsolved as reason:
        return {"reason": str(reason)}
    seconds = process_time() - began
    value = exploitability(game, table_of(found, solved.policy))
    return {"exploitability": value, "visited": solved.visited, "seconds": round(seconds, 2)}


def shown(cells: Sequence[Any]) -> str:
    """Format a solver's cells in a game: a figure per seed, and the mean of seconds."""
    if not cells or "reason" in cells[0]:
        return "–" if not cells else f"– ({cells[0]['reason']})"
    figures = ", ".join(fixed(cell["exploitability"], 3) for cell in cells)
    seconds = sum(cell["seconds"] for cell in cells) / len(cells)
    return f"{figures} ({number(seconds)} s)" if cells[0]["visited"] else figures


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, decisions=300_000, seeds=3, out="outputs/baselines.json")
    options.add_argument("--games", nargs="+", choices=GAMES, default=[*GAMES])
    options.add_argument("--solvers", nargs="+", choices=SOLVERS, default=[*SOLVERS])
    arguments = options.parse_args(argv)
    out, known = Path(arguments.out), dict[str, Any]()
    out.parent.mkdir(parents=True, exist_ok=True)
    cells: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
    rows = []
    for name in arguments.games:
        row = [f"`{GAMES[name]}`"]
        for solver in SOLVERS:
            count = 1 if solver in ("uniform", "CFR+") else arguments.seeds
            decisions = 0 if solver == "uniform" else arguments.decisions
            keys = [f"{name} {solver} {decisions} {seed}" for seed in range(1, count + 1)]
            for seed, key in enumerate(keys, start=1):
                if solver in arguments.solvers and key not in cells:
                    cells[key] = measure(name, solver, decisions, seed, known)
                    write_whole(out, json.dumps(cells, indent=1).encode())
            row.append(shown([cells[key] for key in keys if key in cells]))
        rows.append(row)
    print(markdown_table(["game", *(TITLES.get(each, each) for each in SOLVERS)], rows))


if __name__ == "__main__":
    main()
