"""Invariant 16: draws are draws, nobody is rated against itself, the anchor never moves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.builders import game
from tests.helpers.rows import every_row
from unstable.league.ratings import Registry, RegistryState
from unstable.models.adapters import read_adapter, write_adapter
from unstable.records.files import new_folder
from unstable.records.folder import RunFolder
from unstable.types import BASE, MAIN, Adapter, GameResult, PlayerId

RANDOM, EXPERT = PlayerId("random"), PlayerId("expert")


def fresh_registry() -> Registry:
    return Registry([RANDOM, EXPERT], anchor=RANDOM, pool_size=2)


def registry() -> Registry:
    made = fresh_registry()
    add(made, 0)
    return made


def add(made: Registry, version: int, policy: str = MAIN) -> None:
    player = PlayerId.policy(version, policy)
    made.add(player)
    made.announce(player)


def past(made: Registry, policy: str = MAIN) -> list[str]:
    return [player.name for player in made.past(policy)]


def rating(made: Registry, player: str) -> tuple[float, float]:
    (row,) = [row for row in made.ratings() if row.player == PlayerId.parse(player)]
    return row.mu, row.sigma


def test_wins_raise_losses_lower_and_the_anchor_is_fixed() -> None:
    made = registry()
    made.record([game(("main@0", "random"), (1.0, -1.0))])
    up, _ = rating(made, "main@0")
    assert up > 25
    assert rating(made, "random")[0] == 25
    for _ in range(5):
        made.record([game(("random", "main@0"), (1.0, -1.0))])
    assert rating(made, "main@0")[0] < up
    assert rating(made, "random")[0] == 25


def test_draws_pull_a_player_toward_the_anchor() -> None:
    made = registry()
    for _ in range(10):
        made.record([game(("expert", "random"), (1.0, -1.0))])
    high, _ = rating(made, "expert")
    for _ in range(60):
        made.record([game(("expert", "random"), (0.0, 0.0))])
    mu, sigma = rating(made, "expert")
    assert 25 < mu < high
    assert sigma < 2


def test_mirror_game_changes_no_rating() -> None:
    made = registry()
    before = rating(made, "main@0")
    made.record([game(("main@0", "main@0"), (1.0, -1.0))])
    assert rating(made, "main@0") == before
    (row,) = made.ratings()
    assert (row.games, row.wins, row.losses) == (0, 0, 0)


PLAYERS = st.lists(st.sampled_from(["main@0", "random", "expert"]), min_size=2, max_size=4)


@given(st.lists(PLAYERS.flatmap(lambda p: st.tuples(st.just(p), st.permutations(range(len(p)))))))
def test_wins_draws_and_losses_add_up_to_games(played) -> None:
    made = registry()
    for players, outcomes in played:
        made.record([game(players, [float(o // 2) for o in outcomes], turns=len(players))])
    for row in made.ratings():
        assert row.wins + row.draws + row.losses == row.games
    rated = [players for players, _ in played if len(set(players)) > 1]
    assert sum(row.games for row in made.ratings()) == sum(len(set(p)) for p in rated)


def test_player_in_two_seats_is_rated_once_by_mean_outcome() -> None:
    made = registry()
    made.record([game(("random", "main@0", "random"), (-1.0, 1.0, 0.0), turns=3)])
    assert rating(made, "main@0")[0] > 25


@every_row("worth", -1.0, 0.0)
def test_forfeit_is_a_loss_and_counted_separately(worth: float) -> None:
    made = registry()
    made.record([game(("main@0", "random"), (worth, 0.0), forfeit=0)])
    (row,) = [row for row in made.ratings() if row.player == PlayerId.policy(0)]
    assert (row.losses, row.forfeits) == (1, 1)
    assert row.mu < 25


def test_new_version_inherits_mu_with_larger_sigma() -> None:
    made = registry()
    for _ in range(30):
        made.record([game(("main@0", "random"), (1.0, -1.0))])
    mu, sigma = rating(made, "main@0")
    add(made, 1)
    assert rating(made, "main@1")[0] == pytest.approx(mu)
    assert rating(made, "main@1")[1] > sigma


def test_rolled_back_version_inherits_from_its_source() -> None:
    made = registry()
    for _ in range(30):
        made.record([game(("main@0", "random"), (1.0, -1.0))])
    add(made, 1)
    for _ in range(30):
        made.record([game(("main@1", "random"), (-1.0, 1.0))])
    made.add(PlayerId.policy(2), inherits_from=PlayerId.policy(0))
    made.announce(PlayerId.policy(2))
    assert rating(made, "main@2")[0] == pytest.approx(rating(made, "main@0")[0])
    assert rating(made, "main@2")[0] > rating(made, "main@1")[0] + 5


def test_pool_has_the_newest_past_versions() -> None:
    made = registry()
    for version in (1, 2, 3):
        add(made, version)
    assert past(made) == ["main@1", "main@2"]
    made.add(PlayerId.policy(4))  # not yet announced
    assert past(made) == ["main@1", "main@2"]


def played_registry() -> Registry:
    """Return a registry with more than ten versions, so that names and numbers sort differently."""
    made = registry()
    for version in range(1, 12):
        add(made, version)
    made.record([game(("main@11", "main@9"), (0.0, 0.0))])
    made.record([game(("main@11", "expert"), (-1.0, 0.0), forfeit=0)])
    made.record([game(("random", "main@10"), (-1.0, 1.0))])
    made.record([game(("base", "random"), (1.0, -1.0))])
    return made


def test_state_round_trips_through_json() -> None:
    made, other = played_registry(), fresh_registry()
    # Names sort in another order than versions.
    sorted_text = json.dumps(made.state().model_dump(), sort_keys=True)
    state = RegistryState.model_validate_json(sorted_text)
    other.restore(state)
    assert other.ratings() == made.ratings()
    assert past(other) == past(made) == ["main@9", "main@10"]
    assert other.current(MAIN) == made.current(MAIN) == PlayerId.policy(11)
    assert other.state() == made.state() == state
    for each in (made, other):  # both continue alike
        add(each, 12)
        each.record([game(("main@12", "random"), (1.0, -1.0))])
        each.record([game(("expert", "main@11"), (1.0, -1.0))])
    assert other.ratings() == made.ratings()
    assert past(other) == past(made) == ["main@10", "main@11"]
    assert rating(other, "random")[0] == 25


def test_payoffs_are_those_of_the_newest_version_of_each_policy() -> None:
    made = registry()
    for version, policy in ((1, MAIN), (3, MAIN), (9, "other")):
        add(made, version, policy)
    made.record([game(("main@3", "main@1", "other@9"), (1.0, -1.0, 0.0))])
    assert made.state().payoffs == {"main@1": (1.0, 1.0)}


def test_resumed_registry_keeps_its_anchor() -> None:
    made = registry()
    made.record([game(("main@0", "random"), (1.0, -1.0))])
    other = Registry([EXPERT, RANDOM], anchor=EXPERT, pool_size=2)
    other.restore(made.state())
    for each in (made, other):
        each.record([game(("main@0", "expert"), (-1.0, 1.0))])
    assert {each.name: rating(other, each.name) for each in (RANDOM, EXPERT)} == {
        each.name: rating(made, each.name) for each in (RANDOM, EXPERT)
    }
    assert rating(other, "random")[0] == 25 < rating(other, "expert")[0]


def drawn(game_id: int = 0, players: tuple[str, ...] = ("main@0",) * 2, **spec: Any) -> GameResult:
    return game(players, (0.0,) * len(players), game_id=game_id, **spec)


def test_draw_probability_is_estimated_from_mirror_games() -> None:
    made = registry()
    assert made.draw_probability("TicTacToe-v0") == pytest.approx(0.1)
    for number in range(40):  # mirror games: equals, no comparison
        made.record([drawn(number) if number % 4 else game(("main@0", "main@0"))])
    assert made.draw_probability("TicTacToe-v0") == pytest.approx((1 + 30) / (10 + 40))
    assert made.draw_probability("Nim-v0") == pytest.approx(0.1)
    assert (made.state().draws, made.state().equals) == ({}, {"TicTacToe-v0": (40, 30)})
    for number in range(40):  # unequal players never draw: little evidence
        made.record([game(("main@0", "random"), (1.0, -1.0), game_id=number)])
    assert made.draw_probability("TicTacToe-v0") == pytest.approx((10 / 50 + 30) / (10 + 40))
    made.record([drawn(players=("main@0", "random", "expert"), env="Three-v0")])
    made.record([game(("main@0", "random", "expert"), (1.0, 0.0, 0.0), env="Three-v0")])
    assert made.state().draws["Three-v0"] == (4, 3)
    for number in range(4000):
        made.record([drawn(number)])
    fitted = Registry([], PlayerId.parse("random"), pool_size=1, draws={"Nim-v0": 0.6})
    assert fitted.draw_probability("Nim-v0") == pytest.approx(0.6)
    assert made.draw_probability("TicTacToe-v0") == 0.95


def test_ratings_are_accurate_at_high_draw_rates() -> None:
    """By simulation in TrueSkill's own model: equals draw 58 %, a player is 8 above the anchor."""
    random = np.random.default_rng(0)
    spread = 2**0.5 * 25 / 6
    margin = 0.8064 * spread  # 58 % of equals are within it

    def outcomes(difference: float) -> tuple[float, float]:
        seen = difference + random.normal(0, spread)
        return (0.0, 0.0) if abs(seen) < margin else (1.0, -1.0) if seen > 0 else (-1.0, 1.0)

    found = []
    for _ in range(12):
        made = registry()
        for _ in range(200):
            made.record([game(("main@0", "main@0"), outcomes(0))])
        for _ in range(64):
            made.record([game(("main@0", "random"), outcomes(8))])
        assert made.draw_probability("TicTacToe-v0") == pytest.approx(0.57, abs=0.1)
        found.append(rating(made, "main@0")[0] - 25)
    assert np.mean(found) == pytest.approx(8, abs=1.2)  # 5.3 with a draw probability of 0.1


