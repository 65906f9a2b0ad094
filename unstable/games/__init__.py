"""Games: envs behind one protocol, safe to interleave, bounded, seeded and read by seat.

A config, a seed and actions come in, observations and outcomes go out. `environment.py` is the
protocol, `textarena.py` its first implementation, `catalog/` what is known of each game.
"""
