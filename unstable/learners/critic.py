"""The critic: what a turn's observation is worth, by the policy's model or by a LoRA of its own."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from unstable.config import CriticConfig
from unstable.learners.optimizer import PolicyOptimizer
from unstable.learners.packing import Pack
from unstable.learners.policy import Policy
from unstable.learners.second_lora import SecondLoRA


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
        self.lora = SecondLoRA(policy) if config.kind == "adapter" else None
        if self.lora is not None:
            optimizer.add_group(self.lora.parameters, optimizer.config.learning_rate)

    def in_place(self) -> AbstractContextManager[None]:
        """Where prompts are put through, and back: the model has the critic's LoRA, if any."""
        return nullcontext() if self.lora is None else self.lora.in_place()

    def score(self, prompts: Pack) -> Tensor:
        """Values [S] of prompts, in a pass over them; `in_place` only."""
        return self.values(self.policy(prompts).states_SD)

    def values(self, states_SD: Tensor) -> Tensor:
        """Values [S] of prompts by the last hidden states where they end."""
        values_S1: Tensor = self.head(F.rms_norm(states_SD.float(), states_SD.shape[1:]))
        return values_S1[:, 0]

    def state_dict(self) -> dict[str, Any]:
        """All that a resume needs."""
        lora = None if self.lora is None else self.lora.state_dict()
        return {"head": self.head.state_dict(), "lora": lora}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.head.load_state_dict(state["head"])
        if self.lora is not None:
            self.lora.load_state_dict(state["lora"])
