"""The embedded engine: many adapters of one model on a CPU, with continuous batching.

It needs only torch and transformers. Requests share the prefixes of their prompts.
"""
