"""Sections of the algorithms; docs/algorithms.md explains each one."""

from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Discriminator, Field, NonNegativeFloat, PositiveFloat, Tag, model_validator

from unstable.config.algorithm import NO_RATIO, AlgorithmConfig, BuiltInConfig, MovesKept
from unstable.config.base import Arguments, PositiveInt, Section, Share

Aggregation = Literal["token", "turn", "sequence", "constant"]
RatioLevel = Literal["token", "turn", "sequence"]
ClipLow = Annotated[float, Field(gt=0, le=1)]
BaselineDecay = Annotated[float, Field(ge=0, lt=1)]
Normalize = Literal["none", "center", "zscore"]


class ReinforceConfig(BuiltInConfig):
    """Policy gradient with a baseline for each role."""

    without = NO_RATIO
    name: Literal["reinforce"] = "reinforce"
    baseline_decay: BaselineDecay = 0.95
    """decay of the running reward baseline of each (env, seat); 0: no memory"""
    normalize: Normalize = "center"
    """normalization of advantages within each env and batch: none, center, or zscore"""


class ClippedConfig(BuiltInConfig):
    """Settings of algorithms that clip the ratio of the policy to the one before the update."""

    clip_low: ClipLow = Field(0.2, description="lower clip range: ratios >= 1 - clip_low")
    clip_high: PositiveFloat = Field(0.2, description="upper clip range: ratios <= 1 + clip_high")
    aggregation: Aggregation = "token"
    """loss: mean over token, turn or sequence; constant: sum / (samples x sampling.max_tokens)"""
    importance: Literal["none", "truncate", "mask", "sequence_mask"] = "truncate"
    """importance weights: none, truncate (at importance_cap), mask (per token), sequence_mask"""
    importance_floor: PositiveFloat = 0.5
    """lower bound of the importance weights that mask and sequence_mask keep"""

    def why_not_offline(self) -> str | None:
        if self.importance == "none" and self.old_logprobs == "learner":
            return (
                "importance = 'none': recorded games need importance weights, since other policies "
                "sampled them; set learner.algorithm.importance to truncate or mask"
            )
        return None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        masks = self.importance in ("mask", "sequence_mask")
        if masks and self.importance_floor >= self.importance_cap:
            raise ValueError(
                f"importance_floor = {self.importance_floor}: not below importance_cap = "
                f"{self.importance_cap}; set it lower"
            )
        return self


class SurrogateConfig(ClippedConfig):
    """Settings of algorithms with PPO's clipped surrogate loss."""

    ratio: RatioLevel = "token"
    """unit of a ratio: token, turn, or sequence (a whole trajectory)"""
    dual_clip: Annotated[float, Field(gt=1)] | None = 3.0
    """upper bound of ratios with negative advantage (dual-clip PPO); null: none"""


class ReinforcePlusPlusConfig(SurrogateConfig):
    """REINFORCE++: rewards normalized over the batch."""

    name: Literal["reinforce++"] = "reinforce++"


class RLOOConfig(SurrogateConfig):
    """RLOO: leave-one-out baselines."""

    grouped: ClassVar[bool] = True
    name: Literal["rloo"] = "rloo"
    ratio: RatioLevel = "sequence"
    aggregation: Aggregation = "sequence"


class GRPOConfig(SurrogateConfig):
    """GRPO: rewards relative to the group's."""

    grouped: ClassVar[bool] = True
    name: Literal["grpo"] = "grpo"
    scale: Literal["none", "group", "batch"] = "group"
    """divisor of advantages: none, or the rewards' standard deviation in the group or batch"""


class GSPOConfig(SurrogateConfig):
    """GSPO: GRPO with one ratio per sequence."""

    grouped: ClassVar[bool] = True
    name: Literal["gspo"] = "gspo"
    ratio: Literal["turn", "sequence"] = "sequence"
    """unit of a ratio, a geometric mean: turn, or sequence (a whole trajectory)"""
    clip_low: ClipLow = 3.0e-4
    clip_high: PositiveFloat = 4.0e-4
    aggregation: Aggregation = "sequence"


