"""One game in front of a person, at the terminal.

The players are made in this process, without Ray; what is played goes into a folder of its own.
"""
