"""Search at the table: beliefs and values by enumeration, sampled ones within their bounds."""

import asyncio
import math
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.search import TabularProbabilities, searched
from tests.helpers.collector import collector, played, specs
from tests.helpers.constrained import serving, sharp_model
from tests.helpers.learners import make_learner
from tests.helpers.models import random_adapter, tiny_tokenizer
from tests.helpers.rows import every_row
from tests.helpers.trees import KUHN, LEDUC, drawn, tree_of
from unstable.collectors.players import player_class
from unstable.collectors.players.base import ToldPosition
from unstable.collectors.players.model import ModelPlayer
from unstable.commands.prepare import check_games
from unstable.config import ConfigError, GameConfig, SearchOpponent, load, parse
from unstable.contrib.search.beliefs import TreePositions, of_game
from unstable.contrib.search.player import SearchPlayer
from unstable.contrib.search.values import (
    CachedProbabilities,
    ExactValues,
    RolloutValues,
    mirror_step,
)
from unstable.games.chance import all_draws
from unstable.games.game import Game
from unstable.learners.saved_critic import SavedCritic
from unstable.learners.turns import state_move
from unstable.prompts import PromptBuilder, load_style
from unstable.solving.best_response import Policy, PolicyValues, assess
from unstable.solving.tree import Shown, as_key
from unstable.types import GameResult, PlayerId, SeatSpec

KUHN_SCALE = 2.0
PIG = GameConfig(env="PigDice-v0")
NIM = GameConfig(env="Nim-v0", args={"piles": [3, 2]})
SEAT = SeatSpec(player=PlayerId("search:some"), temperature=1.0)


def enumerated(policy: Policy) -> Iterator[tuple[float, Game]]:
    """Yield every decision that games of one-hand Kuhn can reach, with its probability."""
    waiting = list(all_draws(lambda: Game(KUHN, seed=0)))
    while waiting:
        probability, game = waiting.pop()
        if game.done:
            continue
        yield probability, game
        waiting += [(probability * p, moved(game, a)) for a, p in shares(policy, game).items()]


def shares(policy: Policy, game: Game) -> dict[str, float]:
    return dict(policy[as_key(game.observe())])


def moved(game: Game, action: str) -> Game:
    after = game.copied()
    after.step(action)
    return after


def value(policy: Policy, game: Game, seat: int) -> float:
    """Return the expected payoff of a seat, by playing all lines of a game."""
    if game.done:
        return game.payoffs[seat]
    return sum(p * value(policy, moved(game, a), seat) for a, p in shares(policy, game).items())


def by_observation(policy: Policy) -> dict[Shown, list[tuple[float, Game]]]:
    found = defaultdict(list)
    for probability, game in enumerated(policy):
        found[as_key(game.observe())].append((probability, game))
    return found


@every_row("seed", 0, 1, 2)
def test_belief_is_the_posterior_of_enumerated_games(seed: int) -> None:
    tree = tree_of("kuhn")
    policy, positions = drawn(tree, seed), TreePositions(tree, KUHN_SCALE)
    games = by_observation(policy)
    assert games.keys() == {node.key for node in tree.decisions}
    for node in tree.decisions:
        weights = [probability for probability, _ in games[node.key]]
        belief = sorted(state.probability for state in positions.belief(node.shown, policy))
        assert belief == pytest.approx(sorted(w / sum(weights) for w in weights), abs=1e-12)
        assert len(belief) == 2  # two cards that the other seat may hold


@every_row("seed", 0, 1, 2)
async def test_exact_values_are_those_of_the_information_set(seed: int) -> None:
    tree = tree_of("kuhn")
    policy, positions = drawn(tree, seed), TreePositions(tree, KUHN_SCALE)
    exact = ExactValues(PolicyValues(tree, policy, forfeits=False), KUHN_SCALE)
    for key, games in by_observation(policy).items():
        game = games[0][1]
        seat, moves = game.seat, game.legal_moves()
        reached = sum(p for p, _ in games)
        q = [
            sum(p * value(policy, moved(each, move), seat) for p, each in games) / reached
            for move in moves
        ]
        belief = positions.belief(game.observe(), policy)
        assert as_key(game.observe()) == key
        found = await exact.of(belief, seat, moves, random.Random(0))
        assert found == pytest.approx([each / game.payoff_scale for each in q], abs=1e-12)


