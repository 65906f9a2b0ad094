"""Serving: what any program can call by a URL, in the form of OpenAI's API.

Requests come in as HTTP and become values; a `Seat` answers them, whoever sits there, and answers
go out with exact tokens, whole or streamed. Nothing in here knows what is trained.
"""
