"""Sinks for trackers that few runs use, by name in `tracking.sinks`."""
