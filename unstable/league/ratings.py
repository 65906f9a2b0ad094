"""Registry of players: their versions, ratings and results.

Ratings are TrueSkill's (Herbrich, Minka and Graepel, 2006, doi:10.7551/mitpress/7503.003.0076), by
the `trueskill` package. One scripted opponent is the anchor: its rating is fixed, so that the scale
does not drift. Nobody is rated against itself; a forfeit is a loss, and counted separately. The
draw rate of equal players is measured for each env.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from types import MappingProxyType
from typing import Literal, Self

from pydantic import BaseModel, NonNegativeInt, model_validator

from unstable.league.matchmaking import Matchmaker, Probability, VersionStats, check_probabilities
from unstable.league.skills import ENVIRONMENT, Match, Skill, rate
from unstable.types import BASE, GameResult, GameSpec, PlayedGame, PlayerId, Rating, Side, standing

PRIOR_GAMES, PRIOR_DRAWS = 10, 1
"""Games, and draws among them, that an env's draw rate starts with."""
MOST_DRAWS = 0.95
"""Highest draw probability; closer to 1, a win is too surprising for TrueSkill's arithmetic."""
PAYOFF_DECAY = 0.9
"""Factor by which a payoff's games decay with each version, since the policy has changed."""
ANCHOR_SIGMA = 0.01
"""Sigma of the anchor; TrueSkill cannot rate against a sigma of 0."""


Event = Literal["added", "evaluated", "played"]
"""Kind of mark: a version was added, its evaluation was rated, or a synchronous round ended."""


class RegistryState(BaseModel):
    """State of the registry for a resume: ratings (mu, sigma) and counts of results, by player."""

    ratings: dict[str, tuple[float, float]]
    results: dict[str, dict[str, int]]
    draws: dict[str, tuple[int, int]]
    """Pairs of adjacent sides in the order of outcomes, and how many of them drew, by env."""
    equals: dict[str, tuple[int, int]] = {}
    """Pairs and draws in games of a player against itself, which `draws` does not include."""
    trained: NonNegativeInt
    """Number of training games recorded."""
    marks: list[tuple[Event, NonNegativeInt, NonNegativeInt]]
    """Events between training games, in order: kind, version, training games before the event."""
    past: dict[str, list[str]]
    """Past versions that a policy's current version meets."""
    probabilities: dict[str, list[Probability]]
    """Probability of each past version, by policy; empty if all are equally likely."""
    payoffs: dict[str, tuple[float, float]]
    """Wins of newer versions against a past version of their policy, and games, both decayed."""
    anchor: str | None = ""
    """Player with a pinned rating; empty: of an earlier release, the registry's own."""

    @model_validator(mode="after")
    def _each_has_a_probability(self) -> Self:
        for policy, probabilities in self.probabilities.items():
            check_probabilities(probabilities, self.past.get(policy, []))
        return self


