"""Games that the seats can both win: SimpleNegotiation, IteratedPrisonersDilemma.

TextArena pays whoever has more, 1 and -1, so that all that two seats could win together is lost.
Their rules speak of values and points: these are what is paid here.
"""

from itertools import permutations, product
from typing import Any

from unstable.games.info import GameInfo, Payoffs

_OFFERED = range(1, 4)  # of a resource, in the offers that are listed
_MOST_OF_A_RESOURCE = 25  # that a seat begins with
_MOST_VALUE = 40  # of a unit


def trades(env: Any) -> list[str]:
    """Deny, accept what can be, and offers of one resource for another, 1 to 3 of each.

    The env takes any other text too, as talk, and any offer of what the seat has.
    """
    state, seat = env.state.game_state, env.state.current_player_id
    offer, owned = state["current_offer"], state["player_resources"][seat]
    listed = ["[Deny]"]
    if offer is not None and offer["to_player"] == seat:
        asked = offer["requested_resources"].items()
        listed += ["[Accept]"] * all(owned[name] >= count for name, count in asked)
    for (mine, other), (give, take) in product(
        permutations(env.resource_names, 2), product(_OFFERED, repeat=2)
    ):
        if owned[mine] >= give:
            listed.append(f"[Offer: {give} {mine} -> {take} {other}]")
    return listed


def gains(env: Any) -> list[float]:
    """The change of the value that a seat's resources have to itself."""
    return [float(env.state.game_state["inventory_value"][seat]["change"]) for seat in range(2)]


def most_gain(env: Any) -> float:
    """All that the other could begin with, at the highest values."""
    highest = (min(base + int(0.2 * base), _MOST_VALUE) for base in env.base_values.values())
    return float(_MOST_OF_A_RESOURCE * sum(highest))


def choices(env: Any) -> list[str]:
    """The two decisions; while the seats talk, what is known of the one to come."""
    return ["[cooperate]", "[defect]"]


def points(env: Any) -> list[float]:
    """The points of all rounds."""
    return [float(env.state.game_state["scores"][seat]) for seat in range(2)]


def most_points(env: Any) -> float:
    """The largest pay-off of a round, in each."""
    each = (env.cooperate_reward, env.defect_reward, env.sucker_reward, env.mutual_defect_reward)
    return float(env.num_rounds * max(map(abs, each)))


NEGOTIATION = GameInfo(
    env="SimpleNegotiationEnv",
    name="SimpleNegotiation",
    legal_moves=trades,
    payoffs=Payoffs(gains, most_gain, zero_sum=False),
)
DILEMMA = GameInfo(
    env="IteratedPrisonersDilemmaEnv",
    name="IteratedPrisonersDilemma",
    legal_moves=choices,
    payoffs=Payoffs(points, most_points, zero_sum=False),
)
