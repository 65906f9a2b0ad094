"""Vetted games, and known defects of TextArena's games."""

from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

from unstable.config import GameConfig, read_text, read_yaml
from unstable.games.catalog.bare import GAME_ENV, SAME_RULES
from unstable.games.services import game_info, prompt_style, rule_bot, with_teams
from unstable.games.textarena import env_class, id_here

COLUMNS = ("game", "seats", "sees", "pays", "longest", "expert", "compact", "solver", "defects")
"""Columns of `Vetted.cells`, in order."""


class Vetted(NamedTuple):
    """A recommended game: an entry of `vetted.yaml`, which explains the fields."""

    config: GameConfig
    sees: str  # content of a seat's observations
    pays: str
    longest: int  # turns of the longest game
    solver: str
    defects: str

    def cells(self) -> tuple[str, ...]:
        """Return the game's row of the table, by `COLUMNS`."""
        config, info = self.config, game_info(self.config)
        args = ", ".join(f"{name}: {value}" for name, value in config.args.items())
        teams = " against ".join(str(len(team)) for team in with_teams(config).teams)
        return (
            f"{config.env}, {args}" if args else config.env,
            f"{config.seats}: {teams}" if teams else str(config.seats),
            self.sees,
            self.pays,
            str(self.longest),
            "yes" if info.expert else "rules" if rule_bot(info) else "no",
            "yes" if prompt_style(config).name == "compact" else "no",
            self.solver,
            self.defects,
        )


def _read(name: str) -> Any:
    path = Path(__file__).with_name(name)
    return read_yaml(read_text(path, name), name)


def _vetted() -> tuple[Vetted, ...]:
    """Return the games; under TextArena 1.x those whose rules it did not change, by its ids."""
    rows = [Vetted(GameConfig(**row.pop("game")), **row) for row in _read("vetted.yaml")]
    if not GAME_ENV:
        return tuple(rows)
    ids = [row.config.env if ":" in row.config.env else id_here(row.config.env) for row in rows]
    moved = [
        row._replace(config=row.config.model_copy(update={"env": env}), defects="not yet reviewed")
        for row, env in zip(rows, ids, strict=True)
        if env is not None
    ]
    same = (":" in row.config.env or game_info(row.config).env in SAME_RULES for row in moved)
    return tuple(compress(moved, same))


PACK = _vetted()
DEFECTS: dict[str, str] = _read("defects.yaml")
"""Defects by class name of the env: the rest of a sentence that begins with the game's name."""


def known_defect(config: GameConfig) -> str | None:
    """Return the known defect of a config's game, or None.

    Excludes envs that extend one of TextArena's classes, and TextArena 1.x: they may have fixed the
    defect.
    """
    cls = env_class(config)
    is_theirs = cls.__module__.startswith("textarena.") and not issubclass(cls, GAME_ENV)
    return DEFECTS.get(cls.__name__) if is_theirs else None
