"""The optimizer: AdamW with a schedule and a clip, which skips steps that are not finite."""

import logging
import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from unstable.config import LearnerConfig
from unstable.learners.model.parts import ParameterShard, are_parts, gathered_whole, own_part

log = logging.getLogger(__name__)
_MOMENTS = ("exp_avg", "exp_avg_sq")


class Stepped(NamedTuple):
    """The result of a step: the policy's gradient norm before the clip, and why it was skipped."""

    loss: float
    grad_norm: float
    refusal: str | None  # None: the step was made


class PolicyOptimizer:
    """Steps the trained parameters; call `step` once their gradients are summed up.

    The schedule ends at `total_steps`; `steps` were made before. A short memory (beta2 = 0.95,
    some 20 steps) suits runs of few steps whose gradients change with the opponents.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        config: LearnerConfig,
        total_steps: int,
        steps: int = 0,
    ) -> None:
        self.config = config
        self.total_steps = total_steps
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.adamw = torch.optim.AdamW(
            self.parameters,
            lr=config.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.factors = [1.0]  # per group, on the scheduled rate
        self.steps = steps  # including skipped ones
        self.scale = 1.0  # on all rates, in addition to the schedule

    def add_group(self, parameters: Iterable[nn.Parameter], learning_rate: float) -> None:
        """Step further parameters as well, such as a critic's, at a rate of their own.

        They follow the same schedule and are clipped by a norm of their own.
        """
        self.adamw.add_param_group({"params": list(parameters)})
        self.factors.append(learning_rate / self.config.learning_rate)

    @property
    def groups(self) -> list[list[nn.Parameter]]:
        """Parameters by group, the policy's first."""
        return [group["params"] for group in self.adamw.param_groups]

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return self.scale * scheduled_rate(self.config, self.steps, self.total_steps)

    def own_gradients(self) -> list[Tensor]:
        """Return gradients of unsharded parameters; sharded ones are already summed.

        Parameters that no token reached, such as an idle expert's, have a gradient of 0.
        """
        parameters = list(chain.from_iterable(self.groups))
        assert any(each.grad is not None for each in parameters), "call backward first"
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [
            cast(Tensor, each.grad) for each in parameters if not isinstance(each, ParameterShard)
        ]

    def clear(self) -> None:
        """Clear all gradients."""
        self.adamw.zero_grad()

    def step(self, loss: Tensor) -> Stepped:
        """Clip, step, clear the gradients.

        Skips the step and leaves weights unchanged if the loss, a norm or a resulting weight
        is not finite.
        """
        for group, factor in zip(self.adamw.param_groups, self.factors, strict=True):
            group["lr"] = factor * self.learning_rate
        norms = [clip_gradients(group, self.config.grad_clip) for group in self.groups]
        weights = list(chain.from_iterable(self.groups))
        with torch.no_grad():
            before = [weight.clone() for weight in weights]
            figures = torch.stack([loss.reshape(()), *norms])
            # As GradScaler does: the fused kernel skips the step without a GPU sync.
            vars(self.adamw)["found_inf"] = 1 - figures.isfinite().all().float()
            self.adamw.step()
            increment_version(weights)  # a fused step does not, and rounded copies depend on it
            finite = torch.stack([weight.isfinite().all() for weight in weights]).all()
            if are_parts(weights):
                dist.all_reduce(finite := finite.float(), dist.ReduceOp.MIN)
            value, *found, whole = torch.hstack([figures, finite]).tolist()  # the only GPU sync
            refusal = _refusal(value, found)
            if refusal is None and not whole:
                rate = self.adamw.param_groups[0]["lr"]
                refusal = f"the weights would not be finite at a learning rate of {rate:g}"
                for weight, old in zip(weights, before, strict=True):
                    weight.copy_(old)
        self.clear()
        self.steps += 1
        if refusal is not None:
            log.warning("optimizer step %d skipped: %s", self.steps, refusal)
        return Stepped(value, found[0], refusal)

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save; shards are gathered: all ranks call it, rank 0 gets it."""
        adamw = self.adamw.state_dict()
        weights = list(chain.from_iterable(self.groups))
        moments = {
            number: {
                name: gathered_whole(weights[number], value) if name in _MOMENTS else value
                for name, value in own.items()
            }
            for number, own in adamw["state"].items()
        }
        return {"adamw": {**adamw, "state": moments}, "steps": self.steps, "scale": self.scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.load_moments(state)
        self.steps = state["steps"]
        self.scale = state["scale"]

    def load_moments(self, state: dict[str, Any]) -> None:
        """Restore AdamW alone: the schedule continues at its step, and rates keep their scale.

        Raises `ValueError` for moments of other parameters.
        """
        weights, moments = list(chain.from_iterable(self.groups)), {}
        for number, own in state["adamw"]["state"].items():
            parts = {name: own_part(weights[number], own[name]) for name in _MOMENTS}
            if any(part.shape != weights[number].shape for part in parts.values()):
                raise ValueError(f"moments of parameter {number} have a different shape")
            moments[number] = {**own, **parts}
        self.adamw.load_state_dict({**state["adamw"], "state": moments})
        for group in self.adamw.param_groups:  # a fork may change it
            group["weight_decay"] = self.config.weight_decay


def clip_gradients(parameters: Sequence[nn.Parameter], limit: float) -> Tensor:
    """Scale gradients down to a norm of at most `limit`; returns the norm before.

    For shards it is the norm over all ranks.
    """
    if not are_parts(parameters):
        return nn.utils.clip_grad_norm_(parameters, limit)
    square = nn.utils.get_total_norm([cast(Tensor, each.grad) for each in parameters]) ** 2
    dist.all_reduce(square)
    norm = square.sqrt()
    nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm


def _refusal(loss: float, norms: list[float]) -> str | None:
    """Return why a step must be skipped, if it must."""
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    wrong = [norm for norm in norms if not math.isfinite(norm)]
    return f"the gradient's norm is {wrong[0]}" if wrong else None


def scheduled_rate(config: LearnerConfig, step: int, total_steps: int) -> float:
    """Learning rate of the 0-based optimizer step: a linear rise, then the schedule.

    It ends, after `decay_fraction` of all steps, at `final_rate` times the peak unless constant.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    rest = max(1, config.decay_fraction * total_steps - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / rest)
    height = {
        "constant": 1.0,
        "linear": 1.0 - progress,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
    }[config.schedule]
    return config.learning_rate * (config.final_rate + (1.0 - config.final_rate) * height)
