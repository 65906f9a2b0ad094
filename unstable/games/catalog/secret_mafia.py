"""SecretMafia: its teams, and the players that a seat may choose."""

from typing import Any

from unstable.games.info import GameInfo, Teams

_MAFIA_FIRST = ("Mafia", "Doctor", "Detective", "Villager")  # order of the seats


def living(env: Any) -> list[str]:
    """Return the living players that a seat may choose, or name in talk by day.

    The env accepts any text by day, as talk, and any living player at night.
    """
    state, own = env.state.game_state, env.state.current_player_id
    roles, phase = state["player_roles"], state["phase"].value
    alive = [number for number in state["alive_players"] if number != own]
    if phase == "Night-Mafia":
        alive = [number for number in alive if roles[number] != "Mafia"]
    return [f"[{number}]" for number in alive]


def mafia_and_village(env: Any, seats: int) -> tuple[tuple[int, ...], ...]:
    """Return the mafia, which has the first seats by the env's ratio of it, and the village."""
    mafia = max(1, round(seats * env.mafia_ratio))
    return tuple(range(mafia)), tuple(range(mafia, seats))


def by_role(env: Any) -> list[int]:
    """Return the numbers of the mafia, then the doctor, the detective, and the villagers."""
    roles = env.state.game_state["player_roles"]
    return sorted(roles, key=lambda number: (_MAFIA_FIRST.index(roles[number]), number))


INFO = GameInfo(
    env="SecretMafiaEnv",
    name="SecretMafia",
    legal_moves=living,
    teams=Teams(mafia_and_village, by_role),
)
