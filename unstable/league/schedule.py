"""Schedule of training games: draws games, opponents and seats from its own random state.

A group is handed out whole: its games have the same env, seed, seats and players, and differ by
what is sampled. Players are drawn for sides: a team's seats have one player.

Groups are dealt to actors so that games with the same adapters share an engine: an engine that
mixes few adapters in a forward pass is faster and evicts none. Every past version has a home among
the actors; an actor looks a few groups ahead and prefers the first group with this home, or with
none. No group is passed over more often than groups are drawn ahead. With one actor, groups are
dealt in the order in which they are drawn.
"""

import random
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import TypeVar
from zlib import crc32

from msgspec.structs import replace

from unstable.config import GameConfig, RunConfig
from unstable.league.matchmaking import Frequencies
from unstable.league.series import (
    LONGEST_STRETCH,
    MOST_AGAIN,
    ScheduleState,
    SeriesPlace,
    Stretch,
)
from unstable.types import BASE, GameSpec, PlayerId, SeatSpec
from unstable.types.seeds import derive_seed

AHEAD_PER_ACTOR = 2
"""Groups drawn ahead for each actor, so that there is a choice."""
Thing = TypeVar("Thing")


class Schedule:
    """Endless series of training games, determined by the config and its seed.

    `shares` are the shares of the kinds of opponents, and `envs` the probabilities of the envs;
    both are the config's until they are changed.
    """

    def __init__(self, config: RunConfig, num_actors: int = 1) -> None:
        self._config = config
        self.shares = config.opponents.draw
        self._known = config.opponents.fixed
        self._fixed = list(self._known)
        self._random = random.Random(derive_seed(config.seed, "schedule"))
        self.envs: list[float] = []
        self._weights = [game.weight for game in config.games]
        self._env_weights = list(accumulate(self._weights))  # current weights, cumulative
        self.next_game = 0  # id of the first game of the next group
        self._next_group = 0
        self._stretches: list[tuple[Stretch, SeriesPlace]] = []
        self._drawn_with: tuple[object, ...] = ()
        self._stretch_ends = 0
        self._frequencies = Frequencies()
        self._env_frequencies = Frequencies()
        self._probabilities: list[float] = []  # of the current past versions
        self._most_in_group = 1 + config.group_size
        adapters = [each for each in self._fixed if each.adapter_folder is not None]
        self._adapters = {PlayerId(each.key) for each in adapters}
        self.resize(num_actors)
        self._ahead: deque[list[GameSpec]] = deque()  # groups drawn but not dealt
        self._left: deque[list[GameSpec]] = deque()  # groups of a resumed run, dealt first
        self._policy: PlayerId | None = None  # trained by the groups ahead
        self._passed_over = 0  # times that the oldest group ahead was skipped

    def resize(self, num_actors: int) -> None:
        """Deal to `num_actors` actors from now on."""
        self._num_actors = num_actors
        self._most_ahead = AHEAD_PER_ACTOR * num_actors if num_actors > 1 else 1

    def draw(
        self,
        actor: int,
        policy: PlayerId,
        past: Sequence[PlayerId],
        probabilities: Sequence[float] = (),
    ) -> list[GameSpec]:
        """Return the group that `actor` plays next, to train `policy`; see `draw_group`."""
        if self._left:
            return self._left.popleft()
        if policy != self._policy:  # drop groups of the previous version
            self._ahead.clear()
            self._policy, self._passed_over = policy, 0
        while len(self._ahead) < self._most_ahead:
            self._ahead.append(self.draw_group(policy, past, probabilities))
        fitting = (i for i, group in enumerate(self._ahead) if self._home(group) in (actor, None))
        index = 0 if self._passed_over >= self._most_ahead else next(fitting, 0)
        self._passed_over = self._passed_over + 1 if index else 0
        group = self._ahead[index]
        del self._ahead[index]
        return group

    def draw_group(
        self, policy: PlayerId, past: Sequence[PlayerId], probabilities: Sequence[float] = ()
    ) -> list[GameSpec]:
        """Draw the next group to train `policy`, against itself, `past` or the config's opponents.

        `probabilities` are those of the versions in `past`; without them all are equally likely.
        One kind of opponent (self, past, fixed) is drawn for a group, and one opponent of that kind
        for each other side. Against itself the policy is trained in every seat, otherwise in those
        of one side; games that branch train one seat, since a fork precedes the turn of one seat.
        """
        self._mark(policy, past, list(probabilities))
        size, branches = self._config.group_size, self._config.groups.by == "branch"
        first = self._spec(policy, past, branches=size if branches else 0)
        if branches:
            self.next_game += 1 + size
            return [first]
        self.next_game += size
        others = range(1, size)
        return [first, *(replace(first, game_id=first.game_id + k, member=k) for k in others)]

    def _mark(self, policy: PlayerId, past: Sequence[PlayerId], probabilities: list[float]) -> None:
        """Begin a stretch if games are drawn differently from now on."""
        way = (policy, past, probabilities, self.shares, self._fixed, self.envs)
        if way == self._drawn_with and self.next_game < self._stretch_ends:
            return
        self._stretch_ends = self.next_game + LONGEST_STRETCH - self._most_in_group
        fixed = list(self._fixed)
        self._drawn_with = policy, list(past), probabilities, self.shares, fixed, self.envs
        self._probabilities = probabilities
        self._env_weights = list(accumulate(self.envs or self._weights))
        self._frequencies.begin([player.name for player in past], probabilities)
        if self.envs:
            self._env_frequencies.begin([game.key for game in self._config.games], self.envs)
        stretch = Stretch(
            first=self.next_game,
            policy=policy.name,
            past=[player.name for player in past],
            probabilities=probabilities,
            shares=self.shares,
            fixed=[opponent.key for opponent in self._fixed],
            envs=self.envs,
        )
        self._stretches.append((stretch, self._place()))

    def forget(self, before: int | None) -> None:
        """Drop what is needed to draw games before `before` again; None drops all games so far.

        Games more than `MOST_AGAIN` games ago are dropped in any case.
        """
        if before is None:
            self._stretches, self._drawn_with = [], ()
            return
        before = max(before, self.oldest_again)
        while len(self._stretches) > 1 and self._stretches[1][0].first <= before:
            del self._stretches[0]

    @property
    def oldest_again(self) -> int:
        """Id of the oldest game that can certainly be drawn again."""
        return max(0, self.next_game - MOST_AGAIN)

    def drawn_again(self, games: Collection[int]) -> list[GameSpec]:
        """Draw games of the series again by their ids, equal to the first time."""
        stretches = [stretch for stretch, _ in self._stretches]
        if not games or not stretches:
            return []
        again = self._again(self._stretches[0][1], stretches, max(games) + 1)
        return [spec for *_, drawn in again for spec in drawn if spec.game_id in games]

    def _again(
        self, since: SeriesPlace, stretches: Sequence[Stretch], end: int
    ) -> Iterator[tuple[Stretch, SeriesPlace, list[GameSpec]]]:
        """Yield each stretch, the place where it began, and its groups begun before `end`."""
        series = Schedule(self._config)
        series._go_to(since)
        ends = [*(stretch.first for stretch in stretches[1:]), end]
        for stretch, own_end in zip(stretches, ends, strict=True):
            place, drawn = series._place(), list[GameSpec]()
            series.shares, series.envs = stretch.shares, stretch.envs
            series._fixed = [each for each in self._known if each.key in stretch.fixed]
            policy, past = PlayerId.parse(stretch.policy), list(map(PlayerId.parse, stretch.past))
            while series.next_game < min(own_end, end):
                drawn += series.draw_group(policy, past, stretch.probabilities)
            yield stretch, place, drawn

    def leave_out(self, opponent: str) -> bool:
        """Stop drawing a fixed opponent; returns whether it was drawn. A resume forgets this."""
        left = [each for each in self._fixed if each.key != opponent]
        was_drawn, self._fixed = len(left) < len(self._fixed), left
        return was_drawn

    def _spec(self, policy: PlayerId, past: Sequence[PlayerId], branches: int) -> GameSpec:
        games = self._config.games
        game = self._random.choices(games, cum_weights=self._env_weights)[0]
        if self.envs:
            self._env_frequencies.add(game.key)
        kind = self._kind(past)
        if kind == "self" and not branches:
            seats = [self._trained(policy) for _ in range(game.seats)]
        else:
            seats = self._against_others(game, kind, policy, past, branches)
        seed = derive_seed(self._config.seed, "game", self.next_game)
        opening = self._opening(seed)
        return GameSpec(
            game_id=self.next_game,
            purpose="train",
            env=game.key,
            seed=seed,
            seats=tuple(seats),
            teams=game.teams,
            branches=branches,
            opening=opening,
            opener=self._opener(policy) if opening else None,
            ensemble=self._ensemble(policy, past) if branches else (),
        )

    def _against_others(
        self,
        game: GameConfig,
        kind: str,
        policy: PlayerId,
        past: Sequence[PlayerId],
        branches: int,
    ) -> list[SeatSpec]:
        """Return a game's seats: the policy on one side, an opponent on each other side."""
        sides = game.sides
        others = iter([self._opponent(kind, policy, past) for _ in sides[1:]])
        own = sides[self._random.randrange(len(sides))]
        one = self._random.choice(own) if branches and len(own) > 1 else None
        seats: dict[int, SeatSpec] = {}
        for side in sides:
            if side != own:
                seats |= dict.fromkeys(side, next(others))
        for seat in own:
            is_trained = one in (None, seat)
            mate = SeatSpec(player=policy, temperature=self._config.sampling.temperature)
            seats[seat] = self._trained(policy) if is_trained else mate
        return [seats[seat] for seat in range(game.seats)]

    def _ensemble(self, policy: PlayerId, past: Sequence[PlayerId]) -> tuple[PlayerId, ...]:
        """Return the policy and evenly spaced past versions, which choose how branches begin."""
        explore = self._config.groups.explore
        if explore.rule == "none":
            return ()
        number = min(explore.ensemble - 1, len(past))
        return (*(past[index * len(past) // number] for index in range(number)), policy)

    def _opening(self, seed: int) -> int:
        """Return the number of opening moves, derived from `seed` so that no other draw changes."""
        openings = self._config.openings
        if not openings.share:
            return 0
        chance = random.Random(derive_seed(seed, "opening"))
        return chance.randint(*openings.moves) if chance.random() < openings.share else 0

    def _opener(self, policy: PlayerId) -> SeatSpec:
        """Return the player of the opening moves."""
        start = PlayerId.policy(0, policy.label)
        openers = {"start": start, "random": PlayerId("random"), "base": BASE}
        player = openers[self._config.openings.by]
        return SeatSpec(player=player, temperature=self._config.sampling.temperature)

    def _kind(self, past: Sequence[PlayerId]) -> str:
        """Draw self, past or fixed by their shares; past and fixed require such an opponent."""
        draw = self.shares
        weights = draw.self, draw.past if past else 0.0, draw.fixed if self._fixed else 0.0
        if not any(weights):
            return "self"
        return self._random.choices(("self", "past", "fixed"), weights)[0]

    def _trained(self, policy: PlayerId) -> SeatSpec:
        group_id = self._next_group
        self._next_group += 1
        temperature = self._config.sampling.temperature
        return SeatSpec(
            player=policy,
            temperature=temperature,
            group_id=group_id,
            group_size=self._config.group_size,
        )

    def _opponent(self, kind: str, policy: PlayerId, past: Sequence[PlayerId]) -> SeatSpec:
        temperature = self._config.sampling.temperature
        if kind == "self":
            return SeatSpec(player=policy, temperature=temperature)
        if kind == "past":
            player = self._one_of(past, self._probabilities)
            self._frequencies.add(player.name)
            return SeatSpec(player=player, temperature=temperature)
        weights = [each.weight for each in self._fixed]
        opponent = self._one_of(self._fixed, weights if len({*weights}) > 1 else ())
        own = getattr(opponent, "temperature", None)  # only models have one
        return SeatSpec(
            player=PlayerId(opponent.key), temperature=temperature if own is None else own
        )

    def _one_of(self, things: Sequence[Thing], weights: Sequence[float]) -> Thing:
        """Draw a thing by its weight; without weights all are equally likely."""
        if not weights:
            return self._random.choice(things)
        return self._random.choices(things, weights)[0]

    def _place(self) -> SeriesPlace:
        state = self._random.getstate()
        return SeriesPlace.model_construct(
            next_game=self.next_game, next_group=self._next_group, random=state
        )

    def _go_to(self, place: SeriesPlace) -> None:
        self.next_game, self._next_group = place.next_game, place.next_group
        self._random.setstate(place.random)

    def state(self) -> ScheduleState:
        """Return the state that `restore` takes."""
        return ScheduleState.model_construct(
            now=self._place(),
            shares=self.shares,
            envs=self.envs,
            met=self._frequencies.take(),
            drawn=self._env_frequencies.take(),
            since=self._stretches[0][1] if self._stretches else None,
            stretches=[stretch for stretch, _ in self._stretches],
        )

    def restore(self, state: ScheduleState) -> None:
        """Continue the series from what `state` returned."""
        self._stretches, self._drawn_with = [], ()
        self._frequencies.restore(state.met)
        self._env_frequencies.restore(state.drawn)
        if state.since is not None:
            again = self._again(state.since, state.stretches, state.now.next_game)
            self._stretches = [(stretch, place) for stretch, place, _ in again]
        self.shares, self.envs = state.shares, state.envs
        self._go_to(state.now)

    def ahead(self, policy: PlayerId) -> list[GameSpec]:
        """Return the games drawn for `policy`, or left by a former run, that are not dealt yet."""
        drawn = self._ahead if policy == self._policy else ()
        return list(chain(*self._left, *drawn))

    def deal_first(self, games: Iterable[GameSpec]) -> None:
        """Deal what is left of groups that were dealt before a resume, before any other group."""
        groups: dict[int, list[GameSpec]] = {}
        for spec in sorted(games, key=lambda spec: spec.game_id):
            groups.setdefault(spec.game_id - spec.member, []).append(spec)
        self._left.extend(groups.values())

    def _home(self, group: list[GameSpec]) -> int | None:
        """Return the actor that is home to the group's opponent; None if any actor will do."""
        for seat in group[0].seats:
            version = seat.player.version
            if version is not None and seat.player != self._policy:
                return version % self._num_actors
            if seat.player in self._adapters:
                return crc32(seat.player.name.encode()) % self._num_actors
        return None
