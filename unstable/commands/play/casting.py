"""Players of one game, from the words of a command line, and the engine that models need."""

import contextlib
import math
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from unstable.collectors.play import PlayerFactory
from unstable.commands.finished import Version, checkpoint_of
from unstable.commands.play.table import OpponentTurn
from unstable.commands.prepare import alone
from unstable.config import (
    CheckpointOpponent,
    ConfigError,
    FixedOpponent,
    GameConfig,
    RunConfig,
    nearest,
    path_problem,
    shown,
)
from unstable.engines.base import Engine
from unstable.games.catalog.vetted import PACK
from unstable.records.folder import RunFolder
from unstable.types import BASE, PlayerId

PERSON = PlayerId("person")
"""The player at the terminal, in specs and files."""
FEW = {"actors.num": 1, "actors.games_in_flight": 8}
"""Engine settings of one game, whose votes and scores are concurrent requests."""
_MOST_TOKENS = 60  # listed tokens of an answer


def game_of(config: RunConfig, name: str | None) -> GameConfig:
    """Return the config's game of that name, else the vetted one, else an env with its defaults.

    None means the config's first game.
    """
    if name is None:
        return config.games[0]
    vetted = {each.config.env: each.config for each in reversed(PACK)}  # the first of several
    return (vetted | config.game_by_key).get(name) or GameConfig(env=name)


def as_opponent(
    folder: RunFolder, version: Version | None, run: str | None = None
) -> CheckpointOpponent:
    """Return a version of a run as an opponent; `run` replaces the folder's name in its name.

    Raises `ConfigError` if it has no checkpoint.
    """
    version = checkpoint_of(folder, version)
    label = (run or folder.root.resolve().name).replace("@", "_")  # RUN@N would name a policy
    return CheckpointOpponent(
        path=str(folder.checkpoint(version).resolve()), name=f"{label}:{version}"
    )


def run_of(word: str) -> tuple[RunFolder, Version | None] | None:
    """Return the folder and the version of RUN[@VERSION]; None for a missing folder."""
    path, at, number = word.rpartition("@")
    is_number = number.isascii() and number.isdecimal()
    is_version = bool(at) and (is_number or number == "best")
    root = path if is_version else word
    if path_problem(root) is not None or not Path(root).expanduser().is_dir():
        return None
    wanted: Version | None = int(number[:9]) if is_number else "best"
    return RunFolder(Path(root).expanduser()), wanted if is_version else None


def player_of(
    config: RunConfig, word: str, option: str
) -> tuple[PlayerId, FixedOpponent | None, int]:
    """Return the player of a word: its id, its section or None, and its version or 0.

    A word is random, expert, rules, base, an opponent of the config, or RUN[@VERSION].
    """
    known = config.fixed_opponents
    if word == BASE.name:
        return BASE, None, 0
    if word in known:
        return PlayerId(word), known[word], 0
    if (run := run_of(word)) is not None:
        version = checkpoint_of(*run)
        opponent = as_opponent(run[0], version)
        return PlayerId(opponent.key), opponent, version
    hint = nearest(word, [*known, BASE.name])
    raise ConfigError(f"{option} = {shown(word)}: unknown player; {hint}, or a RUN_DIR")


def for_games(
    config: RunConfig, games: Sequence[GameConfig], opponents: Iterable[FixedOpponent]
) -> RunConfig:
    """Return the config with these games and opponents alone, and with its expert."""
    every = *config.opponents_among([]), *opponents
    return alone(config).updated(
        {
            "games": [*games],
            "opponents.fixed": list({each.key: each for each in every}.values()),
            "opponents.draw.past": 0.0,
            "eval.exploitability.every": 0,
            "eval.exploitability.games": [],
            "guard.action": ["warn"],
        }
    )


def is_local_model(config: RunConfig, player: PlayerId) -> bool:
    """Return whether a player is a model that this process serves."""
    adapters = {o.key for o in config.opponents.fixed if o.adapter_folder is not None}
    return player == BASE or player.version is not None or player.name in adapters


class PlayerSource(NamedTuple):
    """Factory of a game's players, and the engine of local models; None without any."""

    config: RunConfig
    players: PlayerFactory
    engine: Engine | None

    async def probabilities(self, player: PlayerId, asked: OpponentTurn) -> list[str]:
        """Return lines with a model's probabilities of actions, or of the tokens it sampled."""
        if self.engine is None or asked.answer.sampled is None:
            return [f"{player} is not a local model and has no probabilities."]
        (prompts,) = self.players.prompts.values()
        sampled = asked.answer.sampled
        if asked.moves and not (prompts.style.reasoning or prompts.style.opened):
            with contextlib.suppress(ConfigError, ValueError):  # the model cannot write a move
                found = await self._of_actions(player, sampled.prompt_ids, asked.moves)
                return [f"{player} in its last turn, at temperature 1:", *found]
        pairs = zip(sampled.scored_ids, sampled.logprobs, strict=True)
        tokens = [
            f"  {prompts.decode([token_id])!r}  {100 * math.exp(logprob):.1f} %"
            for token_id, logprob in list(pairs)[:_MOST_TOKENS]
        ]
        left_out = sampled.num_scored - len(tokens)
        more = [f"  and {left_out} more"] if left_out else []
        head = f"{player} in its last turn, sampled tokens:"
        return [head, *tokens, *more]

    async def _of_actions(
        self, player: PlayerId, prompt_ids: list[int], moves: Sequence[str]
    ) -> list[str]:
        (env,) = self.players.prompts
        opponent = self.config.fixed_opponents.get(player.name)
        adapter = None if opponent is None else opponent.adapter_name
        asked = self.players.asked(env)
        probabilities = await asked.move_probabilities(adapter, prompt_ids, moves)
        ranked = sorted(zip(moves, probabilities, strict=True), key=lambda pair: -pair[1])
        lines = [f"  {move}  {100 * share:.1f} %" for move, share in ranked]
        rest = max(0.0, 1 - sum(probabilities))
        return [*lines, f"  anything else  {100 * rest:.1f} %"]


@contextlib.asynccontextmanager
async def served(
    config: RunConfig, folder: RunFolder, *, model: bool
) -> AsyncIterator[PlayerSource]:
    """Yield the players of a resolved config's game, with the model loaded if `model`.

    They run in this process: a game with a person is one game, and its model waits for the person.
    """
    if not model:
        yield PlayerSource(config, PlayerFactory(config, None, None), None)
        return
    import torch
    from transformers.utils.logging import disable_progress_bar

    from unstable.runtime.local import LocalActor

    disable_progress_bar()  # its bars would break the output
    torch.set_num_threads(1)  # same numbers as in an actor
    actor = await LocalActor.start(config, folder, folder.log("engine"))
    try:
        yield PlayerSource(config, actor.collector.players, actor.engine)
    finally:
        await actor.close()
