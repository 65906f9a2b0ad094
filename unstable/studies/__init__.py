"""Studies of many or recorded runs, and games between a run's versions and other trainers.

Sweeps, leagues, tournaments, rebuilt ratings, and the server for OpenEnv clients.

Study files and run folders come in; tables, pages and child runs go out. Nothing in the training
core imports this room, and no study changes how a single run trains.
"""
