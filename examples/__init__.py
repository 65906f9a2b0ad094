"""Programs to take as they are, or as a start for your own."""
