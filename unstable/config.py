"""The config: what a run is, as one value. Declares, documents, validates and is dumped.

Each default stands here and nowhere else; `configs/*.yaml` hold only what differs from them.
"auto" is resolved by `launch.py`, which knows the machine. A mistake raises `ConfigError`, one line
that names field, value and remedy.
"""

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

CONFIGS = Path(__file__).parent / "configs"
Auto = Literal["auto"]
PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]


class ConfigError(ValueError):
    """A user's mistake in one line: field, value, remedy. The CLI prints it and exits with 2."""


class RunFailedError(RuntimeError):
    """A run that ended by a fault, told in one line that says where the details are."""


def nearest(word: str, known: list[str]) -> str:
    """A hint: the known word closest to `word`, or else the first of those that are known."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    listed = sorted(known)
    return f"known: {', '.join(listed[:8])}{', ...' if len(listed) > 8 else ''}"


class Section(BaseModel):
    """A part of the config: immutable; an unknown key is an error that suggests the nearest."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), coerce_numbers_to_str=True
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    raise ValueError(
                        f"unknown key {key!r}; {nearest(str(key), list(cls.model_fields))}"
                    )
        return data


class AdapterConfig(Section):
    rank: PositiveInt = Field(16, description="LoRA rank r")
    alpha: PositiveInt = Field(32, description="LoRA alpha; updates are scaled by alpha / rank")
    targets: str | list[str] = Field(
        "all-linear",
        description="linear layers with LoRA: all-linear (never lm_head), or names such as q_proj",
    )


class ModelConfig(Section):
    name: str = Field(
        "smollm2-135m",
        description="a Hugging Face id, a local folder, or the embedded smollm2-135m",
    )
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto",
        description="of the base weights; auto: bfloat16 where the processor is fast at it",
    )
    init: str = Field(
        "auto",
        description="the LoRA's start: fresh, an adapter's folder, or auto (lora_ckpt if it fits)",
    )
    adapter: AdapterConfig = AdapterConfig()
    chat_template: dict[str, Any] = Field(
        {}, description="arguments for the tokenizer's chat template, such as enable_thinking"
    )


class InvalidMovesConfig(Section):
    allowed: NonNegativeInt = Field(
        0, description="consecutive invalid moves that a seat may repeat before it forfeits"
    )
    forfeit_reward: float = Field(-1.0, description="outcome of the seat that forfeits")
    others_reward: float = Field(0.0, description="outcome of the other seats of a forfeited game")


class GameConfig(Section):
    env: str = Field(
        "TicTacToe-v0", description="a TextArena id, or package.module:Class of a textarena.Env"
    )
    name: str | None = Field(
        None, description="name in tables and baselines; default: env (must be unique)"
    )
    args: dict[str, Any] = Field({}, description="arguments for the env's constructor")
    seats: PositiveInt = Field(2, description="number of players")
    weight: PositiveFloat = Field(
        1.0, description="share of the games played, relative to the other entries"
    )
    prompt: str = Field("answer", description="prompt style: answer, think, or module:function")
    parser: str = Field(
        "brackets",
        description="text to action: brackets (last [...]), boxed, raw, or module:function",
    )
    max_turns: PositiveInt = Field(
        50, description="a game is cut off, and counted as truncated, after this many turns"
    )
    invalid_moves: InvalidMovesConfig = InvalidMovesConfig()
    legal_moves: str | None = Field(
        None,
        description="module:function(env) -> actions, for games that do not list their legal moves",
    )

    @property
    def key(self) -> str:
        """The game's name in specs, files, metrics and baselines."""
        return self.name or self.env


class DrawConfig(Section):
    self: NonNegativeFloat = Field(
        0.5, description="share of games against the current policy, all seats trained"
    )
    past: NonNegativeFloat = Field(0.35, description="share of games against a past version")
    fixed: NonNegativeFloat = Field(0.15, description="share of games against a fixed opponent")


class OpponentConfig(Section):
    name: str | None = Field(
        None, description="name in tables; default: made from the kind and its target"
    )


class RandomOpponent(OpponentConfig):
    kind: Literal["random"] = Field(
        "random", description="random, minimax, python, checkpoint or openai"
    )

    @property
    def key(self) -> str:
        return self.name or "random"


class MinimaxOpponent(OpponentConfig):
    kind: Literal["minimax"] = "minimax"

    @property
    def key(self) -> str:
        return self.name or "minimax"


