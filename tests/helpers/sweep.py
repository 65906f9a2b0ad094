"""TextArena's whole registry, checked and played.

`python -m tests.helpers.sweep` writes docs/textarena.md.
"""

import random
import re
import sys
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
"""Timeout of a family, with room for slow and busy machines."""

SCREENING_S = 4.0
"""Timeout of a game's screening; generous, since results must not depend on the machine's load."""


class Found(NamedTuple):
    """Outcome of the sweep for a family's shortest id."""

    env: str
    family: str
    seats: str = ""  # accepted numbers of seats
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
    """Play a game by its legal moves, or by moves read from its text; returns how it ends."""
    rng, game = random.Random(seed), Game(config, seed, trusted=True)
    while not game.done:
        observation = game.observe()
        try:
            moves = (
                game.legal_moves()
                if lists_legal_moves(config)
                else screen.suggested(game, observation, rng)
            )
        except ValueError:  # no moves on this variant's board
            moves = screen.suggested(game, observation, rng)
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
            raise AssertionError(f"{env}: its process died; see its output") from error
        finally:
            process.kill()
            process.join()

    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(one, envs)


def _tell(env: str, family: str, sender: Connection) -> None:
    with redirect_stdout(sys.stderr):
        sender.send(play(env, family))


TEXT = """# TextArena games

Check which [TextArena](https://github.com/LeonGuertler/TextArena) games work: {played} of its
{found} game families play, {refused} are rejected with a one-line error. Name an id in the config:

```yaml
games: [{{env: Othello-v0, max_turns: 100}}]
```

`python -m tests.helpers.sweep` generates this page (here with Python {python}). It checks one id
per family with 1 to {seats} seats and plays three games with the smallest accepted number, using
legal moves if the game lists them and otherwise actions that its text shows in brackets.

## Playable games

In the last column, games also reached {turns} turns, invalid moves included, or failed.

| seats | all three games finished | others |
|---|---|---|
{rows}

## Known defects

A run logs the known defects of TextArena's implementation at the start.

| ids | defect |
|---|---|
{defects}

## Rejected games

| error | ids | remedy |
|---|---|---|
{reasons}

## TextArena 1.x

The unreleased TextArena 1.x runs, too, if its source precedes the installed package on
`PYTHONPATH`. What changes:

- **Ids** end in `-v1`. Its `-v1-mdp` ids are the same games. The error for an id of 0.7 names the
  installed one.
- **Moves** are bare: `4` instead of `[4]`. A game lists its legal moves if its boards print them.
- **Payoffs** are its rewards: 1 to -1, or 0 to 1 with one seat. KuhnPoker-v1 pays 1 to the seat
  with more chips; `unstable.games.catalog.kuhn:KuhnPoker` still pays chips.
- **Invalid moves** follow `invalid_moves`: the game never eliminates a seat over them. If a judge
  does not answer, the game fails, and nobody forfeits.
- **Missing**: games whose rules changed have no compact form, expert or rule bot. TicTacToe,
  WildTicTacToe, ThreePlayerTicTacToe, ConnectFour, Nim, SimpleTak, TowerOfHanoi, KuhnPoker and
  Leduc keep theirs; SecretMafia keeps its teams and legal moves.

Until its release, `UNSTABLE_TEXTARENA1=FOLDER pytest tests/games/test_textarena1.py` tests its
source. On its release: set the pin in `pyproject.toml` to `textarena>=1,<2`; replace `-v0` by `-v1`
in configs, `vetted.yaml`, tests and docs; review `defects.yaml`; and generate this page.
"""


def page(found: list[Found]) -> str:
    """docs/textarena.md."""
    played = sorted(each for each in found if not each.refusal)
    refused = sorted(each for each in found if each.refusal)
    groups: dict[str, tuple[list[str], list[str]]] = {}
    for each in played:
        groups.setdefault(each.seats, ([], []))[each.ended < 3].append(each.env)
    rows = [
        f"| {re.sub(r', .*, ', ' to ', seats)} | {', '.join(ended)} | {', '.join(others)} |"
        for seats, (ended, others) in sorted(groups.items())
    ]
    defects: dict[str, list[str]] = {}
    for each in played:
        if each.family in DEFECTS:
            defects.setdefault(DEFECTS[each.family], []).append(each.env)
    reasons: dict[tuple[str, str], list[str]] = {}
    for each in refused:
        reasons.setdefault(_reason(each.refusal), []).append(each.env)
    by_size = sorted(reasons.items(), key=lambda item: (-len(item[1]), item[1]))
    return TEXT.format(
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        found=len(found),
        played=len(played),
        refused=len(refused),
        seats=SEATS[-1],
        turns=TURNS,
        rows="\n".join(rows),
        defects="\n".join(f"| {', '.join(envs)} | {defect} |" for defect, envs in defects.items()),
        reasons="\n".join(
            f"| {reason} | {', '.join(envs)} | {remedy} |" for (reason, remedy), envs in by_size
        ),
    )


def _reason(refusal: str) -> tuple[str, str]:
    """A refusal without the field before it and what is in brackets, and its remedy."""
    reason, _, remedy = refusal.partition(": ")[2].rpartition("; ")
    return re.sub(r" \(.*?\)", "", reason), remedy


if __name__ == "__main__":
    PAGE.write_text(page(list(sweep(families().values()))), encoding="utf-8")