async def test_rollouts_converge_to_the_exact_values() -> None:
    """Outcomes are within -1 and 1, so a mean of k deviates by less than 1 / sqrt(k)."""
    tree, k = tree_of("kuhn"), 2500
    policy, positions = drawn(tree, 3), TreePositions(tree, KUHN_SCALE)
    exact = ExactValues(PolicyValues(tree, policy, forfeits=False), KUHN_SCALE)
    rollouts = RolloutValues(TabularProbabilities(policy), k)
    errors = []
    for node in tree.decisions:
        belief = positions.belief(node.shown, policy)
        asked = belief, node.seat, node.actions
        q = await exact.of(*asked, random.Random(0))
        sampled = await rollouts.of(*asked, random.Random(1))
        errors += [a - b for a, b in zip(sampled, q, strict=True)]
    assert max(map(abs, errors)) < 4 / math.sqrt(k)
    assert abs(sum(errors)) / len(errors) < 4 / math.sqrt(k * len(errors))
    assert any(errors)


def test_unreachable_observation_leaves_the_chances_of_the_deal() -> None:
    tree = tree_of("kuhn")
    never = {node.key: {node.actions[0]: 1.0, node.actions[1]: 0.0} for node in tree.decisions}
    positions = TreePositions(tree, KUHN_SCALE)
    for node in tree.decisions:
        belief = positions.belief(node.shown, never)
        assert [state.probability for state in belief] == [0.5, 0.5]


def test_copied_lines_redraw_chance_and_leave_the_game_alone() -> None:
    """The game's own next die is fixed; lines must not know it. A one ends the turn."""
    game, rng, k = Game(PIG, seed=5), random.Random(0), 3000
    game.observe()
    (state,) = of_game(game.copies())
    busts = 0
    for _ in range(k):
        line = state.line(rng)
        line.step("[roll]")
        busts += line.seat != game.seat
    assert abs(busts / k - 1 / 6) < 4 * math.sqrt(5 / 36 / k)
    alone = Game(PIG, seed=5)
    alone.observe()
    for each in (game, alone):
        each.step("[roll]")
    assert game.observe() == alone.observe()


def test_mirror_step_maximizes_value_minus_divergence() -> None:
    rng = random.Random(0)
    policy, values, eta = [0.5, 0.3, 0.2], [0.1, -0.4, 0.9], 1.7

    def worth(p: list[float]) -> float:
        kl = sum(x * math.log(x / y) for x, y in zip(p, policy, strict=True))
        return eta * sum(x * q for x, q in zip(p, values, strict=True)) - kl

    best = worth(mirror_step(policy, values, eta))
    for _ in range(200):
        weights = [rng.random() for _ in policy]
        assert worth([w / sum(weights) for w in weights]) < best
    assert mirror_step([0.0, 1.0], [9.0, 0.0], eta=3.0) == [0.0, 1.0]
    assert mirror_step([0.9, 0.1], [0.0, 800.0], eta=3.0) == [0.0, 1.0]  # no overflow


@every_row("game, eta", ("kuhn", 1.0), ("leduc", 3.0))
async def test_search_lowers_exploitability_of_a_random_policy(game: str, eta: float) -> None:
    tree = tree_of(game)
    policy = drawn(tree, 0)
    scale = Game({"kuhn": KUHN, "leduc": LEDUC}[game], seed=0).payoff_scale
    exact = ExactValues(PolicyValues(tree, policy, forfeits=False), scale)
    after = await searched(tree, TreePositions(tree, scale), policy, exact, eta, 0)
    before, found = (assess(tree, each, forfeits=False).exploitability for each in (policy, after))
    assert found < 0.9 * before


def local(engine: Any, game: GameConfig) -> ModelPlayer:
    style = load_style("answer").of_game(game)
    prompts = PromptBuilder(tiny_tokenizer(), style, {}, 4096)
    fixed: dict[str, Any] = {"adapter": None, "version": None, "temperature": 1.0}
    return ModelPlayer(engine=engine, prompts=prompts, max_tokens=16, **fixed)


