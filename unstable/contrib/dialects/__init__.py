"""Chat APIs other than OpenAI's chat completions, by entry points `unstable.dialects`."""
