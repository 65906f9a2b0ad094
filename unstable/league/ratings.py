"""The registry: who is who, who is current, and how strong everyone is.

TrueSkill (Herbrich, Minka and Graepel, 2006, doi:10.7551/mitpress/7503.003.0076) through the
`trueskill` package. One scripted opponent is the anchor: its rating never moves, so that the scale
does not drift. Nobody is rated against itself; a forfeit is a loss, and counted apart. How often
equal players draw is measured, env by env.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from types import MappingProxyType
from typing import Literal, Self

from pydantic import BaseModel, NonNegativeInt, model_validator

from unstable.league.matchmaking import Matchmaker, Probability, VersionStats, check_probabilities
from unstable.league.skills import ENVIRONMENT, Match, Skill, Skills
from unstable.types import BASE, GameResult, GameSpec, PlayedGame, PlayerId, Rating, Side, standing

PRIOR_GAMES, PRIOR_DRAWS = 10, 1
"""What an env's draws begin with, as if so many games had been played."""
MOST_DRAWS = 0.95
"""The highest draw probability: nearer to 1 a win says more than TrueSkill can calculate with."""
PAYOFF_DECAY = 0.9
"""Share of the games of a pay-off that still counts a version later: the policy has changed."""
ANCHOR_SIGMA = 0.01
"""TrueSkill cannot rate against a sigma of 0."""


Event = Literal["added", "evaluated", "played"]
"""A version was added, its evaluation was rated, or a round of synchronous play was over."""


