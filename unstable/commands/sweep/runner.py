"""Runs the trials of a sweep, as many at once as there are shares, until nothing is left to do."""

import shutil
import signal
import time
from collections.abc import Callable, Sequence

from unstable.commands.diagnosis import condition_of, status_of
from unstable.commands.session import Terminated, handled, status
from unstable.commands.sweep.halving import decide, going, next_rung
from unstable.commands.sweep.trials import Sweep, Trial
from unstable.config import ConfigError
from unstable.loop.state import parse
from unstable.planning.shares import Share
from unstable.records.folder import RunFolder
from unstable.records.reading import read_rows
from unstable.records.sweep import SweepFolder
from unstable.records.text import number
from unstable.report.sweep import Outcome, arrival
from unstable.runtime.child import Child

LOOK_S = 0.5
IN_ORDER = (0, 130, 143, -signal.SIGINT, -signal.SIGTERM)
"""Exit codes of a run that was asked to end."""
_TAIL_BYTES = 2**16


class Runner:
    """Holds the processes; all else is read from folders. `changed` is called as a run ends."""

    def __init__(
        self,
        sweep: Sweep,
        shares: Sequence[Share | None],
        changed: Callable[[], None],
    ) -> None:
        self._sweep, self._changed = sweep, changed
        self._folder, self._trials = sweep.folder, sweep.trials
        self._free = list(shares)
        self._running: dict[str, tuple[Child, Share | None]] = {}
        self._asked: set[str] = set()  # to end, by us
        self._told: set[str] = set()
        self._done = {each.name for each in sweep.trials if is_over(self._of(each), each)}
        self._failed = set(sweep.folder.failures())
        self._decisions = sweep.folder.decisions()
        self._arrived: dict[tuple[str, int], float] = {}  # values at rungs
        self._looked: dict[tuple[str, int], tuple[int, bool]] = {}  # how long metrics were then
        self._signal: int | None = None

    def run(self) -> None:
        """Run what is left; raises what an interrupt raises, once all processes have ended."""
        with handled(self._interrupt):
            try:
                while self._step():
                    time.sleep(LOOK_S)
            finally:
                for child, _ in self._running.values():
                    child.send(signal.SIGTERM)
        if self._signal is not None:
            raise KeyboardInterrupt if self._signal == signal.SIGINT else Terminated

    def _of(self, trial: Trial) -> RunFolder:
        return self._folder.run(trial.name)

    def _interrupt(self, received: int, _: object) -> None:
        """Pass a signal on to all runs."""
        if self._signal is None:
            name = signal.Signals(received).name
            status(f"{name}: the runs end in order; a second one ends them now")
        self._signal = received
        for child, _share in self._running.values():
            child.send(_passed_on(received))

    def _step(self) -> bool:
        """Look once; returns whether anything is left to do."""
        for name in [*self._running]:
            self._collect(name)
        if self._signal is not None:
            return bool(self._running)
        waiting = self._decide()
        left = going([each.setting.name for each in self._trials], self._decisions)
        ready = []
        for trial in self._trials:
            holds = trial.setting.name not in left or trial.name in waiting
            if trial.name in self._running:
                if holds and trial.name not in self._asked:
                    self._asked.add(trial.name)
                    self._running[trial.name][0].send(signal.SIGINT)
            elif not holds and trial.name not in self._done | self._failed:
                ready.append(trial)
        for trial in ready:
            if self._free:
                self._start(trial)
        return bool(self._running or ready)

    def _decide(self) -> set[str]:
        """Decide the rungs that all have come to; returns the runs that wait at the next one."""
        config, measure = self._sweep.config, self._sweep.measure
        stop, names = config.stop, [each.setting.name for each in self._trials]
        while stop and (rung := next_rung(stop, self._decisions)) is not None:
            values: dict[str, list[float]] = {name: [] for name in going(names, self._decisions)}
            there = [each for each in self._trials if each.setting.name in values]
            found = {each.name: self._at(each.name, rung, stop.by) for each in there}
            come = {name for name, value in found.items() if value is not None}
            if found.keys() - come - self._done - self._failed:
                return come
            for trial in there:
                value = found[trial.name]
                values[trial.setting.name] += [] if value is None else [value]
            decision = decide(rung, stop, values, len(config.seeds), measure.sign)
            self._folder.add_decision(decision)
            self._decisions.append(decision)
            status(f"rung {rung}: {', '.join(decision.kept) or 'nothing'} goes on")
        return set()

    def _at(self, name: str, rung: int, by: str) -> float | None:
        """A run's value at a rung; its rows are read again only if there are more."""
        key, path = (name, rung), self._folder.run(name).metrics
        look = path.stat().st_size if path.is_file() else 0, name in self._done
        if key not in self._arrived and self._looked.get(key) != look:
            self._looked[key] = look
            metric = self._sweep.measure.metric
            found = arrival(read_rows(path), metric, rung, by, ended=look[1])
            if found is not None:
                self._arrived[key] = found[1]
        return self._arrived.get(key)

    def _start(self, trial: Trial) -> None:
        folder, name = self._of(trial), trial.name
        if folder.root.is_dir():
            try:
                with folder.held(name):
                    pass
            except ConfigError:
                if name not in self._told:
                    status(f"{name} still goes on in another process, which is waited for")
                self._told.add(name)
                return
        words = ["train", "--resume", str(folder.root)]
        if not any(folder.state(version).exists() for version in folder.versions()):
            shutil.rmtree(folder.root, ignore_errors=True)  # it ended before its first version
            words = [*trial.words, "--name", name, "--run_dir", str(folder.root)]
        share = self._free.pop(0)
        own = {} if share is None else share.variables
        child = Child(words, self._folder.log(name), () if share is None else share.cores, own)
        self._running[name] = child, share
        if self._signal is not None:  # it came just then
            child.send(_passed_on(self._signal))
        status(f"{name} {'goes on' if words[1] == '--resume' else 'begins'}")

    def _collect(self, name: str) -> None:
        """Take in a run whose process has ended."""
        child, share = self._running[name]
        if (code := child.exit_code) is None:
            return
        del self._running[name]
        self._free.append(share)
        asked = name in self._asked or self._signal is not None
        self._asked.discard(name)
        trial = next(each for each in self._trials if each.name == name)
        folder = self._folder.run(name)
        if is_over(folder, trial):
            self._done.add(name)
            values = [row.get(self._sweep.measure.metric) for row in read_rows(folder.metrics)]
            last = next((value for value in reversed(values) if value is not None), None)
            status(f"{name} is done: {number(last)}")
        elif not (asked and code in IN_ORDER):
            by = f"signal {-code}" if code < 0 else f"exit code {code}"
            line = f"{by}: {last_line(self._folder, name)}"
            self._folder.add_failure(name, line)
            self._failed.add(name)
            status(f"{name} failed, {line}")
        self._changed()