def test_win_among_draws_stays_finite() -> None:
    made = registry()
    for number in range(500):
        made.record([drawn(number, ("main@0", "random"))])
    for number in range(20):
        made.record([game(("main@0", "random"), game_id=number)])
        made.record([game(("random", "expert", "main@0"), (1.0, 0.0, 0.0), game_id=number)])
    assert all(-100 < row.mu < 150 for row in made.ratings())


def test_state_uses_player_names_of_files() -> None:
    state = played_registry().state()
    players = {"base", "random", "expert", *(f"main@{version}" for version in range(12))}
    assert set(state.ratings) == players
    assert state.results["main@11"] == {"draw": 1, "loss": 1, "forfeit": 1, "games": 2}
    restored = fresh_registry()
    restored.restore(state)
    assert BASE in {row.player for row in restored.ratings()}
    assert PlayerId.policy(11) in {row.player for row in restored.ratings()}


def test_versions_of_two_policies_do_not_mix() -> None:
    made = registry()
    for version in range(4):
        add(made, version, "rival")
    add(made, 1)
    for _ in range(20):
        made.record([game(("main@1", "rival@3"), (1.0, -1.0))])
    assert past(made) == ["main@0"]
    assert past(made, "rival") == ["rival@1", "rival@2"]  # the newest two
    assert [made.current(name).name for name in (MAIN, "rival")] == ["main@1", "rival@3"]
    assert rating(made, "main@1")[0] > 25 > rating(made, "rival@3")[0]
    add(made, 4, "rival")
    add(made, 2)
    assert rating(made, "rival@4")[0] < 25 < rating(made, "main@2")[0]
    other = fresh_registry()
    other.restore(RegistryState.model_validate_json(made.state().model_dump_json()))
    assert other.ratings() == made.ratings()
    assert past(other, "rival") == past(made, "rival") == ["rival@2", "rival@3"]
    assert other.current("rival").name == "rival@4"


