"""Programs to run unchanged, or to start your own from."""
