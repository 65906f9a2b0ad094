"""`scripts/recording.py`, which the pictures of a terminal come from."""

import xml.etree.ElementTree as ET
from pathlib import Path

from scripts.recording import Run, animated, recorded


def text(content: str, color: str = "default") -> Run:
    return Run(0, 0, content, color, False)


def test_recording_shows_each_line_while_it_is_on_the_screen() -> None:
    first, last = frozenset({text("first")}), frozenset({text("a & b", "red")})
    picture = ET.fromstring(animated([first, first, last], seconds=3.0))
    texts = {"".join(each.itertext()): each for each in picture.iter() if each.tag.endswith("text")}
    assert texts["a & b"].attrib["fill"] == "#e06c75"
    assert "visibility" not in texts["a & b"].attrib
    assert texts["first"].attrib["visibility"] == "hidden"
    (animation,) = texts["first"]
    assert animation.attrib["values"] == "visible;hidden"
    assert animation.attrib["keyTimes"] == "0;0.6667"


def test_command_is_recorded_from_its_prompt_to_its_end(here: Path) -> None:
    first, *_, last = recorded(["model", "tiny"], every_s=0.2, most=3)
    assert first == {text("$ unstable model tiny")}
    assert [run.text for run in last if run.text.endswith("models/tiny")]