class PythonOpponent(OpponentConfig):
    kind: Literal["python"] = "python"
    target: str = Field(description="module:Class, called with an observation, returns the action")

    @property
    def key(self) -> str:
        return self.name or f"python:{self.target.rpartition(':')[2]}"


class CheckpointOpponent(OpponentConfig):
    kind: Literal["checkpoint"] = "checkpoint"
    path: str = Field(description="folder of a LoRA adapter of the same base model")
    temperature: NonNegativeFloat | None = Field(
        None, description="its sampling temperature; default: the game's"
    )

    @property
    def key(self) -> str:
        return self.name or f"checkpoint:{Path(self.path).name}"


class OpenAIOpponent(OpponentConfig):
    kind: Literal["openai"] = "openai"
    model: str = Field(description="model name at the endpoint")
    base_url: str = Field("https://api.openai.com/v1", description="an OpenAI-compatible endpoint")
    api_key_env: str = Field(
        "OPENAI_API_KEY", description="the environment variable that holds the key"
    )
    temperature: NonNegativeFloat | None = Field(
        None, description="its sampling temperature; default: the game's"
    )
    max_tokens: PositiveInt = Field(512, description="longest answer, in tokens")

    @property
    def key(self) -> str:
        return self.name or f"openai:{self.model}"


RESERVED_NAMES = ("base", "self", "past", "fixed", "others", "alone")
OPPONENT_KINDS = ["random", "minimax", "python", "checkpoint", "openai"]
FixedOpponent = (
    RandomOpponent | MinimaxOpponent | PythonOpponent | CheckpointOpponent | OpenAIOpponent
)


class OpponentsConfig(Section):
    draw: DrawConfig = DrawConfig()
    fixed: list[Annotated[FixedOpponent, Field(discriminator="kind")]] = Field(
        [RandomOpponent()],
        description="opponents that never change: random, minimax, python, checkpoint, openai",
    )
    pool_size: PositiveInt = Field(
        32, description="past versions kept as opponents, the newest ones"
    )


class SamplingConfig(Section):
    temperature: PositiveFloat = Field(1.0, description="sampling temperature in training")
    top_p: float = Field(
        1.0, description="must be 1: anything else is not the distribution that is trained"
    )
    max_tokens: PositiveInt = Field(16, description="longest answer of a turn, in tokens")
    max_prompt_tokens: PositiveInt = Field(
        2048, description="longest prompt; the oldest events are left out (and counted) to fit"
    )

    @model_validator(mode="after")
    def _unbiased(self) -> Self:
        if self.top_p != 1.0:
            raise ValueError(
                f"top_p = {self.top_p} would train on a cut distribution; set sampling.top_p to 1"
            )
        return self


class ActorsConfig(Section):
    num: PositiveInt | Auto = Field(
        "auto", description="actor processes; auto: by the machine and loop.mode"
    )
    engine: Literal["auto", "embedded"] = Field(
        "auto", description="what serves the model; embedded runs without a GPU"
    )
    games_in_flight: PositiveInt | Auto = Field(
        "auto", description="games that one actor plays at once"
    )
    policy_refresh: Literal["game"] = Field(
        "game", description="game: a game keeps the versions it began with"
    )


class RewardConfig(Section):
    term: str = Field(
        "outcome", description="outcome, format, invalid_move, length, or module:function"
    )
    weight: float = Field(1.0, description="what the term's raw value is multiplied by")
    args: dict[str, Any] = Field({}, description="arguments for the term")


class BufferConfig(Section):
    capacity: PositiveInt | Auto = Field(
        "auto", description="samples held; the oldest whole groups leave first"
    )
    max_staleness: NonNegativeInt = Field(
        4, description="versions that a sample may be behind when it is trained on"
    )
    rewards: list[RewardConfig] = Field(
        [RewardConfig()], description="reward terms of a turn; they add up"
    )


Aggregation = Literal["token", "turn", "sequence", "constant"]
RatioLevel = Literal["token", "turn", "sequence"]
ClipLow = Annotated[float, Field(gt=0, le=1)]


