"""Legal moves that turns keep, for learners that train on moves that were not sampled."""

import pytest
from msgspec.structs import replace

from tests.helpers.collector import Scripted, collector, played, specs
from tests.helpers.records import game_record
from tests.helpers.rows import every_row
from unstable.commands.prepare import check_games
from unstable.config import ConfigError, GameConfig, parse
from unstable.games.game import Game
from unstable.prompts import write_answer
from unstable.records.games import game_body, read_game
from unstable.types import GameResult, Turn

TICTACTOE = "TicTacToe-v0"
LEDUC = "unstable.games.catalog.leduc:Leduc"


async def games(moves: str, *, env: str = TICTACTOE, isolated: bool = False) -> list[GameResult]:
    game = {"env": env, "name": "game", "prompt": "answer", "isolated": isolated}
    config = {"games": [game], "sampling": {"moves": moves}}
    playing = collector(Scripted(), **config)
    try:
        found = await played(playing.play(specs(3, ("main@0", "main@1"), env="game")))
    finally:
        await playing.close()
    results = [each for each in found if isinstance(each, GameResult)]
    assert len(results) == len(found)
    return sorted(results, key=lambda result: result.spec.game_id)


def kept(turn: Turn) -> list[tuple[list[int], float | None]]:
    assert turn.answer.sampled is not None
    return [(move.token_ids, move.expert) for move in turn.answer.sampled.moves]


@pytest.mark.parametrize("isolated", [False, True])
async def test_turn_records_legal_moves_and_expert_shares(isolated: bool) -> None:
    prompts = collector(Scripted()).prompts["TicTacToe-v0"]
    for result in await games("expert", isolated=isolated):
        again = Game(GameConfig(env="TicTacToe-v0", prompt="answer"), result.spec.seed)
        for turn in result.turns:
            again.observe()
            expert = again.expert_moves()
            legal = again.legal_moves()
            answers = [prompts.encode_answer(write_answer(prompts, move)) for move in legal]
            shares = [expert.get(move, 0.0) for move in legal]
            assert kept(turn) == list(zip(answers, shares, strict=True))
            assert sum(shares) == pytest.approx(1.0)
            again.step(turn.answer.action)
        assert result.turns


@pytest.mark.parametrize(
    "isolated", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.one_core])]
)
async def test_state_is_recorded_and_part_of_no_prompt(isolated: bool) -> None:
    """The state of Leduc has both cards; prompts are those of a run without recorded states."""
    config = GameConfig(env=LEDUC, name="game", prompt="answer")
    prompts = collector(Scripted(), games=[config.model_dump()]).prompts["game"]
    for result, plain in zip(
        await games("state", env=LEDUC, isolated=isolated),
        await games("none", env=LEDUC),
        strict=True,
    ):
        game = Game(config, result.spec.seed)
        for turn, other in zip(result.turns, plain.turns, strict=True):
            observation = game.observe()
            state, sampled = game.whole_state(), turn.answer.sampled
            assert sampled is not None and other.answer.sampled is not None
            assert sampled.state == prompts.encode_state(state) != []
            assert sampled.prompt_ids == prompts.build(observation).ids
            assert sampled.prompt_ids == other.answer.sampled.prompt_ids
            assert state[2:4] not in prompts.decode(sampled.prompt_ids)
            assert len(sampled.moves) == len(game.legal_moves())
            game.step(turn.answer.action)


async def test_move_is_identified_by_its_tokens() -> None:
    (first, *_) = await games("legal")
    (turn, *_) = first.turns
    sampled = turn.answer.sampled
    assert sampled is not None and sampled.move is None  # the scripted engine never stops
    (completion,) = sampled.completions
    for index, move in enumerate(sampled.moves):
        assert move.expert is None
        segments = (replace(completion, token_ids=move.token_ids),)
        assert replace(sampled, segments=segments).move == index


