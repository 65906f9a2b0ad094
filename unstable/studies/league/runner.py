"""Runs the turns of a league, each once those that it depends on are over."""

from collections.abc import Sequence

from unstable.records.text import percent
from unstable.studies.league.members import League, results
from unstable.studies.league.population import needed
from unstable.studies.several import Runs
from unstable.studies.shares import Share
from unstable.types.tallies import added


class Runner(Runs):
    """The members' runs, in the order of generations."""

    def __init__(self, league: League, shares: Sequence[Share | None]) -> None:
        self._turns = {turn.name: turn for turn in league.turns}
        jobs = {name: league.job(turn) for name, turn in self._turns.items()}
        super().__init__(league.folder, jobs, shares, lambda: None)
        self._league = league
        self._needed = {
            turn.name: {each.name for each in needed(league.config, turn, league.turns)}
            for turn in league.turns
        }

    def due(self) -> list[str]:
        """Those whose opponents and own past are there."""
        return [name for name, needed in self._needed.items() if needed <= self.done]

    def result(self, name: str) -> str:
        """Its score against all frozen versions that it met."""
        known, turn = results(self.folder.run(name)), self._turns[name]
        tally = added(known.of(each.name) for each in self._league.met(turn))
        if not tally.games:
            return "it has met itself alone"
        return f"{percent(tally.share)} of {tally.games:,} games against frozen versions"
