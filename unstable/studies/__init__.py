"""Studies of many or recorded runs: sweeps, leagues, tournaments and rebuilt ratings.

Study files and run folders come in; tables, pages and child runs go out. Nothing in the training
core imports this room, and no study changes how a single run trains.
"""
