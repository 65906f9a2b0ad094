"""Report: seeing afterwards. A run's folder comes in, one HTML file that needs nothing goes out.

It never steers, loads a model or asks a network. What needs a tokenizer or a game's rules (texts of
prompts, boards, values of moves) it is handed as functions.
"""
