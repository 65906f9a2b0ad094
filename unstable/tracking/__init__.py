"""Tracking: seeing must not disturb doing. It receives what happened, and steers nothing."""
