"""The config of a whole run."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from unstable.config.algorithm import MovesKept, records
from unstable.config.algorithms import VRPOConfig
from unstable.config.base import Integer, Key, Section, nearest
from unstable.config.game import CurriculumConfig, GameConfig
from unstable.config.judges import BufferConfig, JudgeConfig, LLMOracle, RewardConfig
from unstable.config.judging import EvalConfig, GuardConfig
from unstable.config.learner import LearnerConfig
from unstable.config.opponents import (
    BUILT_IN_OPPONENTS,
    RESERVED_NAMES,
    DrawConfig,
    FixedOpponent,
    OpenAIOpponent,
    OpponentsConfig,
)
from unstable.config.sections import (
    ActorsConfig,
    ClusterConfig,
    GroupsConfig,
    ListenConfig,
    LoopConfig,
    ModelConfig,
    OpeningsConfig,
    SamplingConfig,
    TrackingConfig,
)


class RunConfig(Section):
    """A whole run. Defaults train the embedded model on TicTacToe on a machine without a GPU."""

    model: ModelConfig = ModelConfig()
    games: list[GameConfig] = Field([GameConfig()], min_length=1, description="games to play")
    curriculum: CurriculumConfig = CurriculumConfig()
    opponents: OpponentsConfig = OpponentsConfig()
    sampling: SamplingConfig = SamplingConfig()
    groups: GroupsConfig = GroupsConfig()
    openings: OpeningsConfig = OpeningsConfig()
    actors: ActorsConfig = ActorsConfig()
    judges: dict[Key, JudgeConfig] = {}
    """judges by the name that reward terms and best_of use"""
    buffer: BufferConfig = BufferConfig()
    learner: LearnerConfig = LearnerConfig()
    eval: EvalConfig = EvalConfig()
    guard: GuardConfig = GuardConfig()
    loop: LoopConfig = LoopConfig()
    cluster: ClusterConfig = ClusterConfig()
    listen: ListenConfig = ListenConfig()
    tracking: TrackingConfig = TrackingConfig()
    seed: Integer = 0
    """seed of games, seats, opponents and, in sync mode, every token"""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _refuse_twins("games", [game.key for game in self.games])
        _refuse_twins("opponents.fixed", [opponent.key for opponent in self.opponents.fixed])
        for index, opponent in enumerate(self.opponents.fixed):
            if opponent.key in RESERVED_NAMES or "@" in opponent.key.partition(":")[0]:
                raise ValueError(
                    f"opponents.fixed.{index}.name = {opponent.key!r}: reserved name; "
                    "choose another"
                )
        self._check_draw("opponents.draw", self.opponents.draw)
        if "opponents" in self.guard.action:
            self._check_draw("guard.opponents", self.guard.opponents)
        if "rollback" in self.guard.action and not self.eval.every:
            raise ValueError(
                "guard.action = rollback: needs evaluations, but eval.every = 0; "
                "set eval.every, or remove rollback"
            )
        self._check_groups()
        self._check_moves()
        self._check_quantize()
        self._check_critic()
        mixed, kept = self.actors.max_loras, self.actors.max_cpu_loras
        if mixed != "auto" and kept != "auto" and kept < mixed:
            raise ValueError(
                f"actors.max_cpu_loras = {kept}: less than actors.max_loras = {mixed}; "
                "raise actors.max_cpu_loras"
            )
        capacity = self.buffer.capacity
        if capacity != "auto" and capacity < self.learner.batch_size:
            raise ValueError(
                f"buffer.capacity = {capacity}: less than learner.batch_size = "
                f"{self.learner.batch_size}; raise buffer.capacity"
            )
        opponents, games = [*self.fixed_opponents, "base", "past"], list(self.game_by_key)
        _refuse_unknown("eval.opponents", self.eval.opponents, opponents, "opponent")
        measured = self.eval.exploitability.games
        _refuse_unknown("eval.exploitability.games", measured, games, "game")
        return self

    def _check_draw(self, field: str, draw: DrawConfig) -> None:
        if draw.self + draw.past + draw.fixed <= 0:
            raise ValueError(f"{field}: all shares are 0; set self, past or fixed above 0")
        if draw.fixed > 0 and not self.opponents.fixed:
            raise ValueError(
                f"{field}.fixed = {draw.fixed}: opponents.fixed is empty; "
                f"list an opponent there or set {field}.fixed to 0"
            )

    def _check_groups(self) -> None:
        algorithm = self.learner.algorithm
        if algorithm.needs_groups and self.group_size == 1:
            raise ValueError(
                f"groups.size = 1: learner.algorithm.name = {algorithm.name!r} compares the "
                "trajectories of a group; set groups.size to 2 or more"
            )
        if self.groups.drop_tied and self.group_size == 1:
            raise ValueError(
                "groups.drop_tied = true: groups.size = 1, and a group of one is always tied; "
                "set groups.size to 2 or more"
            )
        if self.groups.explore.rule != "none":
            self._check_explore()
        if self.group_size > self.learner.batch_size:
            raise ValueError(
                f"groups.size = {self.group_size}: greater than learner.batch_size = "
                f"{self.learner.batch_size}; lower groups.size"
            )
        if self.group_size > 1 and self.actors.policy_refresh == "turn":
            raise ValueError(
                "actors.policy_refresh = 'turn': the trajectories of a group need one policy; "
                "set actors.policy_refresh to game"
            )

    def _check_explore(self) -> None:
        algorithm, rule = self.learner.algorithm, self.groups.explore.rule
        if self.groups.by != "branch":
            raise ValueError(
                f"groups.explore.rule = {rule!r}: needs branches, but groups.by = "
                f"{self.groups.by!r}; set groups.by to branch"
            )
        if not algorithm.takes_any_answers:
            raise ValueError(
                f"groups.explore.rule = {rule!r}: learner.algorithm.name = {algorithm.name!r} "
                "needs answers sampled by the policy; set groups.explore.rule to none, "
                "or choose an algorithm that compares answers, such as dpo"
            )

    def _check_moves(self) -> None:
        needed, kept = self.learner.algorithm.moves_needed, self.moves_kept
        if not records(kept, needed):
            name = self.learner.algorithm.name
            raise ValueError(
                f"sampling.moves = {kept!r}: learner.algorithm.name = {name!r} needs "
                f"{needed!r}; set sampling.moves to auto"
            )
        if (expert := self.sampling.expert) not in self.fixed_opponents:
            hint = nearest(expert, list(self.fixed_opponents))
            raise ValueError(f"sampling.expert = {expert!r}: unknown opponent; {hint}")
        for index, reward in enumerate(self.buffer.rewards):
            if reward.term == "expert" and kept != "expert":
                raise ValueError(
                    f"buffer.rewards.{index}.term = 'expert': needs the expert's probabilities, "
                    f"but sampling.moves = {kept!r}; set sampling.moves to expert"
                )

    def _check_critic(self) -> None:
        algorithm, shards = self.learner.algorithm, self.learner.parallel == "fsdp"
        if not isinstance(algorithm, VRPOConfig) or algorithm.critic.kind == "network":
            return
        if shards and self.model.trains_all:
            raise ValueError(
                "learner.algorithm.critic.kind = 'adapter': unsupported with sharded weights; "
                "set learner.algorithm.critic.kind to network, or learner.parallel to ddp"
            )

    def _check_quantize(self) -> None:
        if self.model.quantize == "none":
            return
        quantize = f"model.quantize = {self.model.quantize!r}"
        if self.learner.parallel == "fsdp":
            raise ValueError(
                f"learner.parallel = fsdp: conflicts with {quantize}, which is not sharded; "
                "set learner.parallel to ddp"
            )
        if self.learner.compile:
            raise ValueError(
                f"learner.compile = true: conflicts with {quantize}, which is not compiled; "
                "set learner.compile to false"
            )

    @property
    def buffer_capacity(self) -> int:
        """Samples that the buffer holds; auto: enough batches for `max_staleness`."""
        auto = self.learner.batch_size * (self.buffer.max_staleness + 1)
        return auto if self.buffer.capacity == "auto" else self.buffer.capacity

    @property
    def moves_kept(self) -> MovesKept:
        """Moves of each position that trained turns record."""
        moves = self.sampling.moves
        return self.learner.algorithm.moves_needed if moves == "auto" else moves

    @property
    def group_size(self) -> int:
        """Number of trajectories in a group."""
        if self.groups.size == "auto":
            return 8 if self.learner.algorithm.needs_groups else 1
        return self.groups.size

    @property
    def fixed_opponents(self) -> dict[str, FixedOpponent]:
        """Fixed opponents by name: the listed ones, and the built-in ones, which need no entry."""
        return {each.key: each for each in [*BUILT_IN_OPPONENTS, *self.opponents.fixed]}

    def opponents_among(self, names: Collection[str]) -> list[FixedOpponent]:
        """Return the listed opponents with these names, and the expert if it is listed."""
        kept = {*names, *{self.sampling.expert} - {"expert"}}  # "expert" needs no entry
        return [each for each in self.opponents.fixed if each.key in kept]

    @property
    def opponent_adapters(self) -> dict[str, Path]:
        """LoRA adapters that the engine must serve as fixed opponents: folder by name."""
        found = {each.adapter_name: each.adapter_folder for each in self.opponents.fixed}
        return {name: folder for name, folder in found.items() if folder is not None}

    @property
    def own_opponents(self) -> dict[str, FixedOpponent]:
        """Fixed opponents that play in this run, by name."""
        known = self.fixed_opponents
        named = [name for name in self.eval.opponents if name in known] if self.eval.every else []
        trained = [opponent.key for opponent in self.opponents.fixed]
        return {name: known[name] for name in [*trained, *named]}

    def with_ledgers(self, place: Callable[[str], Path]) -> Self:
        """Return a copy in which endpoints without a ledger count in the file `place(name)`."""
        fixed = [
            each.model_copy(update={"ledger": str(place(each.key))})
            if isinstance(each, OpenAIOpponent) and each.ledger is None
            else each
            for each in self.opponents.fixed
        ]
        return self.updated({"opponents.fixed": fixed})

    def of_actor(self, index: int) -> Self:
        """Return the config of an actor, whose games' seats listen at a separate port."""
        if not self.listen.port:
            return self
        first = self.listen.seats_port or self.listen.port + 1
        return self.updated({"listen.seats_port": first + index})

    @property
    def candidate_judges(self) -> dict[str, RewardConfig]:
        """Judges that `best_of` names, as reward terms by the section that has `best_of`."""
        places: dict[str, Section] = {"eval": self.eval}
        places |= {f"opponents.fixed.{i}": each for i, each in enumerate(self.opponents.fixed)}
        found = {}
        for place, section in places.items():
            best_of = getattr(section, "best_of", None)
            if best_of is not None and best_of.judge is not None:
                judge = self.judges.get(best_of.judge)
                found[place] = RewardConfig(
                    term=best_of.judge,
                    name=f"best_of.{place}",
                    judged="turn" if judge is not None and judge.oracle is not None else "auto",
                )
        return found

    @property
    def judged_terms(self) -> dict[str, JudgeConfig]:
        """Judges that this run queries, by the name of their term in metrics."""
        terms = [*self.buffer.rewards, *self.candidate_judges.values()]
        return {each.key: self.judges[each.term] for each in terms if each.term in self.judges}

    @property
    def judge_adapters(self) -> dict[str, tuple[str, Path]]:
        """LoRA adapters that the engine must serve as judges: field and folder by name."""
        asked = [*self.buffer.rewards, *self.candidate_judges.values()]
        found = {}
        for name in sorted({each.term for each in asked} & self.judges.keys()):
            oracle = self.judges[name].oracle
            if isinstance(oracle, LLMOracle) and oracle.adapter_folder is not None:
                found[oracle.adapter_name] = f"judges.{name}.args.engine", oracle.adapter_folder
        return found

    @property
    def game_by_key(self) -> dict[str, GameConfig]:
        """Games by the name that specs use."""
        return {game.key: game for game in self.games}


def _refuse_twins(field: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{field}: duplicate name {name!r}; rename one of the entries")


def _refuse_unknown(field: str, names: list[str], known: list[str], what: str) -> None:
    for index, name in enumerate(names):
        if name not in known:
            raise ValueError(f"{field}.{index} = {name!r}: unknown {what}; {nearest(name, known)}")
