"""Floor of a run: the exploitability at which its regularization holds self-play."""

from collections.abc import Iterator

from unstable.commands.prepare import exact_games
from unstable.config import AlgorithmConfig, ConfigError, RunConfig
from unstable.games.game import Game
from unstable.records.text import fixed
from unstable.solving.fixed_point import floor_of
from unstable.solving.tree import grow

MOST_NODES, MOST_S = 10_000, 5.0
"""Positions and seconds within which a tree is grown; Leduc has 9,451 and takes two seconds."""
_LEAST = 0.01
"""Least floor that is worth a line, in outcome."""


def floor_line(config: RunConfig) -> str:
    """Return a line on the exploitability to which constant regularization leads.

    It is "" without such a term, if advantages are not in units of reward, or if no game has a
    small tree or a floor worth a line. Takes a few seconds per game.
    """
    terms = list(_constant_terms(config.learner.algorithm))
    scale = _reward_per_outcome(config)
    if not terms or not scale:
        return ""
    weight = sum(each for _, each in terms) / scale
    floors = ", ".join(_floors(config, weight))
    what = " and ".join(name for name, _ in terms)
    moves = "set learner.algorithm.reference.ema to 0.98, or " if "reference" in what else "set "
    return floors and (
        f"{what}: self-play from uniform play converges to an exploitability of {floors}; "
        f"{moves}learner.algorithm.decay.rule to linear"
    )


def _constant_terms(algorithm: AlgorithmConfig) -> Iterator[tuple[str, float]]:
    """Yield the terms of the loss that pull towards uniform play until the end, and their weight.

    The estimate k3 has the gradient of another divergence, and a teacher another fixed point.
    """
    if algorithm.decay.rule != "constant" or algorithm.uses_teacher:
        return
    if algorithm.uses_exact_kl and not algorithm.reference.moved:
        kl = algorithm.kl_loss
        yield f"learner.algorithm.kl_loss = {kl:g} with a fixed reference", kl
    if entropy := algorithm.entropy:
        yield f"learner.algorithm.entropy = {entropy:g} without decay", entropy


def _reward_per_outcome(config: RunConfig) -> float:
    """Return the advantage of one more outcome; 0 if other terms or normalization change it."""
    algorithm, rewards = config.learner.algorithm, config.buffer.rewards
    by_critic = getattr(algorithm, "critic", None) or algorithm
    plain = getattr(by_critic, "normalize", None) in ("none", "center")
    plain = (
        plain or algorithm.name in ("rloo", "vrpo") or getattr(algorithm, "scale", None) == "none"
    )
    alone = len(rewards) == 1 and rewards[0].term == "outcome" and algorithm.reward_clip is None
    return max(0.0, rewards[0].weight) if plain and alone else 0.0


def _floors(config: RunConfig, weight: float) -> Iterator[str]:
    """Yield the exploitability in each game with a small tree."""
    for key in exact_games(config):
        game = config.game_by_key[key]
        try:
            tree = grow(game, MOST_NODES, MOST_S)
        except ConfigError:  # too large
            continue
        scale = Game(game, seed=0).payoff_scale
        floor = floor_of(tree, weight, scale)
        if floor is not None and floor >= _LEAST * scale:
            yield f"{fixed(floor, 3)} in {key} (NashConv {fixed(2 * floor, 3)})"