def search_player(model: Any, game: GameConfig, **fields: Any) -> Any:
    opponent = SearchOpponent(path="some", **fields)
    return player_class(opponent).make(opponent, game, SEAT, lambda adapter: model)


@pytest.mark.slow
@pytest.mark.one_core
@every_row("game", KUHN, NIM)
async def test_moves_follow_from_the_seed_and_scores_are_cached(game: GameConfig) -> None:
    async with serving(sharp_model()) as engine:
        player = search_player(local(engine, game), game, continuations=8, eta=2.0)
        play, observation = Game(game, seed=1), Game(game, seed=1).observe()
        first = [(await player.act(observation, play, seed)).action for seed in range(30)]
        asked = engine.stats()
        again = [(await player.act(observation, play, seed)).action for seed in range(30)]
        assert first == again and set(first) <= set(play.legal_moves())
        assert engine.stats() == asked  # every decision is known by now
        assert asked["prefill_seconds"] + asked["decode_seconds"] > 0


@pytest.mark.slow
@pytest.mark.one_core
async def test_kuhn_player_mixes_by_the_exact_step_of_its_model() -> None:
    """The mix of a real model equals an independent step on the model's whole table."""
    async with serving(sharp_model()) as engine:
        model = local(engine, KUHN)
        player = search_player(model, KUHN, values="exact", eta=1.5)
        tree = tree_of("kuhn")
        questions = [(node.shown, node.actions) for node in tree.decisions]
        found = await CachedProbabilities(model).of(questions)
        policy = {
            node.key: dict(zip(node.actions, each, strict=True))
            for node, each in zip(tree.decisions, found, strict=True)
        }
        for key, games in by_observation(policy).items():
            game = games[0][1]
            reached, moves = sum(p for p, _ in games), game.legal_moves()
            weights = []
            for move in moves:
                totals = (p * value(policy, moved(each, move), game.seat) for p, each in games)
                weights.append(policy[key][move] * math.exp(1.5 * sum(totals) / reached / 2.0))
            mix = await player.mix(game.observe(), game, seed=0)
            expected = {m: w / sum(weights) for m, w in zip(moves, weights, strict=True)}
            assert mix == pytest.approx(expected, abs=1e-9)


@pytest.mark.slow
@pytest.mark.one_core
async def test_concurrent_turns_grow_one_tree() -> None:
    async with serving(sharp_model()) as engine:
        player = search_player(local(engine, KUHN), KUHN, continuations=4)
        games = [Game(KUHN, seed) for seed in range(6)]
        together = await asyncio.gather(*(player.mix(g.observe(), g, seed=3) for g in games))
        alone = [await player.mix(g.observe(), g, seed=3) for g in games]
        assert together == alone
        assert len({id(player._positions)}) == 1


async def test_critic_steps_by_the_values_of_its_checkpoint(tmp_path: Path) -> None:
    """Values of the seat to move, by a critic with random weights that knows half of the game."""
    learner = make_learner(load("tiny").model, algorithm={"name": "vrpo"})
    for parameter in learner.critic.model.parameters:
        torch.nn.init.normal_(parameter, std=0.2, generator=torch.Generator().manual_seed(2))
    opponent, game = SearchOpponent(path=str(tmp_path / "0"), values="critic"), Game(NIM, seed=1)
    async with serving(sharp_model()) as engine:
        own = local(engine, NIM)
        known = [state_move(NIM.key, *each) for each in state_moves(own, game)]
        learner.critic.model.take(known)
        learner.snapshot().write(tmp_path / "0")
        SearchPlayer.check(opponent, NIM, "opponents.fixed.0")
        player: Any = player_class(opponent).make(opponent, NIM, SEAT, lambda adapter: own)
        for action in ("[0 1]", "[1 1]"):
            moves, observation = game.legal_moves(), game.observe()
            states, answers = zip(*state_moves(own, game), strict=True)
            critic = SavedCritic.read(tmp_path / "0", NIM.key, "here")  # has valued nothing yet
            values = [each[game.seat] for each in critic.values(NIM.key, states[0], answers, 2)]
            (policy,) = await CachedProbabilities(own).of([(observation, moves)])
            expected = dict(zip(moves, mirror_step(policy, values, 1.0), strict=True))
            assert await player.mix(observation, game, seed=0) == expected
            assert max(values) - min(values) > 0.01
            game.step(action)