def _passed_on(received: int) -> signal.Signals:
    """Ctrl-C as it is, anything else as SIGTERM."""
    return signal.SIGINT if received == signal.SIGINT else signal.SIGTERM


def is_over(folder: RunFolder, trial: Trial) -> bool:
    """Whether a run has come to its end, by its own word or by its last state."""
    if status_of(folder).get("state") == "ended":
        return True
    version = max(folder.versions(), default=0)
    path = folder.state(version)
    if version < trial.config.loop.steps or not path.is_file():
        return False
    state = parse(path.read_bytes(), version)
    return state is not None and state.finalized and not state.evaluations


def last_line(folder: SweepFolder, name: str) -> str:
    """The last line that a run has printed."""
    with folder.log(name).open("rb") as file:
        file.seek(max(0, folder.log(name).stat().st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing was printed")


def outcomes(sweep: Sweep) -> list[Outcome]:
    """What each run has come to; one that was stopped, up to its last rung."""
    folder, stop = sweep.folder, sweep.config.stop
    failures, decisions = folder.failures(), folder.decisions()

    def of(trial: Trial) -> Outcome:
        run, name = folder.run(trial.name), trial.setting.name
        rows, line = read_rows(run.metrics), failures.get(trial.name, "")
        stopped = [each.rung for each in decisions if name not in each.kept]
        state = "waiting"
        if line:
            state = "failed"
        elif stopped and stop is not None:
            state = "stopped"  # how far it came beyond its rung is chance
            at = arrival(rows, sweep.measure.metric, stopped[0], stop.by)
            rows = [row for row in rows if at is None or row["version"] <= at[0]]
        elif is_over(run, trial):
            state = "done"
        elif condition_of(run, status_of(run), time.time()).word == "running":
            state = "running"
        return Outcome(
            *(trial.name, name, trial.seed, state, rows, trial.command, str(run.root), line)
        )

    return [of(trial) for trial in sweep.trials]
