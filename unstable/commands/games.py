"""What `unstable games` lists."""

from unstable.games.catalog.vetted import COLUMNS, PACK


def list_games() -> None:
    """Print the vetted games, a block each: its name, then a line for each column of the table."""
    blocks = (
        [game, *(f"{name:8} {cell}" for name, cell in zip(COLUMNS[1:], cells, strict=True))]
        for game, *cells in (vetted.cells() for vetted in PACK)
    )
    print("\n\n".join("\n  ".join(block) for block in blocks))
