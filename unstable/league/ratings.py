"""The registry: who is who, who is current, and how strong everyone is.

TrueSkill (Herbrich, Minka and Graepel, 2006, doi:10.7551/mitpress/7503.003.0076) through the
`trueskill` package. One scripted opponent is the anchor: its rating never moves, so that the scale
does not drift. Nobody is rated against itself; a forfeit is a loss, and counted apart.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import trueskill

from unstable.types import BASE, GameResult, PlayerId, Rating, Side, standing

ENVIRONMENT = trueskill.TrueSkill(draw_probability=0.1)
ANCHOR_SIGMA = 0.01
"""TrueSkill cannot rate against a sigma of 0."""


class Registry:
    """Players, ratings and match counts of a run."""

    def __init__(self, fixed: Sequence[PlayerId], anchor: PlayerId | None, pool_size: int) -> None:
        """`fixed` are the opponents that never change, `anchor` the one with a pinned rating."""
        self.current = 0
        self._pool_size = pool_size
        self._anchor = anchor
        self._ratings = {player: ENVIRONMENT.create_rating() for player in [BASE, *fixed]}
        if anchor is not None:
            self._ratings[anchor] = ENVIRONMENT.create_rating(ENVIRONMENT.mu, ANCHOR_SIGMA)
        self._results: dict[PlayerId, Counter[str]] = {}
        self._versions: list[int] = []

    def add(self, version: int, like: int | None = None) -> None:
        """Enter a new version: as strong as `like`, or else the one before it, but less surely."""
        source = PlayerId.policy(version - 1 if like is None else like)
        before = self._ratings.get(source, ENVIRONMENT.create_rating())
        sigma = max(before.sigma, ENVIRONMENT.sigma / 2)
        self._ratings[PlayerId.policy(version)] = ENVIRONMENT.create_rating(before.mu, sigma)
        self._versions.append(version)

    def past(self) -> list[int]:
        """Versions before the current one that can be opponents: the newest `pool_size` of them."""
        return [v for v in self._versions if v < self.current][-self._pool_size :]

    def record(self, result: GameResult) -> None:
        """Count and rate a finished game, once for each player in it.

        Left out are games of a player with itself, which compare nobody, and those with an opening,
        whose first moves others made. A player that held several sides enters with their mean; a
        team is one side, and its player one skill, however many seats it has.
        """
        held: dict[PlayerId, list[Side]] = {}
        for side in result.spec.sides:
            held.setdefault(result.spec.seats[side[0]].player, []).append(side)
        if result.spec.opening or len(held) < 2:
            return
        ranked = result.ranked_outcomes
        scores = {player: fmean(ranked[s[0]] for s in sides) for player, sides in held.items()}
        for player, sides in held.items():
            counts = self._results.setdefault(player, Counter())
            counts["games"] += 1
            counts[standing(scores[player], list(scores.values()))] += 1
            counts["forfeit"] += any(result.forfeit in side for side in sides)
        self._rate(scores)

    def _rate(self, scores: dict[PlayerId, float]) -> None:
        """Rate one free-for-all."""
        players = list(scores)
        ranked = sorted(set(scores.values()), reverse=True)
        groups = [(self._ratings[player],) for player in players]
        ranks = [ranked.index(scores[player]) for player in players]
        for player, (rating,) in zip(players, ENVIRONMENT.rate(groups, ranks), strict=True):
            if player != self._anchor:
                self._ratings[player] = rating

    def ratings(self) -> list[Rating]:
        """Everybody who has played and the current version, strongest first."""
        present = {*self._results, PlayerId.policy(self.current)}
        rows = [self._rating(player) for player in present]
        return sorted(rows, key=lambda row: (-row.mu, row.player.name))

    def _rating(self, player: PlayerId) -> Rating:
        counts = self._results.get(player, Counter())
        return Rating(
            player=player,
            mu=self._ratings[player].mu,
            sigma=self._ratings[player].sigma,
            games=counts["games"],
            wins=counts["win"],
            draws=counts["draw"],
            losses=counts["loss"],
            forfeits=counts["forfeit"],
        )

    def state(self) -> dict[str, Any]:
        """All of it, as JSON holds it."""
        return {
            "ratings": {
                player.name: [rating.mu, rating.sigma] for player, rating in self._ratings.items()
            },
            "results": {player.name: dict(counts) for player, counts in self._results.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned; the newest version in it becomes the current one."""
        for name, (mu, sigma) in state["ratings"].items():
            self._ratings[PlayerId.parse(name)] = ENVIRONMENT.create_rating(mu, sigma)
        self._results = {
            PlayerId.parse(name): Counter(counts) for name, counts in state["results"].items()
        }
        versions = (player.version for player in self._ratings)
        self._versions = sorted(version for version in versions if version is not None)
        self.current = self._versions[-1]
