"""Catalog: metadata of each game, such as legal moves, compact positions and experts.

Its functions take a raw env. `table.py` lists the games, `vetted.yaml` the recommended ones, and
`defects.yaml` the known defects of TextArena's games.
"""
