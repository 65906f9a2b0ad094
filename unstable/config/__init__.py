"""The config of a run as one value: declaration, documentation, validation and YAML form.

Input is YAML, options and dicts; output is an immutable `RunConfig`. Planning, which knows the
machine, resolves "auto". Only this room declares defaults. A mistake raises `ConfigError`: one line
with field, value and remedy.
"""

from unstable.config.algorithm import (
    AlgorithmConfig,
    BuiltInConfig,
    Divergence,
    MovesKept,
    TeacherConfig,
    records,
)
from unstable.config.algorithms import (
    ALGORITHMS,
    A2CConfig,
    ActionCriticConfig,
    Aggregation,
    CISPOConfig,
    ClippedConfig,
    CriticConfig,
    CustomAlgorithmConfig,
    DistillConfig,
    DPOConfig,
    GRPOConfig,
    GSPOConfig,
    IPOConfig,
    KTOConfig,
    PairsConfig,
    PPOConfig,
    ReinforceConfig,
    ReinforcePlusPlusConfig,
    RFTConfig,
    RLOOConfig,
    SimPOConfig,
    SLiCConfig,
    SurrogateConfig,
    VRPOConfig,
)
from unstable.config.base import (
    DISTRIBUTION,
    FORMAT,
    ConfigError,
    RunFailedError,
    check_format,
    nearest,
    path_problem,
    shown,
)
from unstable.config.escape import (
    escape_control,
    has_secrets,
    hide_secrets,
    keep_secret,
    one_line,
    spare_loopback,
)
from unstable.config.game import GameConfig, InvalidMovesConfig
from unstable.config.judges import (
    ORACLES,
    JudgeConfig,
    LLMOracle,
    Part,
    RewardConfig,
    RewardModelOracle,
    TeacherOracle,
)
from unstable.config.judging import Action, Rule
from unstable.config.learner import LearnerConfig
from unstable.config.opponents import (
    CheckpointOpponent,
    DrawConfig,
    ExpertOpponent,
    FixedOpponent,
    MCTSOpponent,
    OpenAIOpponent,
    OpponentsConfig,
    PastConfig,
    PythonOpponent,
    RandomOpponent,
    RulesOpponent,
    SearchOpponent,
)
from unstable.config.options import fields, outline, within
from unstable.config.plain import read_text, read_yaml
from unstable.config.reading import CONFIGS, ROOTS, dump, load, load_as, parse, parse_as
from unstable.config.run import RunConfig
from unstable.config.sections import (
    AdapterConfig,
    AnyAdapter,
    ClusterConfig,
    ExploreConfig,
    ModelConfig,
    SamplingConfig,
    ThoughtsConfig,
)
from unstable.config.supervised import (
    DataConfig,
    ExpertData,
    JSONLData,
    LearnConfig,
    LearnRun,
    LegalMovesData,
    RecordedData,
    SFTRun,
    WorldConfig,
    WorldRun,
)
