"""How long playing and learning an update take: estimates by figures of the model and the card."""

import math
from typing import NamedTuple

from unstable.config import RunConfig
from unstable.models.shape import ModelShape
from unstable.planning import figures
from unstable.planning.figures import Card
from unstable.planning.memory import DTYPE_BYTES, cache_bytes, weight_bytes


class Pace(NamedTuple):
    """Seconds an update, and how many games there are for the actors' places."""

    play_s: float
    learn_s: float
    games: float  # in flight, of all actors
    places: int

    def update_s(self, *, sync: bool) -> float:
        """By turns, or at once."""
        return self.play_s + self.learn_s if sync else max(self.play_s, self.learn_s)


def games_at_once(config: RunConfig, *, sync: bool) -> float:
    """Games that may be in flight, by what is learned from before it is too stale."""
    turns = config.learner.batch_size if sync else config.buffer_capacity
    return max(1.0, turns / figures.GAME_TURNS / _turns(config).trained)


class _Turns(NamedTuple):
    """Shares of a training game's turns."""

    trained: float
    played: float  # by engines


def _turns(config: RunConfig) -> _Turns:
    """Of two seats, one is trained against past versions and others, which may be programs."""
    draw = config.opponents.draw
    fixed = draw.fixed * bool(config.opponents.fixed)
    games = (draw.self + draw.past + fixed) or 1.0
    others = (draw.past + fixed) / games
    return _Turns(trained=1 - others / 2, played=1 - fixed / games / 2)


def played_turns(config: RunConfig) -> float:
    """Turns that engines answer for an update, evaluations among them, against programs."""
    shares, judged = _turns(config), config.eval
    training = config.learner.batch_size * shares.played / shares.trained
    kinds = len(config.games) * len(judged.opponents) * len(judged.temperature)
    games = judged.games * kinds / judged.every if judged.every else 0.0
    return training + games * figures.GAME_TURNS / 2


def pace(
    config: RunConfig,
    shape: ModelShape,
    dtype: str,
    card: Card,
    *,
    typical: int,
    actors: int,
    per_card: int,
    places: int,
    ranks: int,
    pass_tokens: int,
    sync: bool,
    shared: bool,
) -> Pace:
    """The pace of so many actors, with so many places each, and learner ranks, at least one.

    `typical` is the length of prompt and answer in tokens, `pass_tokens` what is put through at a
    time. On shared cards each is slower, unless they take turns.
    """
    slower = figures.SHARED if shared and not sync else 1
    games = min(games_at_once(config, sync=sync), actors * places)
    span = config.actors.tensor_parallel
    weights = read_bytes(shape, dtype, config.model.quantize)
    step = slower * step_s(shape, dtype, card, weights, games / actors, typical, per_card) / span
    turns = config.learner.batch_size
    answer = max(1.0, figures.ANSWER_LENGTH * config.sampling.max_tokens)
    tokens = turns * config.learner.epochs * typical
    passes = math.ceil(tokens / ranks / max(1, pass_tokens))
    launches = passes * shape.layers * figures.LAUNCH_S
    learn = max(tokens / ranks * token_s(shape, card), launches)
    if config.model.quantize != "none":  # made dense forward and back
        learn += 2 * passes * weights / (figures.BANDWIDTH_USED * card.bandwidth)
    play = played_turns(config) * answer * step / games
    return Pace(play, slower * learn, games, actors * places)


def read_bytes(shape: ModelShape, dtype: str, quantize: str) -> int:
    """What a pass reads of the base; of quantized layers also dense ones, made and read."""
    weights = weight_bytes(shape, dtype, quantize)
    if quantize == "none":
        return weights
    return weights + figures.DENSE * DTYPE_BYTES[dtype] * shape.linear_parameters


def step_s(
    shape: ModelShape,
    dtype: str,
    card: Card,
    weights: int,
    requests: float,
    length: int,
    engines: int,
) -> float:
    """Seconds of an engine's step, which reads so many bytes of `weights` and gives each request a
    token; `engines` share the card."""
    read = weights + requests * length * cache_bytes(shape, dtype)
    processor = figures.STEP_S + requests * figures.REQUEST_S
    return processor + engines * read / (figures.BANDWIDTH_USED * card.bandwidth)


def token_s(shape: ModelShape, card: Card) -> float:
    """Seconds of a learner rank for a token: 4 operations a frozen weight, 6 one of the head."""
    head = shape.hidden * shape.vocabulary
    products = (4 * shape.linear_parameters + 6 * head) / (figures.MATMUL_USED * card.flops)
    values = 2 * shape.layers * (shape.hidden + shape.intermediate)
    return figures.OTHER * (products + figures.PASSES * values / card.bandwidth)
