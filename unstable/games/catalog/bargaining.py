"""Games in which both seats can win: SimpleNegotiation, IteratedPrisonersDilemma.

TextArena pays 1 to the seat that has more and -1 to the other, which hides joint gains. The payoffs
here are the values and points of the rules.
"""

from itertools import permutations, product
from typing import Any

from unstable.games.info import GameInfo, Payoffs

OFFERED = range(1, 4)
"""Units of a resource in listed offers."""
_MOST_OF_A_RESOURCE = 25  # maximum units of a resource at the start
_MOST_VALUE = 40  # maximum value of a unit


def trades(env: Any) -> list[str]:
    """Return deny, accept if possible, and offers of one resource for another, 1 to 3 of each.

    The env also accepts any other text, as talk, and any offer of resources that the seat has.
    """
    state, seat = env.state.game_state, env.state.current_player_id
    offer, owned = state["current_offer"], state["player_resources"][seat]
    listed = ["[Deny]"]
    if offer is not None and offer["to_player"] == seat:
        asked = offer["requested_resources"].items()
        listed += ["[Accept]"] * all(owned[name] >= count for name, count in asked)
    for (mine, other), (give, take) in product(
        permutations(env.resource_names, 2), product(OFFERED, repeat=2)
    ):
        if owned[mine] >= give:
            listed.append(f"[Offer: {give} {mine} -> {take} {other}]")
    return listed


def gains(env: Any) -> list[float]:
    """Return the change in each seat's own value of its resources."""
    return [float(env.state.game_state["inventory_value"][seat]["change"]) for seat in range(2)]


def most_gain(env: Any) -> float:
    """Return the maximum gain: everything that the other can start with, at the highest values."""
    highest = (min(base + int(0.2 * base), _MOST_VALUE) for base in env.base_values.values())
    return float(_MOST_OF_A_RESOURCE * sum(highest))


def choices(env: Any) -> list[str]:
    """Return the two decisions, also while the seats talk before a decision."""
    return ["[Cooperate]", "[Defect]"]


def points(env: Any) -> list[float]:
    """Return each seat's points over all rounds."""
    return [float(env.state.game_state["scores"][seat]) for seat in range(2)]


def most_points(env: Any) -> float:
    """Return the maximum points: the largest payoff of a round in every round."""
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