async def test_moves_are_recorded_for_trained_turns_only() -> None:
    for moves in ("legal", "expert"):
        for result in await games(moves):
            line = game_record(result, [], 0, None)
            assert read_game("here", line).turns == result.turns
    for result in await games("none"):
        assert all(kept(turn) == [] for turn in result.turns)
        assert b'"moves"' not in game_body(result)
    playing = collector(Scripted(), sampling={"moves": "legal"})
    in_evaluation = specs(1, ("main@0", "base"), env="TicTacToe-v0", purpose="eval")
    against_base = specs(1, ("main@0", "base"), env="TicTacToe-v0")
    (judged, trained) = await played(playing.play([*in_evaluation, *against_base]))
    assert all(kept(turn) == [] for turn in judged.turns)
    assert [bool(kept(turn)) for turn in trained.turns] == [not t.seat for t in trained.turns]


async def test_turn_records_the_shares_of_a_named_opponent() -> None:
    game = {"env": "open_spiel:tic_tac_toe", "prompt": "answer", "action_form": "bare"}
    fixed = [{"kind": "mcts", "simulations": 200}]
    sampling = {"moves": "expert", "expert": "mcts"}
    config = {"games": [game], "sampling": sampling, "opponents": {"fixed": fixed}}
    check_games(parse(config))
    playing = collector(Scripted(), **config)
    listed = specs(2, ("main@0", "main@1"), env="open_spiel:tic_tac_toe")
    for result in await played(playing.play(listed)):
        assert isinstance(result, GameResult), result
        for turn in result.turns:
            shares = [share or 0.0 for _, share in kept(turn)]
            assert max(shares) == sum(shares) == 1.0


async def test_isolated_turns_record_the_shares_of_the_rule_bot() -> None:
    game = {"env": "SimpleTak-v0", "prompt": "answer", "isolated": True}
    sampling = {"moves": "expert", "expert": "rules"}
    playing = collector(Scripted(), games=[game], sampling=sampling)
    for result in await played(playing.play(specs(2, ("main@0", "main@1"), env="SimpleTak-v0"))):
        assert isinstance(result, GameResult), result
        own = Game(GameConfig(env="SimpleTak-v0"), result.spec.seed)
        own.observe()
        mix = own.rule_moves()
        shares = [share or 0.0 for _, share in kept(result.turns[0])]
        assert shares == [mix.get(move, 0.0) for move in own.legal_moves()] and sum(shares) > 0


@every_row(
    "expert, problem",
    ("random", "sampling.expert = 'random': states no probabilities of moves; name expert, rules"),
    ("rules", "sampling.expert = 'rules' in TicTacToe-v0: it plays only"),
    ("mcts", "opponents.fixed.0 = 'mcts' in TicTacToe-v0: MCTS plays only OpenSpiel's games"),
    ("mtcs", "sampling.expert = 'mtcs': unknown opponent; did you mean 'mcts'"),
)
def test_opponent_that_cannot_teach_is_rejected(expert: str, problem: str) -> None:
    game = {"env": "TicTacToe-v0", "prompt": "answer"}
    sampling = {"moves": "expert", "expert": expert}
    config = {"games": [game], "sampling": sampling, "eval": {"every": 0}}
    with pytest.raises(ConfigError, match=problem) as raised:
        check_games(parse(config | {"opponents": {"fixed": [{"kind": "mcts"}]}}))
    assert "\n" not in str(raised.value)


@every_row(
    "game, moves, problem",
    ({"env": "TruthAndDeception-v0"}, "legal", "the game does not list its legal moves"),
    ({"env": "TicTacToe-v0", "prompt": "think"}, "legal", "makes the model reason"),
    ({"env": "Othello-v0", "prompt": "answer"}, "expert", "the game has no expert"),
)
def test_unsupported_moves_settings_are_rejected(game: dict, moves: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        check_games(parse({"games": [game], "sampling": {"moves": moves}}))
    assert "\n" not in str(raised.value)
    assert f"sampling.moves = '{moves}'" in str(raised.value)
