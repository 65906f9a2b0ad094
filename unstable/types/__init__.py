"""Values that rooms exchange, one term per concept.

game (one play of an env) > seat (a player's place in it) > turn (one observation, one action).
A trajectory is one seat's turns; a group is the trajectories whose advantages are computed
together; a sample is one turn as trained.
"""

from unstable.types.answers import (
    Answer,
    Completion,
    FinishReason,
    Move,
    SampledTokens,
    Segment,
    TokenSample,
    TopLogprobs,
)
from unstable.types.finished import PlayedGame
from unstable.types.games import (
    WORTH,
    ActorState,
    GameFailure,
    GameResult,
    GameSpec,
    KnownPlayer,
    Observation,
    Purpose,
    RecordedGame,
    Reward,
    SeatSpec,
    Side,
    SpentError,
    Standing,
    Turn,
    standing,
)
from unstable.types.judging import Alarm, EvalScore, Exploitability, LeastWon, Rating, Shares
from unstable.types.players import BASE, MAIN, PAST, Adapter, PlayerId
from unstable.types.training import (
    Batch,
    Group,
    MeanLoss,
    PackedBatch,
    PackedTrajectory,
    Sample,
    Trajectory,
    Unwritable,
    Update,
)
