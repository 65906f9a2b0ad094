"""Runtime: the processes of a run are made, watched and ended. Ray is here alone.

A resolved config and its plan come in, actors and a learner go out, as the loop asks for them.
"""
