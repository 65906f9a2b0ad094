"""Test the form of actions, in brackets or bare: its detection, its prompts and its parsing."""

from dataclasses import replace

from tests.helpers.forms import game
from tests.helpers.mistakes import line_of
from tests.helpers.models import tiny_tokenizer
from tests.helpers.rows import every_row
from unstable.config import GameConfig
from unstable.games.catalog.vetted import PACK
from unstable.games.check import settled
from unstable.games.game import Game
from unstable.games.services import prompt_style
from unstable.prompts import STYLES, PromptBuilder, write_answer


@every_row(
    "config, form",
    (game("bare", forms="bare"), "bare"),
    (game("bracketed", forms="brackets"), "brackets"),
    (game("bare", forms="both"), "bare"),
    (game("bracketed", forms="both"), "brackets"),
    (game(forms="bare"), "bare"),
    (game(forms="brackets", text="Answer [1] or [2]."), "brackets"),
    (game(forms="brackets", text="Say 1, 2 or 3."), "brackets"),
    (game(forms="both"), "brackets"),
    (game(forms="bare", text="You know what to say."), "bare"),
    (game(forms="neither", text="Nothing is right."), "bare"),
    (game(forms="neither", text="[x] is no move."), "brackets"),
)
def test_action_form_is_detected_by_play(config: GameConfig, form: str) -> None:
    assert settled(config).action_form == form
    chosen = config.model_copy(update={"action_form": "brackets"})
    assert settled(chosen).action_form == "brackets", "a configured form is kept"


def test_moves_listed_in_wrong_form_are_rejected_in_one_line() -> None:
    said = line_of(settled, game("bare", forms="brackets"), "games.1")
    assert said.startswith("games.1.legal_moves = 'tests.helpers.forms:bare': lists '1'")
    assert said.endswith("accepts only '[1]'; list that form")


@every_row("prompt", "compact", "answer", "think")
@every_row("form", "bare", "bracketed")
def test_requested_answer_is_parsed_to_the_action_form(prompt: str, form: str) -> None:
    config = settled(game(form, prompt, forms="bare" if form == "bare" else "brackets"))
    style, play = prompt_style(config), Game(config, 0)
    asked = style.render(play.observe())
    assert ("square brackets" in asked) == (form == "bracketed" and prompt == "think")
    builder = PromptBuilder(tiny_tokenizer(), style, {}, 4096)
    for move in play.legal_moves():
        assert builder.style.read_action(write_answer(builder, move)) == (move, True)
        assert not play.step(move).invalid
    if prompt != "think":
        for text in ("[1]", "1"):
            assert style.read_action(text) == (play.legal_moves()[0], True)
        assert not style.read_action("I take [1]").formatted


@every_row("parser", "brackets", "exact", "bare", "boxed")
def test_every_parser_except_raw_applies_action_form(parser: str) -> None:
    text = {"bare": "go home", "boxed": r"\boxed{go home}"}.get(parser, "[go home]")
    style = replace(STYLES["answer"], parser=parser)
    assert replace(style, form="bare").read_action(text) == ("go home", True)
    assert style.read_action(text) == ("[go home]", True)
    raw = replace(style, parser="raw", form="bare")
    assert raw.read_action("[go home]") == ("[go home]", True)


def test_vetted_games_accept_brackets() -> None:
    assert {settled(each.config).action_form for each in PACK} == {"brackets"}
