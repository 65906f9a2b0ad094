"""TextArena's whole registry, checked and played.

`python -m tests.helpers.sweep` writes docs/textarena.md.
"""

import random
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from textarena.envs.registration import ENV_REGISTRY

from tests.helpers.forks import FORKS
from unstable.config import ConfigError, GameConfig, InvalidMovesConfig
from unstable.games import screen
from unstable.games.catalog.vetted import DEFECTS
from unstable.games.check import check_game
from unstable.games.game import Game
from unstable.games.services import lists_legal_moves
from unstable.games.textarena import known_ids, raw_id

PAGE = Path(__file__).parent.parent.parent / "docs/textarena.md"
SEATS = range(1, 7)
TURNS = 500
SECONDS = 300
"""That a family may take: it ends what hangs, also on a slow and busy machine."""

SCREENING_S = 4.0
"""That a game's screening may take here: what it finds must not depend on how busy a machine is."""


class Found(NamedTuple):
    """What became of a family's shortest id."""

    env: str
    family: str
    seats: str = ""  # the numbers with which it plays, of those tried
    ended: int = 0  # games that ended by themselves
    forfeited: int = 0
    cut_off: int = 0
    refusal: str = ""


def families() -> dict[str, str]:
    """The shortest id of each class of envs, by the class's name."""
    found: dict[str, str] = {}
    for env in sorted(known_ids(), key=lambda env: (len(env), env)):
        target = ENV_REGISTRY[raw_id(env)].entry_point
        name = target.rpartition(":")[2] if isinstance(target, str) else target.__name__
        found.setdefault(name, env)
    return found


def play(env: str, family: str) -> Found:
    """Check an id with one seat and more, and play three games with the fewest that fit."""
    screen.SECONDS = SCREENING_S
    playing, refusals = [], []
    for seats in SEATS:
        config = GameConfig(
            env=env, seats=seats, max_turns=TURNS, invalid_moves=InvalidMovesConfig(allowed=TURNS)
        )
        try:
            check_game(config)
            playing.append(config)
        except ConfigError as error:
            refusals.append(str(error))
    if not playing:
        by_env = [line for line in refusals if line.startswith("games.env")]
        return Found(env, family, refusal=(by_env or refusals)[0])
    kinds = [_end(playing[0], seed) for seed in range(3)]
    counts = (kinds.count("ended"), kinds.count("forfeited"), kinds.count("cut off"))
    return Found(env, family, ", ".join(str(config.seats) for config in playing), *counts)


def _end(config: GameConfig, seed: int) -> str:
    """How a game of legal moves, or of what the game's text shows, ends."""
    rng, game = random.Random(seed), Game(config, seed, trusted=True)
    while not game.done:
        observation = game.observe()
        try:
            moves = (
                game.legal_moves()
                if lists_legal_moves(config)
                else screen.actions(observation, rng)
            )
        except ValueError:  # this variant's board shows none
            moves = screen.actions(observation, rng)
        game.step(rng.choice(moves))
    assert len(game.outcomes) == config.seats
    if game.truncated:
        return "cut off"
    return "ended" if game.forfeit is None else "forfeited"


def sweep(envs: Collection[str]) -> Iterator[Found]:
    """Play each id in a process of its own, two at a time; TimeoutError for one that hangs."""
    names = {env: family for family, env in families().items()}

    def one(env: str) -> Found:
        family = names[env]
        receiver, sender = FORKS.Pipe(duplex=False)
        process = FORKS.Process(target=_tell, args=(env, family, sender))
        process.start()
        sender.close()
        try:
            if not receiver.poll(SECONDS):
                raise TimeoutError(f"{env} hangs")
            found: Found = receiver.recv()
            return found
        except EOFError as error:
            raise AssertionError(f"{env}: its process has died; see what it has printed") from error
        finally:
            process.kill()
            process.join()

    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(one, envs)


def _tell(env: str, family: str, sender: Connection) -> None:
    with redirect_stdout(sys.stderr):
        sender.send(play(env, family))


TEXT = """# TextArena's games

What `python -m tests.helpers.sweep` found on Python {python}: one id of each of the {found}
families of TextArena's registry, checked as a run checks it and then played three times.
{played} play, {refused} are refused, each in one line. `tests/games/test_sweep.py` repeats it.

An id that ends in `-v1` is of TextArena's next API (bare actions, snapshots), of which there is
no release yet; `pyproject.toml` stays below it, and such an id is refused in a line that says so.
Until then such a game can be brought as an `Environment` ([adding_a_game.md](adding_a_game.md));
games of other libraries are named as they are ([bridges.md](bridges.md)).

## Played

*Seats*: the numbers that pass, of 1 to {seats}. *Ends*: games of three, with the fewest seats, that
ended by themselves, by an action at which the env raises, or at {turns} turns, refused actions
included. Moves were any legal ones where the game lists them, else what its text shows in brackets,
with other numbers; such noise does not get far everywhere. A known defect is also said in one line
when a run starts.

| id | seats | ends | known defect of the original |
|---|---|---|---|
{rows}

## Refused

| reason | families |
|---|---|
{reasons}

| id | the line |
|---|---|
{lines}
"""


def page(found: list[Found]) -> str:
    """docs/textarena.md."""
    played = sorted(each for each in found if not each.refusal)
    refused = sorted(each for each in found if each.refusal)
    reasons = Counter(_reason(each.refusal) for each in refused).most_common()
    rows = [
        f"| {each.env} | {each.seats} | {each.ended} / {each.forfeited} / {each.cut_off} | "
        f"{DEFECTS.get(each.family, '')} |"
        for each in played
    ]
    return TEXT.format(
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        found=len(found),
        played=len(played),
        refused=len(refused),
        seats=SEATS[-1],
        turns=TURNS,
        rows="\n".join(rows),
        reasons="\n".join(f"| {reason} | {count} |" for reason, count in reasons),
        lines="\n".join(f"| {each.env} | {each.refusal} |" for each in refused),
    )


def _reason(refusal: str) -> str:
    """Of a refusal, without the field before it, the remedy after it and what is in brackets."""
    return re.sub(r" \(.*?\)", "", refusal.partition(": ")[2].rpartition("; ")[0])


if __name__ == "__main__":
    PAGE.write_text(page(list(sweep(families().values()))), encoding="utf-8")
