"""Serving: URLs with the interface of OpenAI's API, for any program.

HTTP requests become values, a `ServedSeat` with any player answers them, and answers go out with
exact tokens, whole or streamed. This package does not know which model is trained.
"""
