"""Tournaments, played and recorded round by round, and resumable after any interruption."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

from pydantic import BaseModel, Field, ValidationError

from unstable.collectors.collector import Collector
from unstable.commands.evaluate import play_evaluation
from unstable.commands.finished import run_on_actors
from unstable.commands.play.casting import is_local_model
from unstable.commands.play.play import temperature as temperature_of
from unstable.commands.prepare import Resolved, check_games, prepare, settle, show_plan
from unstable.commands.session import at_work, make_folder, run_to_end, starting, status
from unstable.config import ConfigError, RunConfig, load, shown
from unstable.loop.protocols import Actor
from unstable.models.base import check_model
from unstable.models.inspection import check_opponents
from unstable.planning.resolve import UNDECIDED
from unstable.records.environment import write_environment
from unstable.records.files import LineFile, json_line, write_whole
from unstable.records.folder import GameFile, RunFolder, existing_run
from unstable.records.games import game_body, game_line
from unstable.records.reading import Skipped
from unstable.records.scan import scan_file
from unstable.records.text import command_line
from unstable.studies.ratings import check_weight
from unstable.studies.tournament.entrants import Entrant, check_runs, config_of, with_entrants
from unstable.studies.tournament.luck import Policies, check_baseline, fixed_before, lucks
from unstable.studies.tournament.pairings import Design, least_budget, next_round, number_of_games
from unstable.studies.tournament.report import write_tournament_report
from unstable.studies.tournament.results import show, standings
from unstable.tracking.lines import Lines
from unstable.types import BASE, GameResult, PlayerId

DEALS = 16
"""Default number of deals of each pair in each game."""
SIDE_BY_SIDE = 32
"""Concurrent games if no local model plays."""


class TournamentPlan(BaseModel):
    """Content of `tournament.json`: the design before the first game, and results at the end."""

    design: Design
    players: Annotated[list[Entrant], Field(min_length=2)]
    forfeits: Annotated[float, Field(ge=0, le=1)]
    policies: Policies | None = None  # of players, if there is a baseline
    found: dict[str, Any] | None = None


class TournamentOptions(NamedTuple):
    """Command-line options in addition to players and config fields; None if not given."""

    config: str | None = None
    game: Sequence[str] = ()
    deals: int | None = None
    games: int | None = None
    temperature: float | None = None
    forfeits: float = 1.0
    jpc: bool = False
    baseline: str | None = None


def tournament(
    words: Sequence[str],
    options: TournamentOptions,
    fields: Mapping[str, Any],
    command: str | None = None,
) -> dict[str, Any]:
    """Play a tournament of the players that the words name; print and return its results.

    Raises `ConfigError` for a mistake, before a model is loaded.
    """
    check_weight(options.forfeits)
    if options.games is not None and (options.deals is not None or options.jpc):
        other = "--jpc" if options.deals is None else "--deals"
        raise ConfigError(f"--games = {options.games}: conflicts with {other}; remove one")
    with starting():
        given = config_of(options.config, words, options.game, fields)
        config, players = with_entrants(given, words)
        if options.jpc:
            check_runs(players)
        ready = _ready(config, players)
    by_word = {word: each.player for word, each in zip(words, players, strict=True)}
    opponents = {each.player: config.fixed_opponents.get(each.player) for each in players}
    design = Design(
        players=[
            (name, temperature_of(config, options.temperature, opponent))
            for name, opponent in opponents.items()
        ],
        deals=options.deals or DEALS,
        budget=options.games,
        with_itself=options.jpc,
        baseline=by_word.get(options.baseline or "", options.baseline),
    )
    least = least_budget(ready.config, design)
    if options.games is not None and options.games < least:
        raise ConfigError(
            f"--games = {options.games}: too few for two deals per pair; use {least} or more"
        )
    if design.baseline is not None:
        check_baseline(ready.config, design)
    names = "-".join(game.key.rpartition(":")[2] for game in ready.config.games)
    folder = make_folder(ready.config, called=f"tournament-{names}")
    plan = TournamentPlan(design=design, players=players, forfeits=options.forfeits)
    _write(folder, plan)
    write_environment(folder, command)
    return _played(folder, ready, plan)


def resume(root: Path) -> dict[str, Any]:
    """Resume an interrupted tournament; print and return its results.

    Raises `ConfigError` for a folder without a tournament.
    """
    folder = existing_run(root)
    folder.check_links()
    place = f"--resume = {str(root)!r}"
    if not folder.tournament.is_file():
        raise ConfigError(f"{place}: tournament.json not found; give a tournament's folder")
    try:
        plan = TournamentPlan.model_validate_json(folder.tournament.read_bytes())
    except ValidationError as error:
        problem = error.errors()[0]
        raise ConfigError(
            f"{place}: tournament.json is damaged ({problem['msg']}); start it again"
        ) from None
    with starting():
        config = load(str(folder.config), UNDECIDED)
        for each in plan.players:
            if each.player not in {*config.fixed_opponents, BASE.name}:
                raise ConfigError(
                    f"tournament.json: player {shown(each.player)} is not in config.yaml; restore "
                    "both files, or start the tournament again"
                )
        ready = _ready(config, plan.players)
    return _played(folder, ready, plan)


class _Ready(NamedTuple):
    """A config that can be played, and its plan; `resolved` is None if no local model plays."""

    config: RunConfig
    resolved: Resolved | None


def _ready(config: RunConfig, players: Sequence[Entrant]) -> _Ready:
    """Run all checks that need no model, and plan."""
    check_games(config)
    for game in settle(config).games:
        if len(game.sides) < 2:
            raise ConfigError(f"games = {game.key!r}: only one side, so no opponents; remove it")
    if not any(is_local_model(config, PlayerId(each.player)) for each in players):
        actors = config.actors.model_copy(update={"games_in_flight": SIDE_BY_SIDE})
        return _Ready(settle(config).model_copy(update={"actors": actors}), None)
    check_model(config.model)
    check_opponents(config)
    resolved = prepare(config, learner=False)
    return _Ready(resolved.config, resolved)


def _write(folder: RunFolder, plan: TournamentPlan) -> None:
    write_whole(folder.tournament, json_line(plan.model_dump(mode="json")))


def _played(folder: RunFolder, ready: _Ready, plan: TournamentPlan) -> dict[str, Any]:
    """Play the remaining games; write, print and return the results."""
    with folder.held(f"RUN_DIR = {str(folder.root)!r}"):
        results, found = _on_file(folder, ready.config, plan.design)
        try:
            _play_rest(folder, ready, plan, results, found)
        finally:
            if next_round(ready.config, plan.design, results):
                again = command_line("unstable", "tournament", "--resume", folder.root)
                status(f"{len(results):,} games are recorded; to resume: {again}")
        known = plan.policies
        luck = {} if known is None else lucks(ready.config, plan.design, known, _games(folder).path)
        said = standings(ready.config, plan.design, plan.players, results, plan.forfeits, luck)
        _write(folder, plan.model_copy(update={"found": said}))
    show(said)
    write_tournament_report(folder, said)
    print(f"folder: {folder.root}\nreport: {folder.report}")
    return said


def _on_file(
    folder: RunFolder, config: RunConfig, design: Design
) -> tuple[list[GameResult], dict[int, GameResult]]:
    """Return the games of whole rounds, and all recorded games by number, without their turns.

    No record is deleted, and damaged ones are reported. Raises `ConfigError` for games of another
    tournament.
    """
    file, skipped = _games(folder), Skipped()
    if not file.path.exists():
        return [], {}
    found: dict[int, GameResult] = {head.spec.game_id: head for _, head in scan_file(file, skipped)}
    if skipped:
        status(f"{skipped.line}; their games are played again")
    kept: list[GameResult] = []
    while specs := next_round(config, design, kept):
        there = [found[spec.game_id] for spec in specs if spec.game_id in found]
        if not kept and any(result.spec not in specs for result in there):
            raise ConfigError(f"{file.path}: has games of another tournament; move it elsewhere")
        there = [result for result in there if result.spec in specs]
        if len(there) < len(specs):
            break
        kept += there
    return kept, found


def _games(folder: RunFolder) -> GameFile:
    return GameFile("eval", 0, folder.games("eval", 0))


def _play_rest(
    folder: RunFolder,
    ready: _Ready,
    plan: TournamentPlan,
    results: list[GameResult],
    found: dict[int, GameResult],
) -> None:
    """Play round after round without the `found` games; record each round before the next.

    With a baseline, first adds the policies to the plan and records it.
    """
    design = plan.design
    total = number_of_games(ready.config, design)
    if not next_round(ready.config, design, results):
        return
    path = _games(folder).path
    path.parent.mkdir(exist_ok=True)
    file = LineFile(path)

    async def work(actors: Sequence[Actor], lines: Lines) -> None:
        if design.baseline is not None and plan.policies is None:
            lines.phase("fixing the values of positions")
            plan.policies = await fixed_before(actors, ready.config, design)
            _write(folder, plan)
        while specs := next_round(ready.config, design, results):
            known = {number: result.spec for number, result in found.items()}
            missing = [spec for spec in specs if spec != known.get(spec.game_id)]
            lines.phase(f"playing, {len(results):,} of {total:,} games recorded", len(missing))
            for result in await play_evaluation(actors, missing, lines.advance):
                file.append(game_line(game_body(result), 0, None))
                found[result.spec.game_id] = result
            results.extend(found[spec.game_id] for spec in specs)

    try:
        if ready.resolved is not None:
            show_plan(ready.resolved)
            run_on_actors(ready.resolved, folder, None, "tournament", work)
        else:
            _without_model(ready.config.with_ledgers(folder.endpoint), folder, work)
    finally:
        file.close()


def _without_model(
    config: RunConfig, folder: RunFolder, work: Callable[[Sequence[Actor], Lines], Awaitable[None]]
) -> None:
    """Play the remaining games in this process, without an engine."""
    lines = Lines(status)

    async def main() -> None:
        collector = Collector(config, None, None)
        await collector.start()
        try:
            await work(cast(Sequence[Actor], [collector]), lines)  # only its `play` is called
        finally:
            await collector.close()

    with at_work(folder, "tournament", light=True), lines.refreshing():
        run_to_end(main(), status)
