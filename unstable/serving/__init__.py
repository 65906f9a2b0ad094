"""Serving: what any program can call by a URL, in the form of OpenAI's API.

Requests come in as HTTP and become values (`requests.py`); a `Seat` answers them, whoever sits
there; answers go out with exact tokens (`replies.py`, `app.py`). Two things are served: versions of
a run, each a model by its name (`models.py`), and the seats of games that a program outside plays
(`tables.py`). Nothing in here knows of rewards, ratings or what is trained.
"""
