"""Shared test helpers: doubles, builders, small models, screens."""
