"""Runtime: starts, watches and ends the processes of a run; the only room that imports Ray.

Takes a resolved config and its plan; provides the actors and the learner that the loop calls.
"""
