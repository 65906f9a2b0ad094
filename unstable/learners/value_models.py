"""Models of a critic: values for each seat of states with moves."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from operator import is_
from typing import Any
from zlib import crc32

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from unstable.learners.batch import Floats
from unstable.learners.micro_batches import MicroBatches
from unstable.learners.model.policy import Policy, Scores
from unstable.learners.model.token_table import TokenTable
from unstable.learners.model.trained import TrainedCopy
from unstable.learners.scoring import Scorer
from unstable.learners.turns import MOST_SEATS, StateMove
from unstable.types import Segment, TokenSample

_Feature = tuple[str | int, int]
"""A token at a place of the state, from 0, or of the move, from -1 down; or an env."""
_FEATURES = 2048
_WIDTH = 128


class ValueModel(ABC):
    """Values [P, K] of pairs for K seats; `take` the pairs, then read or train on their values."""

    learns = True
    """False: pairs that are taken leave no trace in the state."""

    @property
    @abstractmethod
    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters."""

    @abstractmethod
    def take(self, pairs: Sequence[StateMove]) -> None:
        """Replace the pairs."""

    @abstractmethod
    def values(self) -> Floats:
        """Return the values of all pairs, without a gradient."""

    @abstractmethod
    def backward(self, rows_B: Tensor, targets_BK: Tensor, known_BK: Tensor) -> float:
        """Backpropagate the mean squared error of the pairs with these indices; returns it.

        The targets are those of the first seats, K at most; unknown ones have no error.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint saves."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""


class ValueNetwork(ValueModel):
    """A multilayer perceptron on the token ids of a state and a move, by their places.

    It suits short texts in which equal facts have equal places, such as the cells of a board. Each
    token at each place has an embedding; from the 2,048th on, by first occurrence, they share
    embeddings by a hash. The last layer is initialized to 0. It runs on the CPU.
    """

    def __init__(self, seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            embedding = nn.EmbeddingBag(_FEATURES, _WIDTH, mode="sum", padding_idx=0)
            hidden, head = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, MOST_SEATS)
            nn.init.normal_(embedding.weight, std=0.3)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        self._network = nn.Sequential(embedding, nn.ReLU(), hidden, nn.ReLU(), head)
        self._numbers: dict[_Feature, int] = {}  # at most one for each embedding
        self._pairs: list[StateMove] = []
        self._rows: list[list[int]] = []  # features of each pair
        self._features_PF = torch.zeros(0, 0, dtype=torch.int64)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self._network.parameters())

    def take(self, pairs: Sequence[StateMove]) -> None:
        known = self._rows if all(map(is_, self._pairs, pairs)) else []
        rows = [*known[: len(pairs)], *map(self._read, pairs[len(known) :])]
        features_PF = np.zeros((len(rows), max(map(len, rows), default=0)), np.int64)
        for row, features in zip(features_PF, rows, strict=True):
            row[: len(features)] = features
        self._pairs, self._rows, self._features_PF = [*pairs], rows, torch.from_numpy(features_PF)

    def _read(self, pair: StateMove) -> list[int]:
        """Return a pair's features: its env, and its tokens by place; 0 is padding."""
        tokens = pair.tokens
        moves = ((-1 - place, token) for place, token in enumerate(tokens.token_ids))
        places: list[_Feature] = [(pair.env, 0), *enumerate(tokens.prompt_ids), *moves]
        return [*map(self._number, places)]

    def _number(self, feature: _Feature) -> int:
        known, count = self._numbers, _FEATURES - 1
        if len(known) == count:
            return 1 + known.get(feature, crc32(repr(feature).encode()) % count)
        if self.learns:
            return 1 + known.setdefault(feature, len(known))
        return 1 + known.get(feature, -1)

    @torch.no_grad()
    def values(self) -> Floats:
        found = [self._network(part) for part in self._features_PF.split(8192)]
        values: NDArray[np.float64] = torch.cat(found).double().numpy()
        return values

    def backward(self, rows_B: Tensor, targets_BK: Tensor, known_BK: Tensor) -> float:
        values_BK = self._network(self._features_PF[rows_B])[:, : targets_BK.shape[1]]
        errors_BK = (values_BK - targets_BK) * known_BK
        loss = (errors_BK**2).sum() / known_BK.sum()
        loss.backward()
        return float(loss.detach())

    def state_dict(self) -> dict[str, Any]:
        return {"network": self._network.state_dict(), "numbers": [*self._numbers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._network.load_state_dict(state["network"])
        self._numbers = {tuple(each): number for number, each in enumerate(state["numbers"])}


class AdapterValues(ValueModel):
    """A linear layer on the base model with its own LoRA, which reads the text of state and move.

    The layer, initialized to 0, reads the last hidden state after the move, scaled to a mean square
    of 1.
    """

    def __init__(self, policy: Policy, scorer: Scorer, micro_batches: MicroBatches) -> None:
        self._policy, self._scorer, self._micro_batches = policy, scorer, micro_batches
        self._own = TrainedCopy(policy.trained)
        self._head = nn.Linear(policy.width, MOST_SEATS, device=policy.device)
        nn.init.zeros_(self._head.weight)
        nn.init.zeros_(self._head.bias)
        self._pairs: list[TokenSample] = []

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [*self._own.parameters, *self._head.parameters()]

    def take(self, pairs: Sequence[StateMove]) -> None:
        self._pairs = [_with_next(pair.tokens) for pair in pairs]

    def values(self) -> Floats:
        with self._own.in_place():
            values: Floats = self._scorer.values(self._pairs, self._of).double().numpy()
        return values

    def _of(self, scores: Scores) -> Tensor:
        states_SD = scores.ends_SD.float()
        values_SK: Tensor = self._head(F.rms_norm(states_SD, states_SD.shape[1:]))
        return values_SK

    def backward(self, rows_B: Tensor, targets_BK: Tensor, known_BK: Tensor) -> float:
        """Backpropagate this rank's share, and sum the gradients of all ranks."""
        samples = [self._pairs[row] for row in rows_B.tolist()]
        total = self._micro_batches.retried(partial(self._share, samples, targets_BK, known_BK))
        gradients = [each.grad for each in self.parameters if each.grad is not None]
        self._micro_batches.ranks.sum_([total, *gradients])
        return float(total)

    def _share(
        self, samples: Sequence[TokenSample], targets_BK: Tensor, known_BK: Tensor
    ) -> Tensor:
        """Backpropagate this rank's samples; returns their share of the error."""
        for parameter in self.parameters:
            parameter.grad = None  # of an attempt that ran out of memory
        device, total = self._policy.device, torch.zeros(1, device=self._policy.device)
        with self._own.in_place():
            table = TokenTable.of(samples)
            for indices, counts in self._micro_batches(table):
                inputs = self._policy.inputs(table.take(indices))
                known_SK = known_BK[indices].to(device)
                values_SK = self._of(self._policy(inputs))[:, : targets_BK.shape[1]]
                errors_SK = values_SK - targets_BK[indices].to(device)
                loss = counts * ((errors_SK * known_SK) ** 2).sum() / known_BK.sum().to(device)
                loss.backward()
                total += loss.detach()
        return total

    def state_dict(self) -> dict[str, Any]:
        return {"head": self._head.state_dict(), "own": self._own.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._head.load_state_dict(state["head"])
        self._own.load_state_dict(state["own"])


def _with_next(tokens: TokenSample) -> TokenSample:
    """Append a token, so that the state that predicts the last one has read the whole move."""
    segments = (Segment(token_ids=[*tokens.token_ids, tokens.token_ids[-1]]),)
    return TokenSample(prompt_ids=tokens.prompt_ids, segments=segments)
