"""A league: policies that train in turn, each against frozen versions of itself and the others.

Each turn of a member is a child process and a run like any other. Whom it meets, and what it begins
with, follows from the league's file and the folders of the runs before it.
"""