def state_moves(model: ModelPlayer, game: Game) -> list[tuple[list[int], list[int]]]:
    """Return the ids of a position's whole state with those of each legal move."""
    state = model.prompts.encode_state(game.whole_state())
    return [(state, model.prompts.encode_move(move)) for move in game.legal_moves()]


async def test_game_of_another_process_cannot_be_searched() -> None:
    with pytest.raises(ValueError, match="needs its model in its process"):
        search_player(object(), NIM)
    with pytest.raises(ValueError, match="another process plays it"):
        ToldPosition(config=NIM, turns=0, legal=["[0 1]"]).copies()


MISTAKES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"env": "LiarsDice-v0"}, {}, "search needs perfect information or a whole tree, and LiarsD"),
    (
        {"env": "unstable.games.catalog.kuhn:KuhnPoker", "args": {"max_rounds": 5}},
        {},
        "is too large; set args.max_rounds = 1",
    ),
    ({"env": "ConnectFour-v0"}, {"values": "exact"}, "cannot be solved exactly"),
    ({"env": KUHN.env, "args": KUHN.args}, {"values": "critic"}, "critic needs perfect informat"),
    ({"env": "TicTacToe-v0", "prompt": "think"}, {}, "makes the model reason"),
    ({"env": "TicTacToe-v0", "isolated": True}, {}, "set games.N.isolated to false"),
    ({"env": "TruthAndDeception-v0"}, {}, "does not list its legal moves"),
    (
        {
            "env": "unstable.games.catalog.kuhn:KuhnPoker",
            "args": {"max_rounds": 1},
            "invalid_moves": {"allowed": 2},
        },
        {},
        "needs games.N.invalid_moves.allowed = 0; set it to 0",
    ),
]


@every_row("game, section, message", *MISTAKES)
def test_unsearchable_game_is_refused_in_one_line(
    game: dict[str, Any], section: dict[str, Any], message: str
) -> None:
    fixed = [{"kind": "search", "path": "some/warm", **section}]
    config = parse({"games": [game], "opponents": {"fixed": fixed}, "eval": {"every": 0}})
    with pytest.raises(ConfigError, match=message) as raised:
        check_games(config)
    line = str(raised.value)
    assert line.startswith("opponents.fixed.0 = 'search:warm' in ") and "\n" not in line


def test_searchable_games_are_accepted() -> None:
    opponent = SearchOpponent(path="some")
    for game in (KUHN, LEDUC, NIM, PIG, GameConfig(env="ConnectFour-v0")):
        SearchPlayer.check(opponent, game, "opponents.fixed.0")


async def test_collector_plays_and_records_search() -> None:
    """Search sits in evaluation games, and teaches in training games, with its own adapter."""
    game = {"env": KUHN.env, "args": KUHN.args, "name": "Kuhn", "prompt": "answer"}
    fixed = [{"kind": "search", "path": "some/warm", "continuations": 4}]
    sampling = {"moves": "expert", "expert": "search:warm"}
    config = {"games": [game], "opponents": {"fixed": fixed}, "sampling": sampling}
    model = sharp_model()
    async with serving(model) as engine:
        names = ("main@0", "checkpoint:search:warm")
        for seed, name in enumerate(names):
            await engine.load(random_adapter(model, name, seed))
        playing = collector(engine, **config)
        seats = ("main@0", "search:warm")
        evaluated = specs(4, seats, env="Kuhn", purpose="eval")
        for result in await played(playing.play(evaluated)):
            assert isinstance(result, GameResult)
            own = [turn for turn in result.turns if turn.player.name == "search:warm"]
            assert all(turn.answer.sampled is None for turn in own)
        trained = await played(playing.play(specs(4, ("main@0", "main@0"), env="Kuhn")))
        turns = [turn for result in trained for turn in result.turns]
        for turn in turns:
            shares = [move.expert or 0.0 for move in turn.answer.sampled.moves]
            assert sum(shares) == pytest.approx(1.0, abs=1e-6) and len(shares) == 2
        await playing.close()
    assert turns
