"""Inputs of each run of a league, from the league's file and the folders of earlier runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from unstable.config import ConfigError, RunConfig, load
from unstable.league.evaluation import rated_games
from unstable.league.fit import Ranking, ranking
from unstable.league.past import tallies
from unstable.records.folder import RunFolder
from unstable.records.reading import Skipped
from unstable.records.text import command_line, percent
from unstable.studies.league.config import LeagueConfig, read_league
from unstable.studies.league.population import (
    MemberTurn,
    begins_anew,
    met,
    needed,
    newest,
    turns,
    weights,
)
from unstable.studies.rebuilding import results_of
from unstable.studies.several import Runs, StudyFolder, TrainJob, digest, train_words
from unstable.studies.shares import Share
from unstable.types import PlayerId
from unstable.types.seeds import derive_seed
from unstable.types.tallies import Tally, added


@dataclass(frozen=True, slots=True)
class LeagueFolder(StudyFolder):
    """A league: LeagueFolder(Path("out")).run("main-2") is out/members/main/generation-2."""

    kind = "league"
    below = "members"
    listed = "members.jsonl"

    def run(self, name: str) -> RunFolder:
        member, _, generation = name.rpartition("-")
        return RunFolder(self.root / self.below / member / f"generation-{generation}")

    def read(self) -> LeagueConfig:
        """Read the league of this folder."""
        return read_league(self.text(), str(self.file))


class Results(NamedTuple):
    """Tallies of a run's policy against each opponent that is not a version of its own run."""

    games: dict[str, Tally]  # all recorded games
    end: dict[str, Tally]  # the last version's evaluation

    def of(self, opponent: str) -> Tally:
        """Return the tally against an opponent: its last evaluation, else all games."""
        return self.end.get(opponent) or self.games.get(opponent, Tally())


class League(NamedTuple):
    """A league, its folder, all turns in order, and the base config of each member's runs."""

    folder: LeagueFolder
    config: LeagueConfig
    turns: list[MemberTurn]
    bases: dict[str, RunConfig]

    @property
    def size(self) -> str:
        """Number of runs, members and generations, in words."""
        count, generations = len(self.config.members), self.config.generations
        return f"{len(self.turns)} runs ({count} members, {generations} generations)"

    def digests(self) -> dict[str, str]:
        """Return the digest of each member's base config."""
        return {name: digest(base) for name, base in self.bases.items()}

    def lines(self) -> list[dict[str, str]]:
        """Return the digests as rows of `members.jsonl`."""
        return [{"member": name, "digest": each} for name, each in self.digests().items()]

    def met(self, turn: MemberTurn) -> list[MemberTurn]:
        """Return the frozen versions that a turn's run meets."""
        return met(self.config, turn, self.turns)

    def before(self, turn: MemberTurn) -> MemberTurn | None:
        """Return the member's turn in the previous generation; None if it had none."""
        last = MemberTurn(turn.member, turn.generation - 1)
        return last if last in self.turns else None

    def version(self, turn: MemberTurn) -> Path:
        """Return the checkpoint of the version that a turn ends with."""
        run = self.folder.run(turn.name)
        return run.checkpoint(max(run.versions(), default=self.config.updates)).resolve()

    def fields(self, turn: MemberTurn) -> dict[str, Any]:
        """Return the fields of a turn's run, by dotted path."""
        versions, last = self.met(turn), self.before(turn)
        known = [results(self.folder.run(each.name)) for each in self._since_the_start(turn)]
        shares = self.config.members[turn.member].shares
        draw = shares.model_dump() | ({} if versions else {"fixed": 0.0})
        often = weights(self.config.meet, [v.name for v in versions], [own.games for own in known])
        evaluated = [each.name for each in newest(versions)]
        fields = {
            **self.config.fields(turn.member),
            "opponents.draw": draw,
            "opponents.fixed": [
                {
                    "kind": "checkpoint",
                    "name": each.name,
                    "path": str(self.version(each)),
                    "weight": often[each.name],
                }
                for each in versions
            ],
            "eval.opponents": [*self.bases[turn.member].eval.opponents, *evaluated],
            "seed": derive_seed(self.config.seed, turn.name) % 2**31,
        }
        scored, member = None, self.config.members[turn.member]
        if last is not None:
            scored = added(known[0].of(each.name) for each in self.met(last))
        left = 0 if member.restarts == "each" else self.config.generations - turn.generation
        fields["learner.updates_after"] = left * self.config.updates
        if last is None or begins_anew(member, scored):
            return fields
        start = str(self.version(last))
        before = len(known) * self.config.updates
        going_on = {"model.init": start, "learner.state": start, "learner.updates_before": before}
        return {**fields, **going_on}

    def job(self, turn: MemberTurn) -> TrainJob:
        """Return the job of a turn's run, which reads earlier runs' results as it starts."""
        run, updates = self.folder.run(turn.name), self.config.updates
        return TrainJob(run, turn.name, updates, partial(self.words, turn))

    def words(self, turn: MemberTurn) -> list[str]:
        """Return the arguments of `unstable` that start a turn's run."""
        return train_words(self.config.config, self.fields(turn))

    def command(self, turn: MemberTurn) -> str:
        """Return the whole command line of a turn's run."""
        return command_line("unstable", *self.words(turn))

    def _since_the_start(self, turn: MemberTurn) -> list[MemberTurn]:
        """Return the member's earlier turns, newest first, back to its latest restart."""
        found, last = [], self.before(turn)
        while last is not None:
            found.append(last)
            last = None if began_anew(self.folder.run(last.name)) else self.before(last)
        return found


