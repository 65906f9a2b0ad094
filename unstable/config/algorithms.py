"""The algorithms' sections; docs/algorithms.md says what each one is."""

from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Discriminator, Field, Tag, model_validator

from unstable.config.algorithm import NO_RATIO, AlgorithmConfig, BuiltInConfig, MovesKept
from unstable.config.base import Arguments, PositiveFloat, Section, Share
from unstable.config.preferences import DPOConfig, IPOConfig, KTOConfig, SimPOConfig, SLiCConfig

Aggregation = Literal["token", "turn", "sequence", "constant"]
RatioLevel = Literal["token", "turn", "sequence"]
ClipLow = Annotated[float, Field(gt=0, le=1)]
BaselineDecay = Annotated[float, Field(ge=0, lt=1)]
Normalize = Literal["none", "center", "zscore"]


class ReinforceConfig(BuiltInConfig):
    """Policy gradient with a baseline for each role."""

    without = NO_RATIO
    name: Literal["reinforce"] = Field("reinforce", description="the algorithm")
    baseline_decay: BaselineDecay = Field(
        0.95, description="decay of the reward baseline of each (env, seat); 0 forgets at once"
    )
    normalize: Normalize = Field(
        "center", description="advantages within each env and batch: none, centred, or z-scored"
    )


class ClippedConfig(BuiltInConfig):
    """Algorithms that clip the ratio of the policy to the one that the update began with."""

    clip_low: ClipLow = Field(0.2, description="ratios below 1 - clip_low are clipped")
    clip_high: PositiveFloat = Field(0.2, description="ratios above 1 + clip_high are clipped")
    aggregation: Aggregation = Field(
        "token",
        description="the loss is a mean over the step's tokens, over its turns' means or its "
        "trajectories' means, or a sum divided by samples x sampling.max_tokens",
    )
    importance: Literal["none", "truncate", "mask", "sequence_mask"] = Field(
        "truncate",
        description="correction for what was sampled by another policy or engine: none, weights "
        "up to importance_cap, or zero outside importance_floor to importance_cap for a token "
        "or, by the geometric mean, for a whole sequence",
    )
    importance_floor: PositiveFloat = Field(
        0.5, description="lower bound of the importance weights that the masks keep"
    )

    def why_not_offline(self) -> str | None:
        if self.importance == "none" and self.old_logprobs == "learner":
            return (
                "importance = 'none' leaves it uncorrected that other policies sampled recorded "
                "games; set learner.algorithm.importance to truncate or mask"
            )
        return None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        masks = self.importance in ("mask", "sequence_mask")
        if masks and self.importance_floor >= self.importance_cap:
            raise ValueError(
                f"importance_floor = {self.importance_floor} keeps nothing below importance_cap = "
                f"{self.importance_cap}; set it lower"
            )
        return self


class SurrogateConfig(ClippedConfig):
    """Algorithms with the clipped surrogate loss of PPO."""

    ratio: RatioLevel = Field(
        "token", description="the ratio is each token's, its turn's, or its whole trajectory's"
    )
    dual_clip: Annotated[float, Field(gt=1)] | None = Field(
        3.0, description="ratios above this are clipped where the advantage is negative; null: none"
    )


class ReinforcePlusPlusConfig(SurrogateConfig):
    """Rewards normalised over the batch."""

    name: Literal["reinforce++"] = Field("reinforce++", description="the algorithm")


class RLOOConfig(SurrogateConfig):
    """Leave-one-out baselines."""

    grouped: ClassVar[bool] = True
    name: Literal["rloo"] = Field("rloo", description="the algorithm")
    ratio: RatioLevel = Field(
        "sequence", description=SurrogateConfig.model_fields["ratio"].description
    )
    aggregation: Aggregation = Field(
        "sequence", description=ClippedConfig.model_fields["aggregation"].description
    )


class GRPOConfig(SurrogateConfig):
    """Rewards relative to the group's."""

    grouped: ClassVar[bool] = True
    name: Literal["grpo"] = Field("grpo", description="the algorithm")
    scale: Literal["none", "group", "batch"] = Field(
        "group",
        description="advantages are divided by the deviation of the group's rewards, of the "
        "batch's rewards in the env, or not at all",
    )


class GSPOConfig(SurrogateConfig):
    """GRPO with one ratio a sequence."""

    grouped: ClassVar[bool] = True
    name: Literal["gspo"] = Field("gspo", description="the algorithm")
    ratio: Literal["turn", "sequence"] = Field(
        "sequence", description="the ratio is a geometric mean over a turn, or a whole trajectory"
    )
    clip_low: ClipLow = Field(
        3.0e-4, description=ClippedConfig.model_fields["clip_low"].description
    )
    clip_high: PositiveFloat = Field(
        4.0e-4, description=ClippedConfig.model_fields["clip_high"].description
    )
    aggregation: Aggregation = Field(
        "sequence", description=ClippedConfig.model_fields["aggregation"].description
    )


