"""Players and standings, on which evaluation, ratings and tables all depend."""

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.builders import game
from tests.helpers.rows import every_row
from unstable.types import BASE, PlayerId

NAMES = st.text(max_size=12)
NEAR_NAMES = st.builds("".join, st.tuples(st.sampled_from(["main", "main@", "Main@", "@"]), NAMES))


POLICIES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,20}", fullmatch=True)


@given(POLICIES, st.integers(0, 10**12))
def test_policy_version_round_trips_through_its_name(policy: str, version: int) -> None:
    player = PlayerId.policy(version, policy)
    assert player.name == str(player) == f"{policy}@{version}"
    assert PlayerId.parse(player.name) == player
    assert (player.label, player.version) == (policy, version)


def test_policy_name_defaults_to_main() -> None:
    assert PlayerId.policy(3) == PlayerId.parse("main@3") != PlayerId.parse("rival@3")


@given(NAMES | NEAR_NAMES | st.integers().map("main@{}".format))
def test_player_names_round_trip(name: str) -> None:
    player = PlayerId.parse(name)
    assert player.name == name
    assert PlayerId.parse(player.name) == player


@every_row(
    "name",
    *(
        ["openai:some@3", "checkpoint:warm@2", "a@b", "@3", "main", "main@", "main@-1", "main@3@4"]
        + [
            "main@03",
            f"main@{10**18}",
            "main@\u00b2",
            "main@\u0663",
            "main @3",
            "3@3",
            "m\u00e4in@3",
        ]
        + [""]
    ),
)
def test_fixed_player_keeps_its_whole_name(name: str) -> None:
    player = PlayerId.parse(name)
    assert player == PlayerId(name)
    assert (player.label, player.version, player.name) == (name, None, name)


def test_players_compare_by_value() -> None:
    versions = [PlayerId.parse(f"main@{version}") for version in (1, 2, 1)]
    assert len({*versions, PlayerId("random"), PlayerId.parse("random")}) == 3
    assert PlayerId.parse("base") == BASE


@every_row(
    "outcomes, forfeit, standings",
    ((1, -1), None, ["win", "loss"]),
    ((0, 0), None, ["draw", "draw"]),
    ((-1, 0), 0, ["loss", "win"]),
    ((0, 0), 0, ["loss", "win"]),  # a forfeit is a loss even with outcome 0
    ((0, -1, 0), 1, ["win", "loss", "win"]),
    ((1, 1, -1, -1), None, ["win", "win", "loss", "loss"]),  # teams
    ((1, 0, -1), None, ["win", "loss", "loss"]),
    ((1,), None, ["win"]),
    ((0.4,), None, ["draw"]),
    ((0,), None, ["loss"]),
    ((0.4,), 0, ["loss"]),
)
def test_standings(outcomes: tuple[float, ...], forfeit: int | None, standings: list[str]) -> None:
    players = [f"main@{seat}" for seat in range(len(outcomes))]
    result = game(players, outcomes, turns=len(players), forfeit=forfeit)
    assert [result.standing(seat) for seat in range(len(outcomes))] == standings
