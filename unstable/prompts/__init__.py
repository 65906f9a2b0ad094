"""Prompts: an observation becomes token ids, and an answer becomes an action.

Text of games and models comes in; no id that is made of it is a control token.
"""

from unstable.prompts.builder import (
    STYLES,
    Prompt,
    PromptBuilder,
    PromptStyle,
    compact_text,
    load_style,
    observation_text,
    write_answer,
)
from unstable.prompts.encoding import (
    MAX_CHARACTERS,
    MAX_EVENTS,
    TextEncoder,
    TokenStrings,
    shorten,
)
from unstable.prompts.parsers import PARSERS, Action, in_form, parse_action, strip_reasoning
