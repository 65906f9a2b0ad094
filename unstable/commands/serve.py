"""Server of a run's versions, or of a base model, for programs that use OpenAI's API."""

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from unstable.commands.finished import Version, check_adapter, checkpoint_of, from_folder
from unstable.commands.play.casting import for_games
from unstable.commands.prepare import prepare, show_plan
from unstable.commands.session import (
    at_work,
    gone_after,
    have_weights,
    make_folder,
    run_to_end,
    starting,
    status,
)
from unstable.config import ConfigError, GameConfig, RunConfig, RunFailedError, load, shown
from unstable.config.endpoint import is_loopback, read_token
from unstable.models.adapters import read_adapter
from unstable.models.base import check_model
from unstable.models.shape import read_shape
from unstable.records.folder import RunFolder
from unstable.types import BASE, PlayerId

if TYPE_CHECKING:
    from unstable.serving.models import ModelsSeat, RequestCounts
    from unstable.serving.server import Server


class ServeOptions(NamedTuple):
    """Command-line options in addition to config fields."""

    host: str = "127.0.0.1"
    port: int = 8000
    token_env: str | None = None
    top_logprobs: int = 5
    threads: int = 1


def serve(
    root: Path | None,
    versions: Sequence[Version | None],
    config: str | None,
    options: ServeOptions,
    fields: Mapping[str, Any],
) -> None:
    """Serve versions of a run and its base model until an interrupt; then print what was served.

    None among `versions` is the newest. Without a run, only the base model of `config` is served.
    Raises `ConfigError` for a mistake, before a model is loaded, and `RunFailedError` if the engine
    dies.
    """
    token = client_token(options)
    folder = None if root is None else RunFolder(root)
    numbers = [] if folder is None else [checkpoint_of(folder, each) for each in versions]
    numbers = list(dict.fromkeys(numbers))
    changed = {
        "model.init": "fresh",  # checkpoints are served instead
        "tracking.top_logprobs": options.top_logprobs,
        "opponents.pool_size": max(1, len(numbers)),
        "opponents.pinned": [],
        **fields,
        "actors.num": 1,
    }
    given = load(config or "default", changed) if folder is None else from_folder(folder, changed)
    with starting():
        check_model(given.model)
        for number in numbers:
            check_adapter(RunFolder(root or Path()).checkpoint(number))
        resolved = prepare(for_games(given, [GameConfig()], []), learner=False)
    from unstable.serving.server import Server  # imports the web framework

    server = Server(None, options.host, options.port, "--port")  # first, as the port may be taken
    show_plan(resolved)
    with _logged(resolved.config, folder) as at:
        have_weights(resolved.config.model)
        run_to_end(_serve(resolved.config, at, numbers, server, token, options), status)


def client_token(options: ServeOptions) -> str | None:
    """Return the token that requests need, if any; `ConfigError` if it is missing or invalid."""
    name = options.token_env
    if name is None:
        if not is_loopback(options.host):
            raise ConfigError(
                f"--host = {shown(options.host)}: open to the network without a token; export one "
                "and name its variable with --token_env, or leave --host out"
            )
        return None
    return read_token(name, "--token_env")


@contextlib.contextmanager
def _logged(config: RunConfig, folder: RunFolder | None) -> Iterator[RunFolder]:
    """Yield the run's folder, or one for logs alone, which is deleted unless serving failed."""
    with contextlib.ExitStack() as stack:
        if folder is None:
            config = config.updated({"tracking.run_dir": None})
            folder = make_folder(config, called=f"serve-{Path(config.model.name).name}")
            stack.enter_context(gone_after(folder.root))
        stack.enter_context(at_work(folder, "serve"))
        yield folder


async def _serve(
    config: RunConfig,
    folder: RunFolder,
    versions: Sequence[int],
    server: "Server",
    token: str | None,
    options: ServeOptions,
) -> None:
    """Serve until cancelled; raises `RunFailedError` if the engine dies."""
    from unstable.serving.app import application
    from unstable.serving.models import ForToken

    async with _seat(config, folder, versions, options.threads) as seat:
        server.application = application(ForToken(seat, token))
        await server.start()
        try:
            key = '"any"' if token is None else f"os.environ[{options.token_env!r}]"
            print(f"serving {', '.join(seat.models())} at {server.url}/v1")
            print(f'OpenAI(base_url="{server.url}/v1", api_key={key}); Ctrl-C stops it', flush=True)
            await seat.died.wait()
            raise RunFailedError(f"the engine died ({seat.why})")
        finally:
            await server.close()
            print(served_line(seat.counts), flush=True)


@contextlib.asynccontextmanager
async def _seat(
    config: RunConfig, folder: RunFolder, versions: Sequence[int], threads: int
) -> AsyncIterator["ModelsSeat"]:
    """Yield the engine with its versions, in this process."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    from unstable.engines.kinds import make_engine
    from unstable.serving.models import ModelsSeat

    disable_progress_bar()  # its bars would break the output
    torch.set_num_threads(threads)
    engine, tokenizer = await make_engine(config, folder.log("engine"))
    try:
        players = [PlayerId.policy(number) for number in versions]
        for number, player in zip(versions, players, strict=True):
            await engine.load(read_adapter(folder.checkpoint(number), player.name))
        names = {player.name: player.name for player in players}
        adapters: dict[str, str | None] = {**names, BASE.name: None}
        longest = read_shape(config.model).max_length
        yield ModelsSeat.of(config, engine, tokenizer, adapters, longest)
    finally:
        await engine.close()


def served_line(counts: "RequestCounts") -> str:
    """Return a line on what was served: counts of requests and tokens."""
    others = {"rejected": counts.refused, "aborted": counts.left, "failed": counts.failed}
    more = [f"{number:,} {how}" for how, number in others.items() if number]
    return (
        f"served {counts.answered:,} of {counts.asked:,} requests"
        + (f" ({', '.join(more)})" if more else "")
        + f": {counts.prompt_tokens:,} prompt tokens, {counts.sampled_tokens:,} sampled tokens"
    )
