"""A small network of a critic: action values from the token ids of a state and a move."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unstable.learners.turns import MOST_SEATS
from unstable.types import TokenSample

_FEATURES = 2048
_WIDTH = 128


class ValueNetwork(nn.Module):
    """Values for each seat: a multilayer perceptron on a state's and a move's tokens by position.

    It is exact where equal facts have equal places in the text, such as the cells of a board. Each
    token at each place has an embedding, in the order of their first occurrence; beyond the first
    2,047 they share embeddings. The last layer is initialized to 0.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.EmbeddingBag(_FEATURES, _WIDTH, mode="sum", padding_idx=0)
            nn.init.normal_(self.embedding.weight, std=0.3)
            self.layers = nn.Sequential(nn.ReLU(), nn.Linear(_WIDTH, _WIDTH), nn.ReLU())
            self.head = nn.Linear(_WIDTH, MOST_SEATS)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self._numbers: dict[tuple[int, int], int] = {}  # of tokens at places

    def read(self, pairs: Sequence[TokenSample]) -> Tensor:
        """Return the features [P, F] of states with moves; 0 is padding."""
        rows = [self._features(pair) for pair in pairs]
        features_PF = np.zeros((len(rows), max(map(len, rows), default=0)), np.int64)
        for row, features in zip(features_PF, rows, strict=True):
            row[: len(features)] = features
        return torch.from_numpy(features_PF)

    def _features(self, pair: TokenSample) -> list[int]:
        numbers, count = self._numbers, _FEATURES - 1
        places = [*enumerate(pair.prompt_ids), *((-1 - i, t) for i, t in enumerate(pair.token_ids))]
        return [1 + numbers.setdefault(place, len(numbers)) % count for place in places]

    def forward(self, features_PF: Tensor) -> Tensor:
        """Return the values [P, K] for each seat."""
        values_PK: Tensor = self.head(self.layers(self.embedding(features_PF)))
        return values_PK

    @torch.no_grad()
    def values(self, features_PF: Tensor) -> NDArray[np.float64]:
        """Return the values [P, K] without a gradient."""
        found = [self(part) for part in features_PF.split(8192)]
        return torch.cat(found).double().numpy()

    def get_extra_state(self) -> Any:
        """Return the numbers of tokens at places, which a checkpoint saves."""
        return [*self._numbers]

    def set_extra_state(self, state: Any) -> None:
        """Restore a state that `get_extra_state` returned."""
        self._numbers = {tuple(place): number for number, place in enumerate(state)}
