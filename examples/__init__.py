"""Examples, each run by a test or by its page."""