class CISPOConfig(ClippedConfig):
    """GRPO with a clipped weight."""

    grouped: ClassVar[bool] = True
    name: Literal["cispo"] = Field("cispo", description="the algorithm")
    clip_low: ClipLow = Field(1.0, description="ratios below 1 - clip_low are clipped; 1: none are")
    clip_high: PositiveFloat = Field(
        4.0, description=ClippedConfig.model_fields["clip_high"].description
    )


class AnyCriticConfig(Section):
    """What all critics have in common."""

    kind: Literal["head", "adapter"] = Field(
        "head",
        description="head: a linear layer on the policy's last hidden state, which gets no "
        "gradient from it; adapter: the same on a LoRA of its own, at a second pass's cost",
    )
    learning_rate: PositiveFloat = Field(
        1.0e-3,
        description="AdamW's rate for the critic's layer; an adapter has learner.learning_rate",
    )
    gamma: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="discount from one turn of a seat to its next"
    )
    normalize: Normalize = Field(
        "zscore", description="advantages within each env and batch: none, centred, or z-scored"
    )


class CriticConfig(AnyCriticConfig):
    """A value for each turn's observation."""

    gae_lambda: Share = Field(
        0.95, description="lambda of the generalised advantage estimate; 1: returns minus values"
    )


class ActionCriticConfig(AnyCriticConfig):
    """A value for each legal move of each turn's observation."""

    sarsa_lambda: Share = Field(
        0.95,
        description="lambda of Expected SARSA; 0: Q minus its mean over the policy's moves, 1: "
        "unbiased, the return less that mean and less what the seat's later moves were worth more "
        "than theirs",
    )
    target_lambda: Share = Field(
        1.0, description="lambda of what Q learns; 0: one turn on, 1: returns"
    )


class PPOConfig(SurrogateConfig):
    """A critic's advantages, or rewards minus their role's baseline; clipped ratios."""

    name: Literal["ppo"] = Field("ppo", description="the algorithm")
    critic: CriticConfig | None = Field(
        CriticConfig(), description="null: a baseline for each (env, seat) in its place"
    )
    baseline_decay: BaselineDecay = Field(
        0.95,
        description="without a critic: decay of the reward baseline of each (env, seat); 0 "
        "forgets at once",
    )
    normalize: Normalize = Field(
        "center",
        description="without a critic: advantages within each env and batch: none, centred, or "
        "z-scored",
    )

    @model_validator(mode="after")
    def _of_the_baseline(self) -> Self:
        for name, remedy in (
            ("baseline_decay", "leave it out"),
            ("normalize", "set learner.algorithm.critic.normalize"),
        ):
            if self.critic is not None:
                null = "or set learner.algorithm.critic to null"
                self.refuse(name, f"is for ppo without a critic; {remedy}, {null}")
        return self


class VRPOConfig(SurrogateConfig):
    """The advantages of a critic of moves, over the legal moves; clipped ratios."""

    moves: ClassVar[MovesKept] = "legal"
    name: Literal["vrpo"] = Field("vrpo", description="the algorithm")
    critic: ActionCriticConfig = ActionCriticConfig()


class A2CConfig(BuiltInConfig):
    """A critic's advantages, the plain policy gradient."""

    without = NO_RATIO
    name: Literal["a2c"] = Field("a2c", description="the algorithm")
    critic: CriticConfig = CriticConfig()


class RFTConfig(BuiltInConfig):
    """Imitation of the turns of those who won."""

    takes_any_answers: ClassVar[bool] = True
    without = NO_RATIO | {
        "kl_reward": "imitates won turns whatever they earned; set learner.algorithm.kl_loss "
        "instead",
        "kl_opponents": "imitates won turns whatever they earned; leave it out",
        "top_advantage_fraction": "weighs all won turns alike; leave it out",
    }
    name: Literal["rft"] = Field("rft", description="the algorithm")
    aggregation: Aggregation = Field(
        "token", description=ClippedConfig.model_fields["aggregation"].description
    )


class DistillConfig(BuiltInConfig):
    """A teacher's moves, learned on the turns that the policy plays itself."""

    without = {
        "kl_reward": "earns nothing; set learner.algorithm.kl_loss instead",
        "kl_opponents": "earns nothing; leave it out",
        "top_advantage_fraction": "has no advantages; leave it out",
    }
    name: Literal["distill"] = Field("distill", description="the algorithm")

    @property
    def moves_needed(self) -> MovesKept:
        return "none" if self.uses_teacher else "expert"

    @model_validator(mode="after")
    def _of_an_adapter(self) -> Self:
        for name in ("kl_loss", "entropy", "truncated_weight", "old_logprobs"):
            if not self.uses_teacher:
                self.refuse(
                    name,
                    "is for turns that were sampled, and an expert's moves were not; name a policy "
                    "as learner.algorithm.teacher.adapter, or leave it out",
                )
        return self


class CustomAlgorithmConfig(AlgorithmConfig):
    """A user's own algorithm, which extends none of ours."""

    args: Arguments = Field({}, description="whatever your class reads from config.args")

    @property
    def target(self) -> str:
        """The class, package.module:Class."""
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
"""The sections of the algorithms by name."""
