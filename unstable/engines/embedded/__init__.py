"""The embedded engine: many adapters of one model on a processor, batched continuously.

Nothing but torch and transformers is needed; requests share the prefixes of their prompts.
"""
