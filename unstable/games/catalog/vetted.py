"""What people found out about games: the vetted ones, and known defects of TextArena's."""

from pathlib import Path
from typing import Any, NamedTuple

from unstable.config import GameConfig, read_text, read_yaml
from unstable.games.services import game_info, prompt_style, rule_bot, with_teams
from unstable.games.textarena import env_class

COLUMNS = ("game", "seats", "sees", "pays", "longest", "expert", "compact", "solver", "defects")
"""What `cells` gives of a game, in this order."""


class Vetted(NamedTuple):
    """A game that others may rely on, an entry of `vetted.yaml`, which says what each field is."""

    config: GameConfig
    sees: str  # what a seat is shown
    pays: str
    longest: int  # turns
    solver: str
    defects: str

    def cells(self) -> tuple[str, ...]:
        """The row of the table, by `COLUMNS`."""
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


PACK = tuple(Vetted(GameConfig(**row.pop("game")), **row) for row in _read("vetted.yaml"))
DEFECTS: dict[str, str] = _read("defects.yaml")
"""What is wrong with an env's class: the rest of a sentence that begins with the game's name."""


def known_defect(config: GameConfig) -> str | None:
    """What is known to be wrong with a game that a config names, or None.

    An env that extends one of TextArena's is not meant: it may have mended it.
    """
    cls = env_class(config)
    return DEFECTS.get(cls.__name__) if cls.__module__.startswith("textarena.") else None
