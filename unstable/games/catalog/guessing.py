"""Guessing games of one seat: Mastermind, GuessTheNumber."""

from itertools import islice, permutations, product
from typing import Any

from unstable.games.info import Compact, Expert, GameInfo, with_turns_left

_MOST_GUESSES = 2000  # maximum number of listed guesses; Mastermind-v0-extreme has three million


def codes(env: Any) -> list[str]:
    """Return the codes that were not yet guessed, in order, up to a maximum number."""
    state = env.state.game_state
    digits, length = range(1, state["num_numbers"] + 1), state["code_length"]
    guessed = {tuple(entry["guess"]) for entry in state["history"]}
    every = product(digits, repeat=length) if state["duplicate_numbers"] else None
    left = (code for code in every or permutations(digits, length) if code not in guessed)
    return [f"[{' '.join(map(str, code))}]" for code in islice(left, _MOST_GUESSES)]


def pegs(env: Any) -> str:
    """Return the length, the digits, and each guess with its black and white pegs.

    4 different of 1-6: 1 2 3 4 = 1 2, 1 3 5 2 = 0 2.
    """
    state = env.state.game_state
    kind = "" if state["duplicate_numbers"] else "different "
    shown = (
        f"{' '.join(map(str, entry['guess']))} = {entry['black']} {entry['white']}"
        for entry in state["history"]
    )
    head = f"{state['code_length']} {kind}of 1-{state['num_numbers']}:"
    return f"{head} {', '.join(shown)}".rstrip()


def secret(env: Any) -> str:
    """Return the code, before what the seat knows."""
    return f"{' '.join(map(str, env.state.game_state['secret_code']))} {pegs(env)}"


def numbers(env: Any) -> list[str]:
    """Return the numbers that were not yet guessed."""
    guessed = {number for number, _ in env.state.game_state["guess_history"]}
    every = range(env.min_number, env.max_number + 1)
    return [f"[{number}]" for number in every if number not in guessed]


def hints(env: Any) -> str:
    """Return the range, and each guess with its hint, such as 1-20: 10 lower, 5 higher."""
    shown = (f"{number} {hint}" for number, hint in env.state.game_state["guess_history"])
    return f"{env.min_number}-{env.max_number}: {', '.join(shown)}".rstrip()


def middle(env: Any) -> dict[str, float]:
    """Return the middle of the remaining range, or either of two: a binary search."""
    low, high = _left(env)
    middles = {(low + high) // 2, (low + high + 1) // 2}
    return {f"[{number}]": 1 / len(middles) for number in sorted(middles)}


def how_many_stay(env: Any, action: str) -> str:
    """Return a sentence on the maximum number of candidates that a guess leaves."""
    low, high = _left(env)
    guess = int(action.strip("[]"))
    stay = max(guess - low, high - guess) if low <= guess <= high else high - low + 1
    return f"The number is one of {low} to {high}, and a guess of {guess} leaves {stay} at most."


def _left(env: Any) -> tuple[int, int]:
    """Return the smallest and the largest number that the hints allow."""
    history = env.state.game_state["guess_history"]
    low = max((number + 1 for number, hint in history if hint == "higher"), default=env.min_number)
    high = min((number - 1 for number, hint in history if hint == "lower"), default=env.max_number)
    return max(low, env.min_number), min(high, env.max_number)


MASTERMIND = GameInfo(
    env="MastermindEnv",
    name="Mastermind",
    legal_moves=codes,
    compact=Compact(
        "Mastermind: find the code of digits. A line is the code's length, the digits that it is "
        "made of, and after the colon your guesses, each with how many digits are right in their "
        "place and how many in another place. Answer with a code that you have not tried, such as "
        "1 2 3 4, nothing else.",
        pegs,
    ),
    state=with_turns_left(secret),
)
NUMBER = GameInfo(
    env="GuessTheNumberEnv",
    name="GuessTheNumber",
    legal_moves=numbers,
    expert=Expert(middle, how_many_stay),
    compact=Compact(
        "Guess the number. A line is the range that it is from, and after the colon your guesses, "
        "each with whether the number is higher or lower. Answer with a number that you have not "
        "tried, nothing else.",
        hints,
    ),
    state=with_turns_left(lambda env: f"{env.state.game_state['game_number']} {hints(env)}"),
)
