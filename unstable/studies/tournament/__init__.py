"""Players of any kind against each other: who they are, the games, and what these amount to.

What is played, and what is found, goes into a folder of its own, out of which it goes on.
"""
