"""Prompts: conversion of observations into token ids, and of answers into actions.

Text of games and models never becomes control tokens.
"""

from unstable.prompts.builder import Prompt, PromptBuilder, write_answer
from unstable.prompts.chat import ChatTemplate, Message, read_tool_calls
from unstable.prompts.encoder import TextEncoder
from unstable.prompts.styles import (
    CHAT,
    OWN,
    PARSERS,
    STYLES,
    Action,
    PromptStyle,
    compact_text,
    in_form,
    load_style,
    observation_text,
)
from unstable.prompts.text import MAX_CHARACTERS, MAX_EVENTS, TokenStrings, shorten
from unstable.prompts.thoughts import THINK, AnswerText, Tags, find_tags, split_thought