def test_checkpoints_of_two_policies_do_not_mix(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.checkpoints.mkdir()
    names = ["main@0", "main@1", "main@2", "rival@1", "rival@2", "rival@3"]
    for name in names:
        player = PlayerId.parse(name)
        adapter = Adapter(name=name, weights=name.encode(), config={})
        assert player.version is not None
        place = folder.checkpoint(player.version, player.label)
        with new_folder(place) as scratch:
            write_adapter(adapter, scratch)
    assert folder.checkpoint(2) == tmp_path / "checkpoints" / "000002"
    assert folder.checkpoint(2, "rival") == tmp_path / "checkpoints" / "rival" / "000002"
    for name in names:
        player = PlayerId.parse(name)
        assert player.version is not None
        place = folder.checkpoint(player.version, player.label)
        assert read_adapter(place, name).weights == name.encode()
    assert (folder.versions(), folder.versions("rival")) == ([0, 1, 2], [1, 2, 3])
    assert folder.versions("other") == []
    folder.prune(1, adapters={PlayerId.policy(0), PlayerId.policy(1, "rival")})
    assert (folder.versions(), folder.versions("rival")) == ([0, 2], [1, 2, 3])
    folder.prune(1, adapters={PlayerId.policy(2)}, policy="rival")
    assert (folder.versions(), folder.versions("rival")) == ([0, 2], [3])