class RegistryState(BaseModel):
    """Ratings (mu, sigma) and counts of results, by player."""

    ratings: dict[str, tuple[float, float]]
    results: dict[str, dict[str, int]]
    draws: dict[str, tuple[int, int]]
    """Sides that were next to each other at a game's end, and how many of them drew, by env."""
    equals: dict[str, tuple[int, int]] = {}
    """Such sides in games of a player with itself, which are not among those."""
    trained: NonNegativeInt
    """Training games taken in."""
    marks: list[tuple[Event, NonNegativeInt, NonNegativeInt]]
    """What came between them, in order: of which version, and after how many training games."""
    past: dict[str, list[str]]
    """Versions that a policy's current one meets."""
    probabilities: dict[str, list[Probability]]
    """How likely each of them is met, by policy; empty where all alike."""
    payoffs: dict[str, tuple[float, float]]
    """What a past version's policy won of its newer games against it, and how many they are."""

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
        """`fixed` are the opponents that never change, `anchor` the one with a pinned rating.

        `draws` is how often equals draw, by env, where a fit of all games has told it. Without a
        `matchmaker` the newest `pool_size` versions are met, all alike.
        """
        self._pool_size = pool_size
        self._matchmaker = matchmaker
        self._anchor, self._fitted = anchor, draws
        self._skills = Skills()
        for player in (BASE, *fixed):
            self._put(player, ENVIRONMENT.mu, ENVIRONMENT.sigma)
        if anchor is not None:
            self._put(anchor, ENVIRONMENT.mu, ANCHOR_SIGMA)
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

    def _put(self, player: PlayerId, mu: float, sigma: float) -> None:
        self._skills.put(player.name, mu, sigma, pinned=player == self._anchor)

    def add(self, version: PlayerId, inherits_from: PlayerId | None = None) -> None:
        """Enter a policy's new version, which no game names before it is `announce`d.

        It is rated like `inherits_from`, or else its policy's version before it, but less surely.
        """
        before = self._versions.setdefault(version.label, [])
        source = inherits_from or (before[-1] if before else version)
        mu, sigma = self._skills.all().get(source.name, (ENVIRONMENT.mu, ENVIRONMENT.sigma))
        self._put(version, mu, max(sigma, ENVIRONMENT.sigma / 2))
        before.append(version)
        self._mark("added", version)

    def announce(self, version: PlayerId) -> None:
        """Make a version that was added the current one of its policy, and choose whom it meets."""
        policy = version.label
        self._current[policy] = version
        added, before = self._versions.get(policy, []), self._past.get(policy, [])
        known = added[: added.index(version)] if version in added else []
        pool, skills = set(known[-self._pool_size :]), self._skills.all()
        if self._matchmaker is not None:
            were = pool.union(before)
            candidates = self._stats_of([each for each in known if each in were], skills)
            pool |= self._matchmaker.pinned(candidates)
        self._past[policy] = [player for player in known if player in pool]
        self._fade(policy)
        self._probabilities[policy] = []
        if self._matchmaker is not None and self._past[policy]:
            own, *past = self._stats_of([version, *self._past[policy]], skills)
            self._probabilities[policy] = self._matchmaker.probabilities(own, past)

    def _stats_of(
        self, players: Sequence[PlayerId], skills: Mapping[str, Skill]
    ) -> list[VersionStats]:
        return [
            VersionStats(player, *skills[player.name], *self._payoffs.get(player, (0.0, 0.0)))
            for player in players
        ]

    def _fade(self, policy: str) -> None:
        """Let pay-offs against the versions that are met count less, and forget the others."""
        kept = set(self._past[policy])
        self._payoffs = {
            player: (won * PAYOFF_DECAY, games * PAYOFF_DECAY) if player in kept else (won, games)
            for player, (won, games) in self._payoffs.items()
            if player in kept or player.label != policy
        }

    def current(self, policy: str) -> PlayerId:
        """A policy's current version; 0 before any was announced."""
        return self._current.get(policy, PlayerId.policy(0, policy))

    def past(self, policy: str) -> list[PlayerId]:
        """A policy's versions before the current one that it meets: the newest and pinned ones."""
        return self._past.get(policy, [])

    def probabilities(self, policy: str) -> list[float]:
        """How likely each of them is met until the next is announced; empty where all alike."""
        return self._probabilities.get(policy, [])

    def record(self, games: Iterable[GameResult | PlayedGame]) -> None:
        """Count and rate finished games, one after the other, each once for each player in it.

        Left out are games of a player with itself, which compare nobody, and those with an opening,
        whose first moves others made. A player that held several sides enters with their mean; a
        team is one side, and its player one skill, however many seats it has.
        """
        matches: list[Match] = []
        for game in games:
            self._count(game.spec)
            if not game.spec.opening and (match := self._match(game)) is not None:
                matches.append(match)
        if matches:
            self._skills.rate(matches)

    def _match(self, result: GameResult | PlayedGame) -> Match | None:
        """What is rated of a game, which is counted; None where nobody meets another one."""
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
        """Count what the newest of a policy's versions in a game won against each older one."""
        newest = max(scores, key=_age)
        for player, its in scores.items():
            if player.label == newest.label and player.version != newest.version:
                won, games = self._payoffs.get(player, (0.0, 0.0))
                own = scores[newest]
                self._payoffs[player] = won + (own > its) + 0.5 * (own == its), games + 1

    def _count(self, spec: GameSpec) -> None:
        """Keep the order in which kinds of games came, so that files can tell it."""
        if spec.purpose == "train":
            self._trained += 1
            return
        # The evaluated version is the newest one: others are its past.
        versions = [seat.player for seat in spec.seats if seat.player.version is not None]
        if versions:
            self._mark("evaluated", max(versions, key=lambda player: player.version or 0))

    def end_round(self, policy: str) -> None:
        """The training games since the last round came in the order of their numbers."""
        self._mark("played", self.current(policy))

    def _mark(self, what: Event, version: PlayerId) -> None:
        assert version.version is not None
        mark = what, version.version, self._trained
        if mark not in self._marks[-1:]:
            self._marks.append(mark)

    def draw_probability(self, env: str) -> float:
        """How often equals draw: their share in the games of players with themselves.

        Ten games' weight has what a fit says of equals, or else the share in all other games, of
        unequals too, who draw less often.
        """
        met, drawn = self._draws.get(env, (0, 0))
        others = self._fitted.get(env) or (PRIOR_DRAWS + drawn) / (PRIOR_GAMES + met)
        met, drawn = self._equals.get(env, (0, 0))
        return min(MOST_DRAWS, (PRIOR_GAMES * others + drawn) / (PRIOR_GAMES + met))

    def _count_draws(self, spec: GameSpec, ranked: Sequence[float]) -> None:
        """Count neighbours in the order of the sides' outcomes, as TrueSkill compares them."""
        ordered = sorted([ranked[side[0]] for side in spec.sides])
        itself = len({seat.player for seat in spec.seats}) == 1
        counts = self._equals if itself else self._draws
        met, drawn = counts.get(spec.env, (0, 0))
        drawn += sum([low == high for low, high in pairwise(ordered)])
        counts[spec.env] = met + len(ordered) - 1, drawn

    def ratings(self) -> list[Rating]:
        """Everybody who has played and the current versions, strongest first."""
        present = {*self._results, *self._current.values()}
        skills = self._skills.all()
        rows = [self._rating(player, *skills[player.name]) for player in present]
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
        """All that a resume needs."""
        results = {each.name: dict(counts) for each, counts in self._results.items()}
        return RegistryState(
            ratings=self._skills.all(),
            results=results,
            draws=dict(self._draws),
            equals=dict(self._equals),
            trained=self._trained,
            marks=list(self._marks),
            past={policy: [each.name for each in past] for policy, past in self._past.items()},
            probabilities=dict(self._probabilities),
            payoffs={player.name: each for player, each in self._payoffs.items()},
        )

    def restore(self, state: RegistryState) -> None:
        """Continue from what `state` returned; each policy's newest version becomes the current."""
        for name, (mu, sigma) in state.ratings.items():
            self._put(PlayerId.parse(name), mu, sigma)
        self._results = {
            PlayerId.parse(name): Counter(counts) for name, counts in state.results.items()
        }
        self._draws, self._equals = dict(state.draws), dict(state.equals)
        self._trained, self._marks = state.trained, list(state.marks)
        players = map(PlayerId.parse, self._skills.all())
        versions = [player for player in players if player.version is not None]
        self._versions = {}
        for player in sorted(versions, key=lambda player: player.version or 0):
            self._versions.setdefault(player.label, []).append(player)
        self._current = {policy: added[-1] for policy, added in self._versions.items()}
        self._past = {name: [*map(PlayerId.parse, past)] for name, past in state.past.items()}
        self._probabilities = dict(state.probabilities)
        self._payoffs = {PlayerId.parse(name): each for name, each in state.payoffs.items()}


def _age(player: PlayerId) -> int:
    """A number by which versions come in order, after all who have none."""
    return -1 if player.version is None else player.version
