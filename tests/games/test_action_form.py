"""The form of a game's actions, in brackets or bare: found by playing, asked for and read so."""

from typing import Any

import pytest
import textarena as ta

from tests.helpers.models import tiny_tokenizer
from unstable.config import ConfigError, GameConfig
from unstable.games.catalog.vetted import PACK
from unstable.games.check import settled
from unstable.games.game import Game
from unstable.games.services import prompt_style
from unstable.prompts import PromptBuilder, parse_action, write_answer


class Taking(ta.Env):
    """Takes three actions of two words or a number, in the forms that it is made with."""

    def __init__(
        self, forms: str = "bare", text: str = "Answer with a number from 1 to 3."
    ) -> None:
        self.forms, self.text = forms, text

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = ta.FFAMultiPlayerState(num_players=num_players, seed=seed)
        self.state.reset(
            game_state={"count": 0}, player_prompt_function=lambda player_id, game_state: self.text
        )

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        is_bracketed = action.startswith("[")
        form = "brackets" if is_bracketed else "bare"
        if action.strip("[]") not in ("1", "2", "go home") or self.forms not in (form, "both"):
            self.state.set_invalid_move(reason="no")
            return self.state.step()
        self.state.game_state["count"] += 1
        if self.state.game_state["count"] == 30:
            self.state.set_winners(player_ids=[0], reason="thirty")
        return self.state.step()


def bare(env: Taking) -> list[str]:
    return ["1", "2", "go home"]


def bracketed(env: Taking) -> list[str]:
    return ["[1]", "[2]", "[go home]"]


def game(moves: str | None = None, prompt: str = "compact", **args: str) -> GameConfig:
    listed = None if moves is None else f"{__name__}:{moves}"
    return GameConfig(env=f"{__name__}:Taking", args=args, legal_moves=listed, prompt=prompt)


@pytest.mark.parametrize(
    ("config", "form"),
    [
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
    ],
)
def test_the_form_is_found_by_playing(config: GameConfig, form: str) -> None:
    assert settled(config).action_form == form
    chosen = config.model_copy(update={"action_form": "brackets"})
    assert settled(chosen).action_form == "brackets", "what a person says stays"


def test_a_list_in_the_wrong_form_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError) as raised:
        settled(game("bare", forms="brackets"), "games.1")
    assert str(raised.value) == (
        f"games.1.legal_moves = '{__name__}:bare': lists '1', which the game refuses, and it takes "
        "'[1]'; list it so"
    )


@pytest.mark.parametrize("prompt", ["compact", "answer", "think"])
@pytest.mark.parametrize("form", ["bare", "bracketed"])
def test_what_the_prompt_asks_for_is_read_as_the_game_takes_it(prompt: str, form: str) -> None:
    config = settled(game(form, prompt, forms="bare" if form == "bare" else "brackets"))
    style, play = prompt_style(config), Game(config, 0)
    asked = style.render(play.observe())
    assert ("square brackets" in asked) == (form == "bracketed" and prompt == "think")
    builder = PromptBuilder(tiny_tokenizer(), style, {}, 4096)
    for move in play.legal_moves():
        answer = write_answer(config, builder, move)
        assert builder.read_action(config.parser, answer) == (move, True)
        assert not play.step(move).invalid
    if prompt != "think":
        for text in ("[1]", "1"):
            assert style.read_action("auto", text) == (play.legal_moves()[0], True)
        assert not style.read_action("auto", "I take [1]").formatted


@pytest.mark.parametrize("parser", ["brackets", "exact", "bare", "boxed"])
def test_every_parser_but_raw_gives_the_form(parser: str) -> None:
    text = {"bare": "go home", "boxed": r"\boxed{go home}"}.get(parser, "[go home]")
    assert parse_action(parser, text, form="bare") == ("go home", True)
    assert parse_action(parser, text, form="brackets") == ("[go home]", True)
    assert parse_action("raw", "[go home]", form="bare") == ("[go home]", True)


def test_vetted_games_take_brackets() -> None:
    assert {settled(each.config).action_form for each in PACK} == {"brackets"}
