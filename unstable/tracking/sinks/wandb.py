"""Sink that writes to Weights & Biases."""

import threading
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from unstable.config import ConfigError, RunConfig, escape_control
from unstable.config.plugins import faults_to
from unstable.records.folder import RunFolder
from unstable.tracking.sinks.base import Row, Sink
from unstable.types import EvalScore, PlayerId, RecordedGame

GAMES_TABLE = "eval/games"
MOST_GAMES = 16
MOST_CHARACTERS = 20_000
"""Characters of a game's text; the rest is left out."""
FINISH_S = 60.0
"""Seconds that the end of a run waits for a slow or unreachable server."""


class WandbRun(Sink):
    """Run of Weights & Biases, which a resumed run continues; raises `ConfigError` at the start.

    It receives rows, a table of sample games for each evaluation, and at the end the report as an
    artifact. `WANDB_MODE=offline` keeps all of it in the run's folder, for manual syncing.
    """

    name = "Weights & Biases"

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        import wandb

        # Folders are named [offline-]run-DATE_TIME-ID; an id may contain hyphens.
        former = sorted((folder.root / "wandb").glob("*run-*-*"))
        try:
            self._run = wandb.init(
                project=config.tracking.wandb,
                name=config.tracking.name or folder.root.name,
                tags=config.tracking.tags,
                dir=folder.root,
                config=config.model_dump(mode="json"),
                id=former[-1].name.partition("run-")[2].partition("-")[2] if former else None,
                resume="allow",
                settings=wandb.Settings(silent=True, console="off"),
            )
        except (wandb.errors.Error, ValueError) as error:
            raise ConfigError(
                f"tracking.wandb = {config.tracking.wandb!r}: {' '.join(str(error).split())}; "
                "run `wandb login`, set WANDB_MODE=offline, or remove tracking.wandb"
            ) from None
        self._run.define_metric("*", step_metric="version")
        self.url = None if self._run.offline else self._run.url
        self._games = SampleGames()
        self._tables: dict[str, Any] = {}

    def game(self, version: int, record: RecordedGame) -> None:
        """Keep a game of an evaluation until the evaluation is over."""
        self._games.add(version, record)

    def evaluation(self, version: int, scores: Sequence[EvalScore]) -> None:
        """Add sample games to the next row."""
        import wandb

        games = [list(game) for game in self._games.take(version)]
        table = wandb.Table(columns=list(SampleGame._fields), data=games)
        self._tables = {GAMES_TABLE: table}

    def row(self, row: Row) -> None:
        """Log all metrics that have a value."""
        values = {name: value for name, value in row.items() if value is not None}
        tables, self._tables = self._tables, {}
        self._run.log(values | tables)

    def end(self, reason: str, report: Path | None) -> None:
        """Log the report as an artifact."""
        import wandb

        self._run.summary["reason"] = reason
        if report is not None:
            artifact = wandb.Artifact(f"report-{self._run.id}", type="report")
            # Not cached: a copy in the user's cache would outlive the run's folder.
            artifact.add_file(str(report), policy="immutable", skip_cache=True)
            self._run.log_artifact(artifact)

    def close(self) -> None:
        """End the run at W&B and its process; raises `TimeoutError` if that takes too long."""
        problems: list[BaseException] = []

        def finish() -> None:
            import wandb

            for end in (self._run.finish, wandb.teardown):
                with faults_to(problems.append):  # call both, even if the process is dead
                    end()

        thread = threading.Thread(target=finish, daemon=True)
        thread.start()
        thread.join(FINISH_S)
        if thread.is_alive():  # its process would block Python's exit
            for child in psutil.Process().children():
                if child.name() == "wandb-core":
                    child.kill()
            thread.join(FINISH_S)
            raise TimeoutError(f"timed out after {FINISH_S:g} s; upload the rest by `wandb sync`")
        if problems:
            raise problems[0]


class SampleGame(NamedTuple):
    """Game as a row of a table."""

    version: int
    game: int
    env: str
    opponent: str
    seat: int
    temperature: float
    outcome: float
    forfeit: str  # player that forfeited, or ""
    text: str


class SampleGames:
    """Selection of at most `MOST_GAMES` games of an evaluation, equal for every version.

    It cycles through envs, opponents and temperatures, each time taking the game of the lowest id.
    """

    def __init__(self) -> None:
        self._games: list[SampleGame] = []

    def add(self, version: int, record: RecordedGame) -> None:
        """Add a recorded game; ignores training games."""
        if record.spec.purpose == "eval":
            self._games.append(sample_game(version, record))

    def take(self, version: int) -> list[SampleGame]:
        """Return the selected games of the version's evaluation, and forget all others."""
        kinds: dict[tuple[str, str, float], list[SampleGame]] = defaultdict(list)
        own = [game for game in self._games if game.version == version]
        for game in sorted(own, key=lambda game: game.game):
            kinds[game.env, game.opponent, game.temperature].append(game)
        self._games = []
        in_turn = chain.from_iterable(zip_longest(*kinds.values()))
        return [game for game in in_turn if game is not None][:MOST_GAMES]


def sample_game(version: int, record: RecordedGame) -> SampleGame:
    """Return a recorded game as a row, seen from the first seat of the evaluated version."""
    players = [seat.player.name for seat in record.spec.seats]
    own = PlayerId.policy(version).name
    seat = players.index(own)
    others = [player for player in players if player != own]
    forfeit = record.forfeit
    return SampleGame(
        version=version,
        game=record.spec.game_id,
        env=record.spec.env,
        opponent=others[0] if others else "alone",
        seat=seat,
        temperature=record.spec.seats[seat].temperature,
        outcome=record.outcomes[seat],
        forfeit="" if forfeit is None else players[forfeit],
        text=escape_control(_text(record))[:MOST_CHARACTERS],
    )


def _text(record: RecordedGame) -> str:
    turns = (
        f"turn {turn.index}, seat {turn.seat} ({turn.player})\n"
        f"{turn.answer.observation}\n> {turn.answer.text}"
        for turn in record.turns
    )
    return "\n\n".join([*turns, record.reason])