class AlgorithmConfig(Section):
    """What all algorithms have; docs/algorithms.md says what each one is."""

    name: str = Field(description="the algorithm, or package.module:Class of your own")
    kl_reward: NonNegativeFloat = Field(
        0.0, description="weight of the KL to the starting policy, taken off the reward; 0: none"
    )
    kl_loss: NonNegativeFloat = Field(
        0.0, description="weight of the KL to the starting policy, added to the loss; 0: none"
    )
    importance_cap: PositiveFloat = Field(
        2.0, description="upper bound of a token's importance weight"
    )


class ReinforceConfig(AlgorithmConfig):
    name: Literal["reinforce"] = Field(
        "reinforce",
        description="the algorithm; others: reinforce++, rloo, grpo, gspo, cispo, module:Class",
    )
    baseline_decay: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.95, description="decay of the reward baseline of each (env, seat); 0 forgets at once"
    )
    normalize: Literal["none", "center", "zscore"] = Field(
        "center", description="advantages within each env and batch: none, centred, or z-scored"
    )
    loss_norm: Literal["tokens", "constant"] = Field(
        "tokens",
        description="the loss is divided by the step's tokens, or by samples x sampling.max_tokens",
    )


class ClippedConfig(AlgorithmConfig):
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
    mask_truncated: bool = Field(
        False, description="turns that were cut at sampling.max_tokens get no gradient"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.importance_floor >= self.importance_cap:
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
    name: Literal["reinforce++"] = Field("reinforce++", description="the algorithm")


class RLOOConfig(SurrogateConfig):
    name: Literal["rloo"] = Field("rloo", description="the algorithm")
    ratio: RatioLevel = Field(
        "sequence", description=SurrogateConfig.model_fields["ratio"].description
    )
    aggregation: Aggregation = Field(
        "sequence", description=ClippedConfig.model_fields["aggregation"].description
    )
    normalize_advantages: bool = Field(
        False, description="z-score the advantages within each env and batch"
    )
    reward_clip: tuple[float, float] | None = Field(
        None, description="lowest and highest reward of a turn, before any KL; null: no bounds"
    )


class GRPOConfig(SurrogateConfig):
    name: Literal["grpo"] = Field("grpo", description="the algorithm")
    scale: Literal["none", "group", "batch"] = Field(
        "group",
        description="advantages are divided by the deviation of the group's rewards, of the "
        "batch's rewards in the env, or not at all",
    )


class GSPOConfig(SurrogateConfig):
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
    name: Literal["cispo"] = Field("cispo", description="the algorithm")
    clip_low: ClipLow = Field(1.0, description="ratios below 1 - clip_low are clipped; 1: none are")
    clip_high: PositiveFloat = Field(
        4.0, description=ClippedConfig.model_fields["clip_high"].description
    )


class CustomAlgorithmConfig(AlgorithmConfig):
    args: dict[str, Any] = Field({}, description="whatever your algorithm reads from config.args")


ALGORITHMS = ["reinforce", "reinforce++", "rloo", "grpo", "gspo", "cispo"]


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
    | Annotated[CustomAlgorithmConfig, Tag("custom")],
    Discriminator(_algorithm_tag),
]


class LearnerConfig(Section):
    num: PositiveInt = Field(1, description="learner ranks")
    parallel: Literal["ddp"] = Field("ddp", description="how several ranks share the work")
    algorithm: AnyAlgorithm = ReinforceConfig()
    learning_rate: PositiveFloat = Field(1.0e-4, description="AdamW's peak learning rate")
    weight_decay: NonNegativeFloat = Field(0.0, description="AdamW's weight decay")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="learning rate after the warm-up"
    )
    warmup_steps: NonNegativeInt = Field(
        0, description="optimizer steps over which the learning rate rises"
    )
    batch_size: PositiveInt = Field(
        128, description="samples (turns) of an update, at least: groups stay whole"
    )
    steps_per_batch: PositiveInt = Field(1, description="optimizer steps made out of one batch")
    epochs: PositiveInt = Field(1, description="times that a batch is gone through")
    mini_batch_size: PositiveInt = Field(
        16, description="samples put through at a time; never changes the gradient"
    )
    grad_clip: PositiveFloat = Field(1.0, description="largest gradient norm")

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        step = self.steps_per_batch * self.mini_batch_size
        if self.batch_size % step:
            raise ValueError(
                f"batch_size = {self.batch_size} is not divisible by "
                f"steps_per_batch x mini_batch_size = {step}; "
                f"set learner.batch_size to {max(step, self.batch_size - self.batch_size % step)}"
            )
        if self.num > 1:
            raise ValueError(
                f"num = {self.num}, but only one learner rank is built yet; set learner.num to 1"
            )
        return self


