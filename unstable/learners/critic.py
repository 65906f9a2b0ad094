"""The critic: what a turn's observation is worth, by the policy's model or by a LoRA of its own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from unstable.config import CriticConfig
from unstable.learners.optimizer import PolicyOptimizer
from unstable.learners.packing import Pack, pack_samples
from unstable.learners.policy import Policy
from unstable.types import Sample


class Critic:
    """V(o): a linear layer, at first 0, of the last hidden state where a turn's prompt ends.

    The state is the policy's, which gets no gradient from it, or that of the critic's own LoRA,
    which steps at the policy's rate and costs a pass over the prompts. It is scaled to a mean
    square of 1, as models differ in the length of their states.
    """

    def __init__(self, config: CriticConfig, policy: Policy, optimizer: PolicyOptimizer) -> None:
        self.policy = policy
        model = cast(PreTrainedModel, policy.model.get_base_model())
        width = model.get_output_embeddings().in_features
        self.head = nn.Linear(width, 1, device=optimizer.parameters[0].device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        optimizer.add_group(self.head.parameters(), config.learning_rate)
        self.lora = CriticLoRA(policy) if config.kind == "adapter" else None
        if self.lora is not None:
            optimizer.add_group(self.lora.parameters, optimizer.config.learning_rate)

    def score(self, prompts: Pack) -> Tensor:
        """Values [S] of prompts, in a pass over them."""
        states = self.policy(prompts).states_SD if self.lora is None else self.lora.states(prompts)
        return self._values(states)

    def values(self, prompts: Sequence[Sample], states_SD: Tensor) -> Tensor:
        """Values [S], with a gradient, of prompts whose states under the policy are known."""
        if self.lora is None:
            return self._values(states_SD.detach())
        pack = pack_samples(prompts).to(states_SD.device)
        return self._values(_OwnStates.apply(self.lora, pack, *self.lora.parameters))

    def _values(self, states_SD: Tensor) -> Tensor:
        values_S1: Tensor = self.head(F.rms_norm(states_SD.float(), states_SD.shape[1:]))
        return values_S1[:, 0]

    def state_dict(self) -> dict[str, Any]:
        """All that a resume needs."""
        lora = [] if self.lora is None else [p.detach() for p in self.lora.parameters]
        return {"head": self.head.state_dict(), "lora": lora}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.head.load_state_dict(state["head"])
        own = [] if self.lora is None else self.lora.parameters
        for parameter, saved in zip(own, state["lora"], strict=True):
            parameter.copy_(saved)


class CriticLoRA:
    """A second LoRA of the policy's shape on the same base, at first a copy of the policy's."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.places = [
            (module, name)
            for module in policy.modules()
            for name, parameter in module.named_parameters(recurse=False)
            if parameter.requires_grad
        ]
        self.replaced: list[nn.Parameter] = [getattr(*place) for place in self.places]
        self.parameters = [nn.Parameter(own.detach().clone()) for own in self.replaced]

    def states(self, prompts: Pack) -> Tensor:
        """Last hidden states [S, D] where the prompts end, under this LoRA."""
        with self.in_place():
            states_SD: Tensor = self.policy(prompts).states_SD
        return states_SD

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has these parameters; afterwards, whatever happens, the policy's again.

        Parameters change places, not values, which a backward of the policy may still need.
        """
        self._set(self.parameters)
        try:
            yield
        finally:
            self._set(self.replaced)

    def _set(self, parameters: Sequence[nn.Parameter]) -> None:
        for (module, name), parameter in zip(self.places, parameters, strict=True):
            setattr(module, name, parameter)


class _OwnStates(torch.autograd.Function):
    """`CriticLoRA.states` whose backward is under that LoRA too, as it may run layers again."""

    @staticmethod
    def forward(ctx: Any, lora: CriticLoRA, prompts: Pack, *_: nn.Parameter) -> Tensor:
        with torch.enable_grad():
            states_SD = lora.states(prompts)
        ctx.lora, ctx.states_SD = lora, states_SD
        return states_SD.detach()

    @staticmethod
    def backward(ctx: Any, grad_SD: Tensor) -> tuple[Tensor | None, ...]:
        with ctx.lora.in_place():
            grads = torch.autograd.grad(ctx.states_SD, ctx.lora.parameters, grad_SD)
        return None, None, *grads
