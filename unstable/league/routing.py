"""Routing: which actor plays what, so that games with the same adapters share an engine.

An engine that mixes few adapters in a forward pass is faster and evicts none. Every past version
has a home among the actors; an actor looks a few groups ahead and takes one that is at home with
it, or at home nowhere, before any other.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from zlib import crc32

from unstable.config import RunConfig
from unstable.league.schedule import Schedule
from unstable.types import GameSpec, PlayerId

AHEAD_PER_ACTOR = 2
"""Groups that are drawn ahead, so that there is a choice."""


class Router:
    """Deals the schedule's groups to actors; none is passed over more often than there are ahead.

    With one actor this is the schedule's own order.
    """

    def __init__(self, config: RunConfig, schedule: Schedule, num_actors: int) -> None:
        fixed = config.opponents.fixed
        self._adapters = {PlayerId(each.key) for each in fixed if each.adapter_folder is not None}
        self._schedule = schedule
        self._num_actors = num_actors
        self._ahead = AHEAD_PER_ACTOR * num_actors if num_actors > 1 else 1
        self._groups: deque[list[GameSpec]] = deque()
        self._left: deque[list[GameSpec]] = deque()
        self._policy: PlayerId | None = None  # that groups are drawn for
        self._passed_over = 0  # the oldest group, how often

    def draw(self, actor: int, policy: PlayerId, past: Sequence[PlayerId]) -> list[GameSpec]:
        """The group that `actor` plays next, to train `policy`; see `Schedule.draw`."""
        if self._left:
            return self._left.popleft()
        if policy != self._policy:  # groups drawn for the version before would only be staler
            self._groups.clear()
            self._policy = policy
            self._passed_over = 0
        while len(self._groups) < self._ahead:
            self._groups.append(self._schedule.draw(policy, past))
        fitting = (i for i, group in enumerate(self._groups) if self._home(group) in (actor, None))
        place = 0 if self._passed_over >= self._ahead else next(fitting, 0)
        self._passed_over = self._passed_over + 1 if place else 0
        group = self._groups[place]
        del self._groups[place]
        return group

    def ahead(self, policy: PlayerId) -> list[GameSpec]:
        """Games drawn to train `policy`, or left of a former run, that are not dealt yet."""
        drawn = self._groups if policy == self._policy else ()
        return list(chain(*self._left, *drawn))

    def deal_first(self, games: Iterable[GameSpec]) -> None:
        """Deal what is left of groups that were dealt once, before any other."""
        groups: dict[int, list[GameSpec]] = {}
        for spec in sorted(games, key=lambda spec: spec.game_id):
            groups.setdefault(spec.game_id - spec.member, []).append(spec)
        self._left.extend(groups.values())

    def _home(self, group: list[GameSpec]) -> int | None:
        """The actor where the group's opponent is at home; None if any will do."""
        for seat in group[0].seats:
            version = seat.player.version
            if version is not None and seat.player != self._policy:
                return version % self._num_actors
            if seat.player in self._adapters:
                return crc32(seat.player.name.encode()) % self._num_actors
        return None
