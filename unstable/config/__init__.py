"""The config: what a run is, as one value. Declares, documents, validates and is dumped.

Each default stands here and nowhere else; `configs/*.yaml` hold only what differs from them.
"auto" is resolved at launch, which knows the machine. A mistake raises `ConfigError`, one line
that names field, value and remedy.
"""

from unstable.config.algorithms import (
    ALGORITHMS,
    A2CConfig,
    Aggregation,
    AlgorithmConfig,
    BuiltInConfig,
    CISPOConfig,
    ClippedConfig,
    CriticConfig,
    CustomAlgorithmConfig,
    GRPOConfig,
    GSPOConfig,
    PPOConfig,
    ReinforceConfig,
    ReinforcePlusPlusConfig,
    RFTConfig,
    RLOOConfig,
    SurrogateConfig,
)
from unstable.config.base import (
    ConfigError,
    RunFailedError,
    nearest,
)
from unstable.config.opponents import (
    CheckpointOpponent,
    FixedOpponent,
    MinimaxOpponent,
    OpenAIOpponent,
    PythonOpponent,
    RandomOpponent,
)
from unstable.config.options import (
    fields,
)
from unstable.config.reading import (
    CONFIGS,
    dump,
    load,
    parse,
)
from unstable.config.run import (
    RunConfig,
)
from unstable.config.sections import (
    AdapterConfig,
    GameConfig,
    InvalidMovesConfig,
    LearnerConfig,
    ModelConfig,
    RewardConfig,
)
from unstable.config.sft import (
    DataConfig,
    ExpertData,
    JSONLData,
    RecordedData,
    SFTConfig,
)
