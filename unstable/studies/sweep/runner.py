"""Runner of a sweep's trials, as many concurrently as there are shares."""

from collections.abc import Callable, Sequence

from unstable.commands.session import status
from unstable.config import ConfigError, nearest
from unstable.records.reading import Skipped, read_rows
from unstable.records.text import number
from unstable.studies.several import Runs
from unstable.studies.shares import Share
from unstable.studies.sweep.halving import decide, going, next_rung
from unstable.studies.sweep.report import Outcome, arrival
from unstable.studies.sweep.trials import Sweep, Trial


class SweepRunner(Runs):
    """Runner of trials that stops settings at rungs; it calls `changed` when a run ends."""

    def __init__(
        self, sweep: Sweep, shares: Sequence[Share | None], changed: Callable[[], None]
    ) -> None:
        jobs = {each.name: each.job(sweep.folder) for each in sweep.trials}
        super().__init__(sweep.folder, jobs, shares, changed)
        self._sweep = sweep
        self._trials = {each.name: each for each in sweep.trials}
        self._decisions = sweep.folder.decisions()
        self._arrived: dict[tuple[str, int], float] = {}  # values at rungs
        self._looked: dict[tuple[str, int], tuple[int, bool]] = {}  # file size, and whether done
        for name in sorted(self.done):
            self.result(name)

    def due(self) -> list[str]:
        waiting = self._decide()
        left = going([each.setting.name for each in self._trials.values()], self._decisions)
        held = {name for name, each in self._trials.items() if each.setting.name not in left}
        self.hold(held | waiting)
        return [name for name in self._trials if name not in held | waiting]

    def result(self, name: str) -> str:
        metric, skipped = self._sweep.measure.metric, Skipped()
        rows = self._trials[name].job(self._sweep.folder).rows(skipped)
        values = [value for row in rows if (value := row.get(metric)) is not None]
        is_first = self._trials[name].setting.name == self._sweep.trials[0].setting.name
        if rows and is_first and not values and not skipped:
            hint = nearest(metric, sorted({each for row in rows for each in row}))
            raise ConfigError(f"metric = {metric!r}: missing in {name}, which is complete; {hint}")
        return number(values[-1] if values else None)

    def _decide(self) -> set[str]:
        """Decide the rungs that all runs have reached; return the runs that wait at the next."""
        config, measure = self._sweep.config, self._sweep.measure
        trials, folder = self._sweep.trials, self._sweep.folder
        stop, names = config.stop, [each.setting.name for each in trials]
        while stop and (rung := next_rung(stop, self._decisions)) is not None:
            values: dict[str, list[float]] = {name: [] for name in going(names, self._decisions)}
            there = [each for each in trials if each.setting.name in values]
            found = {each.name: self._at(each.name, rung, stop.by) for each in there}
            come = {name for name, value in found.items() if value is not None}
            if found.keys() - come - self.done - self.failed:
                return come
            for trial in there:
                value = found[trial.name]
                values[trial.setting.name] += [] if value is None else [value]
            decision = decide(rung, stop, values, len(config.seeds), measure.sign)
            folder.add_decision(decision)
            self._decisions.append(decision)
            status(f"rung {rung}: continuing {', '.join(decision.kept) or 'no setting'}")
        return set()

    def _at(self, name: str, rung: int, by: str) -> float | None:
        """Return a run's value at a rung, None before it; rows are reread only after changes."""
        key, path = (name, rung), self.folder.run(name).metrics
        look = path.stat().st_size if path.is_file() else 0, name in self.done
        if key not in self._arrived and self._looked.get(key) != look:
            self._looked[key] = look
            metric = self._sweep.measure.metric
            found = arrival(read_rows(path), metric, rung, by, ended=look[1])
            if found is not None:
                self._arrived[key] = found[1]
        return self._arrived.get(key)


def outcomes(sweep: Sweep) -> list[Outcome]:
    """Return the outcome of each run; a stopped one counts up to the rung that stopped it."""
    folder, stop = sweep.folder, sweep.config.stop
    failures, decisions = folder.failures(), folder.decisions()

    def of(trial: Trial) -> Outcome:
        run, name = folder.run(trial.name), trial.setting.name
        job, line = trial.job(folder), failures.get(trial.name, "")
        skipped = Skipped()
        rows, state = job.rows(skipped), job.state()
        stopped = [each.rung for each in decisions if name not in each.kept]
        if line:
            state = "failed"
        elif stopped and stop is not None:
            state = "stopped"  # its progress beyond the rung is arbitrary
            at = arrival(rows, sweep.measure.metric, stopped[0], stop.by)
            rows = [row for row in rows if at is None or row["version"] <= at[0]]
        line = line or skipped.line
        return Outcome(
            *(trial.name, name, trial.seed, state, rows, trial.command(folder), str(run.root), line)
        )

    return [of(trial) for trial in sweep.trials]
