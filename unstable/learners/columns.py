"""Columns: figures of many samples in a row, as many for each sample as it has tokens, or one."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unstable.learners.model.packing import sent
from unstable.learners.model.token_table import spans


class Layout:
    """Offsets of each sample's figures in a column: `sizes[i]` figures for sample i, in order."""

    def __init__(self, sizes: Sequence[int] | NDArray, device: torch.device) -> None:
        self.starts = np.append(0, np.cumsum(sizes, dtype=np.int64))
        self.sizes: list[int] = np.diff(self.starts).tolist()
        self.device = device

    @property
    def length(self) -> int:
        """Figures of all samples."""
        return int(self.starts[-1])

    def rows(self, indices: Sequence[int] | NDArray) -> Tensor:
        """Indices of the figures of some samples, in the order of `indices`."""
        chosen = np.asarray(indices)
        starts = self.starts[chosen]
        rows = spans(starts, self.starts[chosen + 1] - starts)
        return sent(torch.from_numpy(rows), self.device)

    def repeated(self, values_S: NDArray) -> Tensor:
        """Repeat one value per sample as a column: numbers in fp32, masks unchanged."""
        column = torch.from_numpy(np.repeat(values_S, self.sizes))
        return (column.float() if column.is_floating_point() else column).to(self.device)

    def joined(self, figures: Sequence[Tensor] | None) -> Tensor | None:
        """Concatenate the samples' figures to a column; None for None."""
        return None if figures is None else torch.cat(list(figures)).to(self.device)


class Columns(dict[str, Tensor]):
    """Columns by name in fp32, of which each rank fills in its samples' figures or vectors."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self.of_turns: set[str] = set()  # columns with one value per sample, repeated

    def put(self, rows: Tensor, figures: Mapping[str, Tensor], counts: bool) -> None:
        """Set the figures of these rows, or only make sure of the columns, unless it `counts`."""
        for name, values in figures.items():
            if name not in self:
                shape = (self.layout.length, *values.shape[1:])
                self[name] = torch.zeros(shape, device=self.layout.device)
            if counts:
                self[name][rows] = values.detach().float()

    def figures(self, name: str) -> Tensor:
        """A column's figures on the CPU, one a sample where it repeats one."""
        column = self[name].cpu()
        return column[self.layout.starts[:-1]] if name in self.of_turns else column

    def by_sample(self, name: str) -> list[Tensor]:
        """The figures of each sample, on the CPU."""
        return list(self[name].cpu().split(self.layout.sizes))
