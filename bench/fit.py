"""Cost of the fit of all games, and of the averages over a tournament's payoffs.

Games of versions with rising strengths, each against any other, in three envs with draws; counted
from finished games in memory, without reading files.

Run: python -m bench.fit [--games 100000] [--versions 200] [--players 20] [--rounds 3]
"""

import math
import random
from collections.abc import Sequence
from statistics import median
from time import perf_counter

import numpy as np

from bench import parser
from unstable.league.fit import Ranking, fit
from unstable.studies.tournament.metagame import alpha_rank, nash_average, nash_shares


def played(count: int, versions: int) -> list[Ranking]:
    """Draw games from Davidson's model: a version is stronger by 0.01 than the one before it."""
    chance, found = random.Random(0), []
    for _ in range(count):
        one, other = chance.sample(range(versions), 2)
        difference = (one - other) / 100 + 0.2
        weights = (math.exp(difference / 2), 0.3, math.exp(-difference / 2))
        ranks = chance.choices(((0, 1), (0, 0), (1, 0)), weights)[0]
        env = f"env-{chance.randrange(3)}"
        found.append(Ranking(env, (f"main@{one}", f"main@{other}"), ranks, chance.random() < 0.03))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    known = {"games": 100_000, "versions": 200, "players": 20, "rounds": 3}
    options = parser(__doc__, **known).parse_args(argv)
    games = played(options.games, options.versions)
    noise = np.random.default_rng(0).normal(size=(options.players, options.players))
    payoffs, errors = (noise - noise.T) / 8, np.full(noise.shape, 0.05)
    measured = {
        f"fit of {options.games:,} games of {options.versions} versions": lambda: fit(games),
        f"Nash average of {options.players} players": lambda: nash_average(payoffs),
        "intervals of its shares": lambda: nash_shares(payoffs, errors, seed=0),
        f"alpha-rank of {options.players} players": lambda: alpha_rank(payoffs),
    }
    for what, work in measured.items():
        seconds = []
        for _ in range(options.rounds):
            began = perf_counter()
            work()
            seconds.append(perf_counter() - began)
        print(f"{what}: {median(seconds):.3f} s (of {options.rounds}, {max(seconds):.3f} at most)")


if __name__ == "__main__":
    main()
