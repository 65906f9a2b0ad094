"""One game in front of a person: played at the terminal, or a recorded one played again.

The players are made in this process, without Ray; what is played goes into a folder of its own.
"""
