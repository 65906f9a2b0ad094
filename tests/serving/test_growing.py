"""An answer's text, piece by piece: joined it is the whole, and no piece has half a character."""

from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from unstable.config import ModelConfig
from unstable.models.base import load_tokenizer
from unstable.prompts.text import UNKNOWN
from unstable.serving.growing import Growing, cut_at

TEXTS = st.text(st.sampled_from("ab .[]4\n,éß€中😀👩‍👩‍👧🇩🇪"), max_size=60)
STOPS = st.lists(st.text(st.sampled_from("ab .]é€😀"), min_size=1, max_size=4), max_size=3)


@cache
def tokenizer(name: str) -> Any:
    return load_tokenizer(ModelConfig(name=name))


def decoded(ids: list[int]) -> str:
    return str(tokenizer("smollm2-135m").decode(ids, skip_special_tokens=True))


def grown(ids: list[int], stops: list[str], step: int = 1) -> tuple[list[str], str]:
    """Return the pieces, and the whole answer, which ends at the id that completes a stop."""
    growing, pieces, heard = Growing(decoded, stops), list[str](), list[int]()
    for place in range(0, len(ids), step):
        heard += ids[place : place + step]
        pieces.append(growing.add(ids[place : place + step]))
        if growing.stopped:
            break
    whole = cut_at(decoded(heard), stops)[0]
    return [*pieces, growing.rest(whole)], whole


@settings(max_examples=300)
@given(TEXTS, STOPS, st.integers(1, 3))
def test_pieces_have_whole_characters_and_no_stop(text: str, stops: list[str], step: int) -> None:
    ids = tokenizer("smollm2-135m").encode(text, add_special_tokens=False)
    pieces, whole = grown(ids, stops, step)
    assert "".join(pieces) == whole
    assert not any(UNKNOWN in piece for piece in pieces)
    assert whole == cut_at(text, stops)[0] or len(stops) > 1
    assert not any(stop in whole for stop in stops)


@settings(max_examples=200)
@given(st.lists(st.integers(0, 49151), max_size=40), STOPS)
def test_arbitrary_tokens_are_streamed_completely(ids: list[int], stops: list[str]) -> None:
    """Random bytes, which are no text, and tokens that only mark something."""
    pieces, whole = grown(ids, stops)
    assert "".join(pieces) == whole


@given(st.integers(0, 2**32), st.sampled_from(["smollm2-135m", "tiny"]))
@settings(max_examples=20)
def test_long_answer_is_decoded_incrementally(seed: int, name: str) -> None:
    import random

    own, asked = tokenizer(name), list[int]()
    ids = [random.Random(seed + place).randrange(len(own)) for place in range(600)]

    def decode(ids: list[int]) -> str:
        asked.append(len(ids))
        return str(own.decode(ids, skip_special_tokens=True))

    growing = Growing(decode)
    pieces = [growing.add([token]) for token in ids]
    whole = str(own.decode(ids, skip_special_tokens=True))
    assert "".join(pieces) + growing.rest(whole) == whole
    assert max(asked) < 300


def test_possible_start_of_stop_text_is_held_back() -> None:
    growing = Growing(lambda ids: "".join(map(chr, ids)), ["\n\n", "END"])
    said = [growing.add([ord(letter)]) for letter in "a\nEN, EN"]
    assert said == ["", "", "a", "\n", "E", "N", ",", " "]
    assert growing.add([ord("D")]) == "" and growing.stopped
    assert cut_at("a\nEN, END", ["\n\n", "END"]) == ("a\nEN, ", "END")
