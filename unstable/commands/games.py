"""What `unstable games` lists."""

from unstable.games.catalog.vetted import COLUMNS, PACK


def vetted_games() -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The columns of the list, and a row a game."""
    return COLUMNS, [vetted.cells() for vetted in PACK]
