"""A batch as its optimizer steps see it: columns of tokens that stay as they are meanwhile."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from unstable.config import Aggregation
from unstable.learners.algorithm import Loss, Mask, Tokens
from unstable.learners.batch import Ints
from unstable.learners.columns import Layout
from unstable.types import TokenSample


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenBatch:
    """S samples with N scored tokens, in order; tensors lie on the policy's device."""

    samples: Sequence[TokenSample]
    layout: Layout  # of the columns [N]
    loss: Callable[[Tokens], Loss]
    aggregation: Aggregation  # what the loss is a mean over
    trajectories_S: Ints
    units: Sequence[Ints]  # places of samples that an optimizer step keeps together; none: no step
    whole_in_pass: bool = False  # whether a micro-batch keeps trajectories together
    advantages_N: Tensor
    masked_N: Tensor  # whether a token gets no gradient
    behaviour_logprobs_N: Tensor | None = None  # None: the policy's own
    old_logprobs_N: Tensor | None = None  # None: the policy's own, as the only step has them
    reference_logprobs_N: Tensor | None = None  # None: no KL is asked for
    values_S: Tensor | None = None  # of the critic, None without one, and what it is to learn
    targets_S: Tensor | None = None


def units_of(trajectories_S: Ints, trained_S: Mask, whole: bool) -> list[Ints]:
    """Places of the trained samples, one by one or, if `whole`, trajectory by trajectory."""
    places = np.flatnonzero(trained_S)
    keys = trajectories_S[places] if whole else places
    return [places[keys == key] for key in np.unique(keys)]