class Registry:
    """Players, ratings and match counts of a run."""

    def __init__(
        self,
        fixed: Sequence[PlayerId],
        anchor: PlayerId | None,
        pool_size: int,
        matchmaker: Matchmaker | None = None,
        draws: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Register the `fixed` opponents, which never change; `anchor` has a pinned rating.

        `draws` is the draw rate of equal players by env, if a fit of all games has measured it.
        Without a `matchmaker` the newest `pool_size` versions are opponents, all equally likely.
        """
        self._pool_size = pool_size
        self._matchmaker = matchmaker
        self._fitted = draws
        self._skills: dict[str, Skill] = {}  # by name, in the order of registration
        for player in (BASE, *fixed):
            self.know(player)
        self._pinned: str | None = None
        self.pin(None if anchor is None else anchor.name)
        self._results: dict[PlayerId, Counter[str]] = {}
        self._draws: dict[str, tuple[int, int]] = {}
        self._equals: dict[str, tuple[int, int]] = {}
        self._trained = 0
        self._marks: list[tuple[Event, int, int]] = []
        self._versions: dict[str, list[PlayerId]] = {}  # by policy, ascending
        self._current: dict[str, PlayerId] = {}  # by policy
        self._past: dict[str, list[PlayerId]] = {}  # by policy, ascending
        self._probabilities: dict[str, list[float]] = {}
        self._payoffs: dict[PlayerId, tuple[float, float]] = {}

    def know(self, player: PlayerId) -> None:
        """Register a player that never changes, such as a person, unless it is registered."""
        self._skills.setdefault(player.name, (ENVIRONMENT.mu, ENVIRONMENT.sigma))

    def pin(self, anchor: str | None) -> None:
        """Fix the rating of the anchor alone, as before a resume with other opponents."""
        if self._pinned is not None:
            self._skills[self._pinned] = ENVIRONMENT.mu, ENVIRONMENT.sigma
        self._pinned = anchor
        if anchor is not None:
            self._skills[anchor] = ENVIRONMENT.mu, ANCHOR_SIGMA

    def add(self, version: PlayerId, inherits_from: PlayerId | None = None) -> None:
        """Register a policy's new version, which games may name once it is announced.

        It starts with the rating of `inherits_from`, or else of the policy's previous version, with
        a sigma of at least half the initial one.
        """
        before = self._versions.setdefault(version.label, [])
        source = inherits_from or (before[-1] if before else version)
        mu, sigma = self._skills.get(source.name, (ENVIRONMENT.mu, ENVIRONMENT.sigma))
        self._skills[version.name] = mu, max(sigma, ENVIRONMENT.sigma / 2)
        before.append(version)
        self._mark("added", version)

    def announce(self, version: PlayerId) -> None:
        """Make an added version its policy's current one, and choose the past versions it meets."""
        policy = version.label
        self._current[policy] = version
        added, before = self._versions.get(policy, []), self._past.get(policy, [])
        known = added[: added.index(version)] if version in added else []
        pool = set(known[-self._pool_size :])
        if self._matchmaker is not None:
            were = pool.union(before)
            candidates = self._stats_of([each for each in known if each in were])
            pool |= self._matchmaker.pinned(candidates)
        self._past[policy] = [player for player in known if player in pool]
        self._fade(policy)
        self._probabilities[policy] = []
        if self._matchmaker is not None and self._past[policy]:
            own, *past = self._stats_of([version, *self._past[policy]])
            self._probabilities[policy] = self._matchmaker.probabilities(own, past)

    def _stats_of(self, players: Sequence[PlayerId]) -> list[VersionStats]:
        skills, payoffs = self._skills, self._payoffs
        return [
            VersionStats(player, *skills[player.name], *payoffs.get(player, (0.0, 0.0)))
            for player in players
        ]

    def _fade(self, policy: str) -> None:
        """Decay payoffs against past versions that are still met, and drop those against others."""
        kept = set(self._past[policy])
        self._payoffs = {
            player: (won * PAYOFF_DECAY, games * PAYOFF_DECAY) if player in kept else (won, games)
            for player, (won, games) in self._payoffs.items()
            if player in kept or player.label != policy
        }

    def current(self, policy: str) -> PlayerId:
        """Return a policy's current version; version 0 if none was announced."""
        return self._current.get(policy, PlayerId.policy(0, policy))

    def past(self, policy: str) -> list[PlayerId]:
        """Return the past versions that a policy's current one meets, newest and pinned ones."""
        return self._past.get(policy, [])

    def probabilities(self, policy: str) -> list[float]:
        """Return the probability of each of `past(policy)`; [] if all are equally likely."""
        return self._probabilities.get(policy, [])

    def record(self, games: Iterable[GameResult | PlayedGame]) -> None:
        """Count and rate finished games in order, each once for each player in it.

        Games of a player against itself, and games with an opening, whose first moves others made,
        are not rated. A player with several sides enters with their mean outcome; a team is one
        side, and its player has one skill regardless of the number of seats.
        """
        matches: list[Match] = []
        for game in games:
            self._count(game.spec)
            if not game.spec.opening and (match := self._match(game)) is not None:
                matches.append(match)
        rate(self._skills, matches, self._pinned)

    def _match(self, result: GameResult | PlayedGame) -> Match | None:
        """Count a game's draws and results and return its match; None if it has a single player."""
        draw_probability, ranked = self.draw_probability(result.spec.env), result.ranked_outcomes
        self._count_draws(result.spec, ranked)
        held: dict[PlayerId, list[Side]] = {}
        for side in result.spec.sides:
            held.setdefault(result.spec.seats[side[0]].player, []).append(side)
        if len(held) < 2:
            return None
        scores = {player: fmean([ranked[s[0]] for s in sides]) for player, sides in held.items()}
        for player, sides in held.items():
            counts = self._results.setdefault(player, Counter())
            counts["games"] += 1
            counts[standing(scores[player], list(scores.values()))] += 1
            counts["forfeit"] += any(result.forfeit in side for side in sides)
        self._pay(scores)
        names = tuple([player.name for player in scores])
        return Match(names, tuple(scores.values()), draw_probability)

    def _pay(self, scores: dict[PlayerId, float]) -> None:
        """Count the wins of each policy's newest version in a game against its older versions."""
        newest: dict[str, PlayerId] = {}
        for player in sorted(scores, key=lambda each: -1 if each.version is None else each.version):
            newest[player.label] = player
        for player, its in scores.items():
            if player != newest[player.label]:
                won, games = self._payoffs.get(player, (0.0, 0.0))
                own = scores[newest[player.label]]
                self._payoffs[player] = won + (own > its) + 0.5 * (own == its), games + 1

    def _count(self, spec: GameSpec) -> None:
        """Count a training game, or mark an evaluation, so that files keep the order of both."""
        if spec.purpose == "train":
            self._trained += 1
            return
        # The newest version is evaluated; others are past opponents.
        versions = [seat.player for seat in spec.seats if seat.player.version is not None]
        if versions:
            self._mark("evaluated", max(versions, key=lambda player: player.version or 0))

    def end_round(self, policy: str) -> None:
        """Mark the end of a round whose training games were recorded in the order of their ids."""
        self._mark("played", self.current(policy))

    def _mark(self, what: Event, version: PlayerId) -> None:
        assert version.version is not None
        mark = what, version.version, self._trained
        if mark not in self._marks[-1:]:
            self._marks.append(mark)

    def draw_probability(self, env: str) -> float:
        """Return the probability that equal players draw, at most `MOST_DRAWS`.

        It is their share of draws in games of players against themselves. The prior, with the
        weight of `PRIOR_GAMES` games, is the draw rate by the fit, or else the share of draws in
        all other games, whose players are unequal and draw less often.
        """
        met, drawn = self._draws.get(env, (0, 0))
        others = self._fitted.get(env) or (PRIOR_DRAWS + drawn) / (PRIOR_GAMES + met)
        met, drawn = self._equals.get(env, (0, 0))
        return min(MOST_DRAWS, (PRIOR_GAMES * others + drawn) / (PRIOR_GAMES + met))

    def _count_draws(self, spec: GameSpec, ranked: Sequence[float]) -> None:
        """Count sides adjacent in outcome, which TrueSkill compares, and their draws."""
        ordered = sorted([ranked[side[0]] for side in spec.sides])
        itself = len({seat.player for seat in spec.seats}) == 1
        counts = self._equals if itself else self._draws
        met, drawn = counts.get(spec.env, (0, 0))
        drawn += sum([low == high for low, high in pairwise(ordered)])
        counts[spec.env] = met + len(ordered) - 1, drawn

    def ratings(self) -> list[Rating]:
        """Return the ratings of players with games and of current versions, strongest first."""
        present = {*self._results, *self._current.values()}
        rows = [self._rating(player, *self._skills[player.name]) for player in present]
        return sorted(rows, key=lambda row: (-row.mu, row.player.name))

    def _rating(self, player: PlayerId, mu: float, sigma: float) -> Rating:
        counts = self._results.get(player, Counter())
        return Rating(
            player=player,
            mu=mu,
            sigma=sigma,
            games=counts["games"],
            wins=counts["win"],
            draws=counts["draw"],
            losses=counts["loss"],
            forfeits=counts["forfeit"],
        )

    def state(self) -> RegistryState:
        """Return the state that `restore` takes."""
        results = {each.name: dict(counts) for each, counts in self._results.items()}
        return RegistryState(
            ratings=dict(self._skills),
            results=results,
            draws=dict(self._draws),
            equals=dict(self._equals),
            trained=self._trained,
            marks=list(self._marks),
            past={policy: [each.name for each in past] for policy, past in self._past.items()},
            probabilities=dict(self._probabilities),
            payoffs={player.name: each for player, each in self._payoffs.items()},
            anchor=self._pinned,
        )

    def restore(self, state: RegistryState) -> None:
        """Continue from what `state` returned; each policy's newest version becomes current."""
        if state.anchor != "":
            self.pin(state.anchor)
        self._skills |= state.ratings
        self._results = {
            PlayerId.parse(name): Counter(counts) for name, counts in state.results.items()
        }
        self._draws, self._equals = dict(state.draws), dict(state.equals)
        self._trained, self._marks = state.trained, list(state.marks)
        players = map(PlayerId.parse, self._skills)
        versions = [player for player in players if player.version is not None]
        self._versions = {}
        for player in sorted(versions, key=lambda player: player.version or 0):
            self._versions.setdefault(player.label, []).append(player)
        self._current = {policy: added[-1] for policy, added in self._versions.items()}
        self._past = {name: [*map(PlayerId.parse, past)] for name, past in state.past.items()}
        self._probabilities = dict(state.probabilities)
        self._payoffs = {PlayerId.parse(name): each for name, each in state.payoffs.items()}
