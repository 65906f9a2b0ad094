"""The catalogue: what is known of each game besides its env, with an expert in a file of its own.

A raw env comes in, legal moves, experts' moves and positions go out. `table.py` lists the games,
`vetted.yaml` those that others may rely on, `defects.yaml` what is wrong with TextArena's.
"""
