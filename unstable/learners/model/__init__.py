"""The trained model: base and LoRA as one module that scores packs of samples.

Token ids come in, log-probabilities, entropies and hidden states go out. Advantages never enter.
"""
