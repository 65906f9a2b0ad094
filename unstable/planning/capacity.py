"""What a plan comes to in an hour, and what bounds it: playing, learning or the driver."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from unstable.config import RunConfig
from unstable.models.shape import read_shape
from unstable.planning import figures
from unstable.planning.memory import FP32
from unstable.planning.plan import Plan


class Capacity(NamedTuple):
    """Estimates. Capacity(games_s=41.0, updates_h=384.0, bound="learning", ...)"""

    games_s: float  # finished, of training
    updates_h: float
    bound: Literal["playing", "learning", "playing and learning in turn", "the driver"]
    driver: float  # share of its thread that is used
    publish_bytes: int  # of a version, to each node, an update
    publish_s: float  # to all nodes that are not the driver's, one after another
    idle: float  # share of the actors' places without a game


def capacity(config: RunConfig, plan: Plan) -> Capacity | None:
    """Of a plan for cards; None where nothing is known of the pace."""
    if plan.pace is None:
        return None
    games = config.learner.batch_size / figures.GAME_TURNS
    in_turn = plan.mode == "sync"
    by_cards, by_driver = plan.update_s, games * figures.DRIVER_S
    update_s = max(by_cards, by_driver)
    slower: Literal["playing", "learning"] = "learning"
    if plan.pace.play_s > plan.pace.learn_s:
        slower = "playing"
    size = FP32 * read_shape(config.model).trained_parameters(config.model.adapter)
    nodes = {place.node for place in (*plan.actors, *plan.learners)}
    return Capacity(
        games_s=games / update_s,
        updates_h=3600 / update_s,
        bound="the driver"
        if by_driver > by_cards
        else ("playing and learning in turn" if in_turn else slower),
        driver=by_driver / update_s,
        publish_bytes=size,
        publish_s=(len(nodes) - 1) * size / figures.NETWORK,
        idle=max(0.0, 1 - plan.pace.games / plan.pace.places),
    )


def capacity_rows(found: Capacity) -> Iterator[tuple[str, str]]:
    """The same in words, as rows of a plan."""
    yield (
        "capacity",
        f"{found.games_s:,.0f} games/s, {found.updates_h:,.0f} updates/h, bound by {found.bound}",
    )
    yield "", f"{100 * found.driver:.0f} % of the driver's thread"
    yield "", f"{100 * found.idle:.0f} % of the places for games are empty"
    between = f", {found.publish_s:.2f} s to all over 10 Gbit/s" if found.publish_s else ""
    yield "", f"{found.publish_bytes / 1e6:,.0f} MB of weights to each node an update{between}"
