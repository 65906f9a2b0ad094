"""`unstable serve --openenv`: a server of games against versions of a run and other players."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unstable.collectors.players import player_class
from unstable.commands.finished import Version, check_adapter, checkpoint_of
from unstable.commands.play.casting import (
    as_opponent,
    for_games,
    is_local_model,
    player_of,
    served,
)
from unstable.commands.prepare import Resolved, prepare, show_plan
from unstable.commands.serve import ServeOptions, client_token
from unstable.commands.session import (
    at_work,
    gone_after,
    have_weights,
    make_folder,
    run_to_end,
    starting,
)
from unstable.config import ConfigError, FixedOpponent, RunConfig, RunFailedError, load
from unstable.games.check import check_env, check_game, settled
from unstable.models.base import check_model
from unstable.planning.resolve import UNDECIDED
from unstable.records.environment import write_environment
from unstable.records.folder import RunFolder
from unstable.studies.openenv.games import ClientGames
from unstable.studies.openenv.protocol import openenv_application
from unstable.types import PlayerId

if TYPE_CHECKING:
    from unstable.serving.server import Server


def serve_games(
    root: Path | None,
    versions: Sequence[Version | None],
    config: str | None,
    words: Sequence[str],
    options: ServeOptions,
    fields: Mapping[str, Any],
    command: str,
) -> None:
    """Serve the games of a run or a config until an interrupt; then print results and ratings.

    Opponents are `versions` of the run, None for the newest, and `words`, as in `unstable play`.
    Raises `ConfigError` for a mistake, before a model is loaded, and `RunFailedError` for a failure
    of the engine.
    """
    if find_spec("websockets") is None:
        raise ConfigError("--openenv: websockets is not installed; pip install websockets")
    token = client_token(options)
    folder = None if root is None else RunFolder(root)
    if folder is None:
        given = load(config or "default", {**fields, "actors.num": 1})
    else:
        given = load(str(folder.config), {**UNDECIDED, **fields, "actors.num": 1})
    opponents = opponents_of(given, folder, versions, words)
    with starting():
        chosen, resolved = _checked(given, opponents)
    from unstable.serving.server import Server  # imports the web framework

    server = Server(None, options.host, options.port, "--port", websockets=True)  # may be taken
    if resolved is not None:
        show_plan(resolved)
    name = "openenv" if folder is None else f"openenv-{folder.root.resolve().name}"
    own = make_folder(chosen, called=name)
    with (
        gone_after(own.root, lambda: not list(own.game_files())),
        at_work(own, "openenv", light=resolved is None),
    ):
        write_environment(own, command)
        if resolved is not None:
            have_weights(chosen.model)
        run_to_end(_serve(chosen, own, opponents, server, token, resolved is not None))


def _checked(
    given: RunConfig, opponents: Mapping[PlayerId, FixedOpponent | None]
) -> tuple[RunConfig, Resolved | None]:
    """Return the resolved config of the games, with its plan if an opponent is a local model."""
    known = [each for each in opponents.values() if each is not None]
    chosen = for_games(given, given.games, known)
    for index, game in enumerate(chosen.games):
        check_env(game, f"games.{index}", "external programs already play its games")
        check_game(game, f"games.{index}")
        for opponent in known:
            player_class(opponent).check(opponent, game, "--against")
    if any(is_local_model(chosen, player) for player in opponents):
        check_model(chosen.model)
        resolved = prepare(chosen, learner=False)
        return resolved.config, resolved
    return chosen.updated({"games": [settled(game) for game in chosen.games]}), None


def opponents_of(
    config: RunConfig,
    folder: RunFolder | None,
    versions: Sequence[Version | None],
    words: Sequence[str],
) -> dict[PlayerId, FixedOpponent | None]:
    """Return the opponents by player; None for the base model. Loads no weights."""
    found: dict[PlayerId, FixedOpponent | None] = {}
    if folder is not None:
        for version in versions:
            number = checkpoint_of(folder, version)
            check_adapter(folder.checkpoint(number))
            opponent = as_opponent(folder, number)
            found[PlayerId(opponent.key)] = opponent
    for word in words:
        player, opponent_of_word, _ = player_of(config, word, "--against")
        found[player] = opponent_of_word
    if not found:
        raise ConfigError("--against: no opponent; name some, such as random,expert, or give a run")
    return found


async def _serve(
    config: RunConfig,
    folder: RunFolder,
    opponents: Mapping[PlayerId, FixedOpponent | None],
    server: "Server",
    token: str | None,
    has_model: bool,
) -> None:
    """Serve until cancelled."""
    async with served(config.with_ledgers(folder.endpoint), folder, model=has_model) as source:
        games = ClientGames(config, source, opponents, folder)
        server.application = openenv_application(games, token)
        await server.start()
        try:
            print(f"serving {games.about['description']} at {server.url}")
            print(f'GenericEnvClient(base_url="{server.url}"); Ctrl-C stops it', flush=True)
            raise RunFailedError(f"the engine died ({await games.died})")
        finally:
            await server.close()
            games.close()
            if lines := games.lines():
                print(*lines, f"games: {folder.root}", sep="\n", flush=True)
