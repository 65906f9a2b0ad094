"""Buffers: where play's clock and learning's clock meet, and where reward terms are added up."""