class CISPOConfig(ClippedConfig):
    """CISPO: GRPO with a clipped weight."""

    grouped: ClassVar[bool] = True
    name: Literal["cispo"] = "cispo"
    clip_low: ClipLow = Field(1.0, description="lower clip range: ratios >= 1 - clip_low; 1: none")
    clip_high: PositiveFloat = 4.0


class CriticConfig(Section):
    """Critic that estimates the value of each turn's observation."""

    kind: Literal["head", "adapter"] = "head"
    """head: layer on the policy's detached hidden state; adapter: separate LoRA (second pass)"""
    learning_rate: PositiveFloat = 1.0e-3
    """learning rate of the critic's layer; its LoRA uses learner.learning_rate"""
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    """discount between two consecutive turns of a seat"""
    normalize: Normalize = "zscore"
    """normalization of advantages within each env and batch: none, center, or zscore"""
    gae_lambda: Share = 0.95
    """lambda of generalized advantage estimation (GAE); 1: returns minus values"""


class ActionCriticConfig(Section):
    """Critic that estimates the value of each legal move at each turn."""

    sees: Literal["state", "seat"] = "state"
    """input: the whole state, hidden information included (no player sees it), or the prompt"""
    kind: Literal["network", "adapter"] = "network"
    """network: small, on token ids by place, for short states; adapter: separate LoRA"""
    gradient: Literal["all", "sampled"] = "all"
    """policy gradient: over all legal moves, or of the sampled move"""
    replay: PositiveInt = 20_000
    """legal moves that the critic remembers, each once by state"""
    steps: PositiveInt = 40
    """optimizer steps of the critic per update"""
    batch_size: PositiveInt = 1024
    """moves per step of the critic"""
    learning_rate: PositiveFloat = 3.0e-3
    """learning rate of the critic"""

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_releases(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("correction") == 0:  # a removed field's default
            return {key: value for key, value in data.items() if key != "correction"}
        return data


class PPOConfig(SurrogateConfig):
    """PPO: a critic's advantages, or rewards minus their role's baseline; clipped ratios."""

    name: Literal["ppo"] = "ppo"
    critic: CriticConfig | None = CriticConfig()
    """critic; null: a running reward baseline for each (env, seat) instead"""
    baseline_decay: BaselineDecay = 0.95
    """without a critic: decay of the reward baseline of each (env, seat); 0: no memory"""
    normalize: Normalize = "center"
    """without a critic: normalization of advantages by env and batch: none, center, zscore"""

    @model_validator(mode="after")
    def _of_the_baseline(self) -> Self:
        for name, remedy in (
            ("baseline_decay", "leave it out"),
            ("normalize", "set learner.algorithm.critic.normalize"),
        ):
            if self.critic is not None:
                null = "or set learner.algorithm.critic to null"
                self.refuse(name, f"applies only to ppo without a critic; {remedy}, {null}")
        return self


class VRPOConfig(SurrogateConfig):
    """VRPO: advantages of an action critic over the legal moves; clipped ratios."""

    name: Literal["vrpo"] = "vrpo"
    critic: ActionCriticConfig = ActionCriticConfig()
    proximal: NonNegativeFloat = 0.5
    """loss weight of a move's KL to the policy before the update, in reward per nat; 0: none"""

    @property
    def moves_needed(self) -> MovesKept:
        return "state" if self.critic.sees == "state" else "legal"

    @model_validator(mode="after")
    def _critic_remembers_rewards(self) -> Self:
        remedy = "set learner.algorithm.kl_loss instead"
        self.refuse("kl_reward", f"the critic of vrpo would remember it of past policies; {remedy}")
        return self

    @model_validator(mode="after")
    def _all_moves_have_no_trajectory(self) -> Self:
        if self.critic.gradient == "all" and self.ratio == "sequence":
            raise ValueError(
                "ratio = 'sequence': needs sampled trajectories; set learner.algorithm.ratio to "
                "token or turn, or learner.algorithm.critic.gradient to sampled"
            )
        return self


class A2CConfig(BuiltInConfig):
    """A2C: a critic's advantages with the plain policy gradient."""

    without = NO_RATIO
    name: Literal["a2c"] = "a2c"
    critic: CriticConfig = CriticConfig()


class RFTConfig(BuiltInConfig):
    """RFT: imitation of the turns of winners."""

    takes_any_answers: ClassVar[bool] = True
    without = NO_RATIO | {
        "kl_reward": "imitates won turns regardless of reward; set learner.algorithm.kl_loss "
        "instead",
        "kl_opponents": "imitates won turns regardless of reward; leave it out",
        "top_advantage_fraction": "weights all won turns equally; leave it out",
    }
    name: Literal["rft"] = "rft"
    aggregation: Aggregation = Field(
        "token", description=ClippedConfig.model_fields["aggregation"].description
    )


_NO_KL_REWARD = "uses rewards only to rank answers; set learner.algorithm.{} instead"
_UNLIKE_REWARDS = {
    "kl_reward": _NO_KL_REWARD.format("beta or learner.algorithm.kl_loss"),
    "kl_opponents": "uses rewards only to rank answers; leave it out",
    "top_advantage_fraction": "weights all samples equally; leave it out",
}
_LABEL_SMOOTHING = "assumed share of mislabeled pairs"
_LENGTH_WEIGHT = "penalty per token of an answer (alpha of R-DPO); 0: none"
LabelSmoothing = Annotated[float, Field(ge=0, lt=0.5)]


class PairsConfig(BuiltInConfig):
    """Settings of algorithms that learn which of two answers to one prompt is better."""

    grouped: ClassVar[bool] = True
    takes_any_answers: ClassVar[bool] = True
    takes_pairs: ClassVar[bool] = True
    reads_reference: ClassVar[bool] = True
    without = NO_RATIO | _UNLIKE_REWARDS
    beta: PositiveFloat = 0.1
    """weight of an answer's log-ratio to the reference; higher: closer to the reference"""
    pairs: Literal["group", "position"] = "group"
    """pairs from a group's first differing answers (group) or all answers to a prompt (position)"""
    margin: NonNegativeFloat = 0.0
    """minimum reward difference of a pair; 0: any difference"""
    sft_weight: NonNegativeFloat = 0.0
    """weight of the chosen answer's mean negative log-probability per token; 0: none"""

    @property
    def needs_groups(self) -> bool:
        return self.pairs == "group"


class DPOConfig(PairsConfig):
    """DPO: direct preference optimization; cDPO with label smoothing, R-DPO with length weight."""

    name: Literal["dpo"] = "dpo"
    label_smoothing: LabelSmoothing = Field(0.0, description=_LABEL_SMOOTHING)
    length_weight: NonNegativeFloat = Field(0.0, description=_LENGTH_WEIGHT)


class IPOConfig(PairsConfig):
    """IPO: a fixed margin between the answers' mean log-ratios per token."""

    name: Literal["ipo"] = "ipo"
    beta: PositiveFloat = Field(0.1, description="target margin is 1 / (2 beta), in nats per token")


class SLiCConfig(PairsConfig):
    """SLiC: a hinge loss, which ignores pairs beyond the margin."""

    name: Literal["slic"] = "slic"
    beta: PositiveFloat = Field(0.1, description="hinge margin is 1 / beta, in nats")
    length_weight: NonNegativeFloat = Field(0.0, description=_LENGTH_WEIGHT)


class SimPOConfig(PairsConfig):
    """SimPO: mean log-probabilities per token, without a reference."""

    reads_reference: ClassVar[bool] = False
    without = NO_RATIO | _UNLIKE_REWARDS | {"kl_reward": _NO_KL_REWARD.format("kl_loss")}
    name: Literal["simpo"] = "simpo"
    beta: PositiveFloat = Field(2.0, description="weight of an answer's mean log-probability")
    gamma: NonNegativeFloat = 1.0
    """target margin of beta x the difference of mean log-probabilities"""
    label_smoothing: LabelSmoothing = Field(0.0, description=_LABEL_SMOOTHING)


class KTOConfig(BuiltInConfig):
    """KTO: single answers that were better or worse than expected."""

    reads_reference: ClassVar[bool] = True
    takes_pairs: ClassVar[bool] = True
    without = _UNLIKE_REWARDS
    name: Literal["kto"] = "kto"
    beta: PositiveFloat = Field(0.1, description="weight of an answer's log-ratio to the reference")
    baseline: Literal["role", "group"] = "role"
    """desirable: above the mean reward of the (env, seat) in the batch (role), or of the group"""
    desirable_weight: NonNegativeFloat = Field(1.0, description="weight of desirable turns")
    undesirable_weight: NonNegativeFloat = Field(1.0, description="weight of undesirable turns")

    @property
    def needs_groups(self) -> bool:
        return self.baseline == "group"

    @model_validator(mode="after")
    def _some_weight(self) -> Self:
        if not self.desirable_weight and not self.undesirable_weight:
            raise ValueError(
                "desirable_weight = 0: undesirable_weight is 0 too, which leaves nothing to learn; "
                "set one of them above 0"
            )
        return self


class DistillConfig(BuiltInConfig):
    """Distillation: a teacher's moves, learned on the turns that the policy plays."""

    without = {
        "kl_reward": "uses no rewards; set learner.algorithm.kl_loss instead",
        "kl_opponents": "uses no rewards; leave it out",
        "top_advantage_fraction": "has no advantages; leave it out",
    }
    name: Literal["distill"] = "distill"

    @property
    def moves_needed(self) -> MovesKept:
        return "none" if self.uses_teacher else "expert"

    @model_validator(mode="after")
    def _of_an_adapter(self) -> Self:
        for name in ("kl_loss", "entropy", "truncated_weight", "old_logprobs"):
            if not self.uses_teacher:
                self.refuse(
                    name,
                    "applies only to sampled turns, not to an expert's moves; set "
                    "learner.algorithm.teacher.adapter, or leave it out",
                )
        return self


class CustomAlgorithmConfig(AlgorithmConfig):
    """Section of a user's own algorithm that extends no built-in one."""

    args: Arguments = Field({}, description="settings of a custom class, in config.args")

    @property
    def target(self) -> str:
        """Class of the algorithm, package.module:Class."""
        return self.name


def _algorithm_tag(value: Any) -> str:
    name = value.get("name", "reinforce") if isinstance(value, dict) else "reinforce"
    name = value.name if isinstance(value, AlgorithmConfig) else str(name)
    return "custom" if ":" in name else name


AnyAlgorithm = Annotated[
    Annotated[ReinforceConfig, Tag("reinforce")]
    | Annotated[ReinforcePlusPlusConfig, Tag("reinforce++")]
    | Annotated[RLOOConfig, Tag("rloo")]
    | Annotated[GRPOConfig, Tag("grpo")]
    | Annotated[GSPOConfig, Tag("gspo")]
    | Annotated[CISPOConfig, Tag("cispo")]
    | Annotated[PPOConfig, Tag("ppo")]
    | Annotated[A2CConfig, Tag("a2c")]
    | Annotated[VRPOConfig, Tag("vrpo")]
    | Annotated[RFTConfig, Tag("rft")]
    | Annotated[DPOConfig, Tag("dpo")]
    | Annotated[IPOConfig, Tag("ipo")]
    | Annotated[SLiCConfig, Tag("slic")]
    | Annotated[SimPOConfig, Tag("simpo")]
    | Annotated[KTOConfig, Tag("kto")]
    | Annotated[DistillConfig, Tag("distill")]
    | Annotated[CustomAlgorithmConfig, Tag("custom")],
    Discriminator(_algorithm_tag),
]

ALGORITHMS: dict[str, type[AlgorithmConfig]] = {
    tag.tag: section
    for section, tag in map(get_args, get_args(get_args(AnyAlgorithm)[0]))
    if issubclass(section, BuiltInConfig)
}
"""Sections of the built-in algorithms by name."""