def league_of(folder: LeagueFolder, config: LeagueConfig) -> League:
    """Return the league with each member's base config; raises `ConfigError` for invalid ones."""
    bases = {}
    for name in config.members:
        alone = {"opponents.draw": {"self": 1.0, "past": 0.0, "fixed": 0.0}, "opponents.fixed": []}
        try:
            bases[name] = load(config.config, {**config.fields(name), **alone})
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
    return League(folder, config, turns(config), bases)


def began_anew(folder: RunFolder) -> bool:
    """Return whether a run has begun from the start, without another run's learner state."""
    return folder.config.is_file() and load(str(folder.config)).learner.state is None


def results(folder: RunFolder) -> Results:
    """Return a run's rated results; games with openings by other players do not count."""
    skipped, last = Skipped(), max(folder.versions(), default=0)
    found: dict[bool, list[Ranking]] = {True: [], False: []}
    files = [*folder.game_files()]
    config = load(str(folder.config)) if files else RunConfig()
    for file in files:
        is_eval, games = file.purpose == "eval", results_of(file, skipped)
        rated = rated_games(config, file.version, games) if is_eval else games
        found[is_eval and file.version == last] += filter(None, map(ranking, rated))
    return Results(_against(chain(*found.values())), _against(found[True]))


def _against(games: Iterable[Ranking]) -> dict[str, Tally]:
    """Return the tally of all versions of the policy together, by opponent."""
    met: dict[str, list[Tally]] = {}
    for (one, other), tally in tallies(games).items():
        if PlayerId.parse(one).version is not None and PlayerId.parse(other).version is None:
            met.setdefault(other, []).append(tally)
    return {name: added(each) for name, each in met.items()}


class Runner(Runs):
    """Runner of the members' runs, in the order of generations."""

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
        return [name for name, needed in self._needed.items() if needed <= self.done]

    def result(self, name: str) -> str:
        known, turn = results(self.folder.run(name)), self._turns[name]
        tally = added(known.of(each.name) for each in self._league.met(turn))
        if not tally.games:
            return "no games against frozen versions"
        return f"score {percent(tally.share)} in {tally.games:,} games against frozen versions"