class EvalConfig(Section):
    every: NonNegativeInt = Field(
        4, description="updates between evaluations, besides the first and the last; 0: none at all"
    )
    games: PositiveInt = Field(
        16, description="games against each opponent in each env, in pairs that swap seats"
    )
    temperature: NonNegativeFloat = Field(
        1.0, description="the policy's sampling temperature; 0: greedy"
    )
    opponents: list[str] = Field(
        ["random"], description="names of fixed opponents, or random, minimax, base"
    )

    @field_validator("opponents", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class LoopConfig(Section):
    mode: Literal["auto", "sync", "async"] = Field(
        "auto", description="play and learn in turn, or at once"
    )
    steps: NonNegativeInt = Field(8, description="updates to make")
    max_time: PositiveFloat | None = Field(
        None, description="stop after this many seconds, even if updates are left"
    )
    max_failures: NonNegativeInt = Field(
        20, description="failed games that are tolerated before the run ends"
    )


class TrackingConfig(Section):
    run_dir: str | None = Field(
        None, description="the run's own, new folder; default: outputs/<model-games-opponents-time>"
    )
    wandb: str | None = Field(None, description="a Weights & Biases project; default: none")
    dashboard: Literal["auto", "on", "off"] = Field(
        "auto", description="live dashboard; auto: on a terminal"
    )
    keep_checkpoints: PositiveInt = Field(
        5, description="newest checkpoints kept; older ones go once they are no opponents either"
    )

    @field_validator("dashboard", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        # YAML reads a bare on or off as true or false.
        return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


class RunConfig(Section):
    """A whole run. Defaults train the embedded model on TicTacToe on a machine without a GPU."""

    model: ModelConfig = ModelConfig()
    games: list[GameConfig] = Field([GameConfig()], min_length=1, description="what is played")
    opponents: OpponentsConfig = OpponentsConfig()
    sampling: SamplingConfig = SamplingConfig()
    actors: ActorsConfig = ActorsConfig()
    buffer: BufferConfig = BufferConfig()
    learner: LearnerConfig = LearnerConfig()
    eval: EvalConfig = EvalConfig()
    loop: LoopConfig = LoopConfig()
    tracking: TrackingConfig = TrackingConfig()
    seed: int = Field(
        0, description="decides games, seats, opponents and, in sync mode, every token"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _refuse_twins("games", [game.key for game in self.games])
        _refuse_twins("opponents.fixed", [opponent.key for opponent in self.opponents.fixed])
        for index, opponent in enumerate(self.opponents.fixed):
            if opponent.key in RESERVED_NAMES or opponent.key.startswith("policy@"):
                raise ValueError(
                    f"opponents.fixed.{index}.name = {opponent.key!r} has a meaning of its own; "
                    "give it another name"
                )
        draw = self.opponents.draw
        if draw.self + draw.past + draw.fixed <= 0:
            raise ValueError("opponents.draw = all zero; give self, past or fixed a share above 0")
        if draw.fixed > 0 and not self.opponents.fixed:
            raise ValueError(
                f"opponents.draw.fixed = {draw.fixed}, but opponents.fixed is empty; "
                "list an opponent there or set opponents.draw.fixed to 0"
            )
        capacity = self.buffer.capacity
        if capacity != "auto" and capacity < self.learner.batch_size:
            raise ValueError(
                f"buffer.capacity = {capacity} can never hold learner.batch_size = "
                f"{self.learner.batch_size} samples; set buffer.capacity to at least that"
            )
        known = [*self.fixed_opponents, "base"]
        for index, name in enumerate(self.eval.opponents):
            if name not in known:
                raise ValueError(
                    f"eval.opponents.{index} = {name!r} is no opponent; {nearest(name, known)}"
                )
        return self

    @property
    def fixed_opponents(self) -> dict[str, FixedOpponent]:
        """Fixed opponents by name: those listed, and random and minimax, which need no entry."""
        built_in: list[FixedOpponent] = [RandomOpponent(), MinimaxOpponent()]
        return {opponent.key: opponent for opponent in [*built_in, *self.opponents.fixed]}

    @property
    def game_by_key(self) -> dict[str, GameConfig]:
        """Games by the name that specs use."""
        return {game.key: game for game in self.games}


def _refuse_twins(field: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"{field}: two entries are called {name!r}; give one of them another name"
            )


def parse(data: dict[str, Any]) -> RunConfig:
    """The config that `data` describes; raises `ConfigError` at the first mistake."""
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(one_line(error)) from None


def one_line(error: ValidationError) -> str:
    """Pydantic's first complaint as "field = value: what is wrong"."""
    first = error.errors()[0]
    members = [*OPPONENT_KINDS, *ALGORITHMS, "custom"]  # which a union adds to the place
    field = ".".join(str(part) for part in first["loc"] if part not in members)
    if first["type"] == "union_tag_invalid":
        given = str(first["ctx"]["tag"])
        if field == "learner.algorithm":
            hint = nearest(given, ALGORITHMS)
            return f"{field}.name = {given!r} is no algorithm or module:Class; {hint}"
        return f"{field}.kind = {given!r} is no kind of opponent; {nearest(given, OPPONENT_KINDS)}"
    if first["type"] == "missing":
        return f"{field} is missing; give it a value"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        joint = "" if not field else ": " if message.startswith("unknown key") else "."
        return f"{field}{joint}{message}"
    return f"{field} = {first['input']!r}: {message[0].lower()}{message[1:]}"


def load(name: str, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """The config of a shipped name (`default`) or of a YAML file, with `overrides` by dotted path.

    >>> load("default", {"games.0.env": "Nim-v0", "learner.epochs": 2}).learner.epochs
    2
    """
    config = parse(_read(name))
    if not overrides:
        return config
    data = config.model_dump()
    current = config.learner.algorithm.name
    if overrides.get("learner.algorithm.name", current) != current:
        data["learner"]["algorithm"] = {}  # another algorithm has other keys
    for path, value in overrides.items():
        _put(data, path, value)
    return parse(data)


def _read(name: str) -> dict[str, Any]:
    path = CONFIGS / f"{name}.yaml"
    if not path.is_file():
        path = Path(name).expanduser()
    if not path.is_file():
        shipped = sorted(p.stem for p in CONFIGS.glob("*.yaml"))
        hint = nearest(name, shipped)
        raise ConfigError(f"--config = {name!r}: no such file or shipped config; {hint}")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(
            f"--config = {name!r}: not YAML: {' '.join(str(error).split())}"
        ) from None
    if not isinstance(data, dict | None):
        kind = type(data).__name__
        raise ConfigError(f"--config = {name!r}: holds a {kind}; write keys such as games:")
    return data or {}


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path; an index one past a list's end adds an entry."""
    *parents, last = path.split(".")
    place: Any = data
    for key in parents:
        place = place.setdefault(key, {}) if isinstance(place, dict) else place[_index(place, key)]
        if not isinstance(place, dict | list):
            raise ConfigError(f"{path}: {key} is a single value; nothing lies below it")
    place[last if isinstance(place, dict) else _index(place, last)] = value


def _index(entries: list[Any], key: str) -> int:
    if not key.isdigit() or int(key) > len(entries):
        raise ConfigError(f"{key!r} is no index of a list of {len(entries)} entries")
    if int(key) == len(entries):
        entries.append({})
    return int(key)


class Option(NamedTuple):
    """A field as `--help` shows it: Option("learner.epochs", "times that ...", "default: 1")"""

    path: str
    meaning: str
    default: str


def fields(section: type[BaseModel]) -> list[Option]:
    """Every value of a section and of those below it, once; N stands for a list's index."""
    found: dict[str, Option] = {}
    for option in _fields(section, ""):
        found.setdefault(option.path, option)
    return list(found.values())


def _fields(section: type[BaseModel], prefix: str) -> Iterator[Option]:
    for name, field in section.model_fields.items():
        below = list(_sections(field.annotation))
        in_list = get_origin(field.annotation) is list
        path = f"{prefix}{name}{'.N' if in_list and below else ''}"
        meaning = field.description or ""
        if not below:
            needed = field.is_required()
            yield Option(
                path, meaning, "needed" if needed else f"default: {json.dumps(field.default)}"
            )
        elif meaning:
            yield Option(path, meaning, "")
        for inner in below:
            yield from _fields(inner, f"{path}.")


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that a field's type is made of, if any."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _sections(part)


def dump(config: RunConfig) -> str:
    """The config as YAML that `load` reads back to an equal config."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, width=100)
