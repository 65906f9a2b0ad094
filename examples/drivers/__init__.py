"""Programs that play a run's games themselves."""
