"""Entropy and a KL to a moving reference converge to an equilibrium; the policy gradient cycles.

A table of Kuhn poker, where the expected gradient is exact: every deal and every line of play is a
trajectory, weighted by its probability. Losses are the learner's, on `Tokens` of the table.
"""

import itertools

import numpy as np
import pytest
import torch

from tests.helpers.learners import make_tokens
from unstable.config import parse
from unstable.learners.algorithms import algorithm_class
from unstable.learners.regularization import coefficients_at, regularized

# Actions: pass (0) or bet (1); value: chips of the first seat, and whether cards decide.
LINES: dict[tuple[int, ...], tuple[int, bool]]
LINES = {(0, 0): (1, True), (1, 0): (1, False), (1, 1): (2, True)}
LINES |= {(0, 1, 0): (-1, False), (0, 1, 1): (2, True)}

DEALS = list(itertools.permutations(range(3), 2))
PLACES = {key: i for i, key in enumerate(itertools.product(range(3), [(), (0,), (1,), (0, 1)]))}


class Table:
    """All games of Kuhn poker: G lines of play on deals, with N turns in all."""

    def __init__(self):
        payoffs, rows = [], []
        for game, (deal, line) in enumerate(itertools.product(DEALS, LINES)):
            chips, showdown = LINES[line]
            sign = (1 if deal[0] > deal[1] else -1) if showdown else 1
            payoffs.append(float(sign * chips))
            for index, action in enumerate(line):
                seat = index % 2
                rows.append((game, seat, PLACES[deal[seat], line[:index]], action))
        self.games_N, self.seats_N, self.places_N, self.actions_N = torch.tensor(rows).T
        self.payoffs_G = torch.tensor(payoffs, dtype=torch.float64)
        self.outcomes_N = self.payoffs_G[self.games_N] * (1 - 2 * self.seats_N)
        # By seat: 1 if a pure strategy (of 64) is consistent with a game.
        self.plays_SPG = [self._plays(seat) for seat in (0, 1)]

    def _plays(self, seat):
        own = sorted({int(place) for place in self.places_N[self.seats_N == seat]})
        plays = torch.ones(2 ** len(own), len(self.payoffs_G), dtype=torch.float64)
        for index, strategy in enumerate(itertools.product((0, 1), repeat=len(own))):
            chosen = dict(zip(own, strategy, strict=True))
            for game, mover, place, action in zip(
                *(each.tolist() for each in (self.games_N, self.seats_N)),
                *(each.tolist() for each in (self.places_N, self.actions_N)),
                strict=True,
            ):
                if mover == seat and chosen[place] != action:
                    plays[index, game] = 0.0
        return plays

    def chances(self, logprobs_N, seats=(0, 1)):
        """Probabilities [G] of the seats' actions in each game, without the chance of the deal."""
        own_N = logprobs_N * torch.isin(self.seats_N, torch.tensor(seats))
        return torch.zeros_like(self.payoffs_G).index_add(0, self.games_N, own_N).exp()

    def nash_conv(self, logits):
        """Sum of the values of both seats' best responses, in chips."""
        logprobs_N = logits.log_softmax(-1)[self.places_N, self.actions_N]
        gains = [
            (self.plays_SPG[seat] @ (sign * self.payoffs_G * self.chances(logprobs_N, (1 - seat,))))
            for seat, sign in ((0, 1), (1, -1))
        ]
        return sum(float(gain.max()) for gain in gains) / len(DEALS)

    def tokens(self, logits, reference):
        """Each turn as a token of its own, weighted by its game's probability."""
        logprobs, aims = logits.log_softmax(-1), reference.log_softmax(-1)
        logprobs_N = logprobs[self.places_N, self.actions_N]
        chances_G = self.chances(logprobs_N.detach()) / len(DEALS)
        divergence = (logprobs.exp() * (logprobs - aims)).sum(-1)[self.places_N]
        turns_N, sequences_N = torch.arange(len(self.games_N)), 2 * self.games_N + self.seats_N
        weights = {"advantages_N": self.outcomes_N, "normalizers_N": 1 / chances_G[self.games_N]}
        entropies_N = -(logprobs.exp() * logprobs).sum(-1)[self.places_N]
        figures = {"entropies_N": entropies_N, "divergences": {"reference": divergence}}
        return make_tokens(logprobs_N, turns_N, sequences_N, **weights, **figures)


PLAIN = {"name": "reinforce", "normalize": "none"}
MIRROR = PLAIN | {"entropy": 0.05, "kl_loss": 0.2, "reference": {"ema": 0.98}}
MIRROR |= {"decay": {"rule": "linear", "to": 0.05}}


def nash_convs(algorithm, seed, updates=900, rate=2.0):
    """NashConv every 20 updates by the expected gradient, from a random start."""
    table = Table()
    config = parse({"learner": {"algorithm": algorithm}}).learner.algorithm
    loss = algorithm_class(config)(config).loss
    generator = torch.Generator().manual_seed(seed)
    logits = 0.5 * torch.randn(len(PLACES), 2, generator=generator, dtype=torch.float64)
    reference = logits.clone()
    found = []
    for update in range(1, updates + 1):
        logits.requires_grad_()
        weights = coefficients_at(config, update, updates)
        tokens = table.tokens(logits, reference)
        value = regularized(loss(tokens), tokens, weights, config.importance_cap).value
        (gradient,) = torch.autograd.grad(value, logits)
        logits = (logits - rate * gradient).detach()
        if config.reference.ema is not None:
            reference = torch.lerp(logits, reference, config.reference.ema)
        if update % 20 == 0:
            found.append(table.nash_conv(logits))
    return np.array(found)


def test_nash_conv_by_hand():
    logits = torch.zeros(len(PLACES), 2, dtype=torch.float64)
    assert Table().nash_conv(logits) == pytest.approx(11 / 12)  # uniform play
    # The equilibrium in which the first seat never bets its first action.
    after: dict[tuple[int, ...], tuple[float, float, float]]  # bet probability by card
    after = {(1,): (0, 1 / 3, 1), (0,): (1 / 3, 0, 1), (0, 1): (0, 1 / 3, 1)}
    bets = {(card, line): bet for line, cards in after.items() for card, bet in enumerate(cards)}

    for key, place in PLACES.items():
        bet = min(max(bets.get(key, 0), 1e-12), 1 - 1e-12)
        logits[place] = torch.tensor([1 - bet, bet]).double().log()
    assert Table().nash_conv(logits) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("seed", [0, 1])
def test_entropy_and_moving_reference_converge_to_equilibrium(seed):
    found = nash_convs(MIRROR, seed)
    assert found[-len(found) // 3 :].max() < 0.02


@pytest.mark.parametrize("seed", [0, 1])
def test_plain_policy_gradient_cycles(seed):
    found = nash_convs(PLAIN, seed)
    assert found[-len(found) // 3 :].max() > 0.3
    assert found.min() > 0.1
