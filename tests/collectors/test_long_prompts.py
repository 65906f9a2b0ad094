"""Prompts that lose old events keep the beginning that an engine has cached, until a step."""

from collections.abc import Callable

from tests.helpers.builders import asking
from tests.helpers.models import tiny_model, tiny_tokenizer
from unstable.config import GameConfig
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.games.game import Game
from unstable.prompts import MAX_EVENTS, STYLES, PromptBuilder
from unstable.types import Observation

LIMIT = 700
EVENTS = [f"Player {number % 2} bids {number} and says so." for number in range(60)]


def observation(events: list[str]) -> Observation:
    return Observation(seat=0, rules="The rules. " * 10, events=events, board="", notice="")


BOUNDED, WHOLE = (PromptBuilder(tiny_tokenizer(), STYLES["answer"], {}, n) for n in (LIMIT, 9999))


def build(events: list[str]) -> list[int]:
    return BOUNDED.build(observation(events)).ids


def fewest_left_out(events: list[str]) -> list[int]:
    """Return the longest prompt that fits the limit, with the fewest events left out."""
    built = (WHOLE.build(observation(events[k:])).ids for k in range(len(events)))
    return next(ids for ids in built if len(ids) <= LIMIT)


async def cached_share(prompt: Callable[[list[str]], list[int]]) -> float:
    """Return the share of a growing game's prompt tokens that the prefix cache holds."""
    engine = EmbeddedEngine(tiny_model(), [0], max_requests=2, max_length=1024)
    for turn in range(20, 60):
        await engine.generate(asking(prompt(EVENTS[:turn]), max_tokens=1, seed=turn))
    stats = engine.stats()
    await engine.close()
    return stats["cached_prompt_tokens"] / stats["prompt_tokens"]


async def test_dropping_half_of_events_keeps_cached_prefix() -> None:
    by_halves, by_fewest = await cached_share(build), await cached_share(fewest_left_out)
    assert by_fewest < 0.3
    assert by_halves > 0.75


def test_event_bound_drops_half_at_once() -> None:
    game = Game(
        GameConfig(env="SimpleNegotiation-v0", args={"max_turns": 100}, max_turns=200), seed=0
    )
    starts: tuple[list[str], list[str]] = ([], [])
    while not game.done and game.turns < 80:
        seen = game.observe()
        assert sum(map(len, seen.events)) <= MAX_EVENTS
        starts[seen.seat].extend(seen.events[:1])
        game.step(f"Offer number {game.turns}: " + "a word " * 60)
    for own in starts:
        changes = sum(one != other for one, other in zip(own, own[1:], strict=False))
        assert len(own) > 30
        assert 1 <= changes <= 6  # > 30 if events were dropped one by one
