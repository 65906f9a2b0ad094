"""Runtime: a person's words become a run; processes are made, watched and ended. Ray is here alone.

A config comes in, a run's folder goes out. What is played, learned and shown is the other rooms'.
"""
