"""A league: policies that train in turn, each against frozen versions of itself and the others.

Each turn of a member is a child process and an ordinary run. Its opponents and its start follow
from the league's file and the folders of earlier runs.
"""
