"""Games: TextArena's envs made safe to interleave, bounded, seeded and read by seat.

A config, a seed and actions come in, observations and outcomes go out. `services.py` lists the
games of which more is known, each declared in a file of its own. Models and tokens never enter.
"""
