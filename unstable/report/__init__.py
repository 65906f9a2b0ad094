"""Report: a run's folder comes in, one self-contained HTML file goes out.

It never steers a run, loads a model or uses a network. Functions passed in provide what needs a
tokenizer or a game's rules: texts of prompts, boards, values of moves.
"""
