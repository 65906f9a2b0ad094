"""`scripts/recording.py`, which the pictures of a terminal come from."""

import xml.etree.ElementTree as ET

from scripts.recording import animated, recorded, sampled


def test_recording_shows_each_line_while_it_is_on_the_screen() -> None:
    frames = recorded(
        ["sh", "-c", "echo first; sleep 0.5; printf '\\033[2J\\033[1;32mlast & done'"], 0.1
    )
    picture = ET.fromstring(animated(sampled(frames, 4), seconds=2.0))
    texts = {
        "".join(each.itertext()).strip(): each
        for each in picture.iter()
        if each.tag.endswith("text")
    }
    assert texts["last & done"].attrib["fill"] == "#98c379"
    assert "visibility" not in texts["last & done"].attrib, "it stays"
    assert texts["first"].attrib["visibility"] == "hidden"
    (animation,) = texts["first"]
    assert animation.attrib["values"] in ("hidden;visible;hidden", "visible;hidden")
