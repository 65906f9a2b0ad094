"""Placing processes where actors play on the processor."""

from unstable.planning.case import Case, Placed, smallest, too_few
from unstable.planning.fit import MAX_GPU_MEMORY, Budget, Device, check_engine_fits

EMBEDDED_GAMES = 32
"""Games in flight on one embedded engine."""
SMALL = 20_000_000
"""Parameters below which launching a GPU's kernels takes longer than a processor's arithmetic."""


def on_processor(case: Case) -> Placed:
    """Actors on the processor; the learner on the GPUs, if there are any and the model is large."""
    config, machine = case.config, case.machine
    small = case.shape.parameters < SMALL and case.dtype == "float32"
    gpus = () if small else machine.usable_gpus
    ranks, asked = case.ranks, config.actors
    if 0 < len(gpus) < ranks:
        raise too_few(f"learner.num = {ranks}", ranks, gpus, f"learner.num to {len(gpus)}")
    # Measured on two cores (docs/benchmarks.md): at once is faster, if each has a core of its own.
    sync = config.loop.mode == "sync" or (config.loop.mode == "auto" and machine.cores == 1)
    # Half for the learner whatever is free just now: a run must not depend on that.
    half = machine.memory_bytes // 2 if ranks and not gpus else 0
    for_actors = machine.memory_bytes - half
    engine = case.engine_memory(on_gpu=False)
    wanted = EMBEDDED_GAMES if asked.games_in_flight == "auto" else asked.games_in_flight
    by_cores = machine.cores if sync or not ranks else machine.cores // 2
    by_memory = min(for_actors, machine.free_bytes) // engine.total(tokens_of(case, wanted))
    most = case.engine.most_on_processor or max(1, min(by_cores, by_memory))
    num = most if asked.num == "auto" else asked.num
    limit = for_actors // num
    fitting = 2 * engine.tokens(limit) // case.longest
    games = max(1, min(wanted, fitting)) if asked.games_in_flight == "auto" else wanted
    processor = Device("the processor", machine.memory_bytes, limit, on_gpu=False)
    check_engine_fits(engine, limit, processor, tokens_of(case, games))
    learner_on = None
    if ranks:
        own = processor._replace(free_bytes=half // ranks)
        learner_on = smallest(gpus[:ranks]) if gpus else own
    return Placed(
        actors=(case.place(),) * num,
        learners=tuple(case.place(gpu) for gpu in gpus[:ranks]) or (case.place(),) * ranks,
        budget=Budget(
            mode="sync" if sync else "async",
            share="off",
            gpu_memory=MAX_GPU_MEMORY if asked.gpu_memory == "auto" else asked.gpu_memory,
            engine_bytes=limit,
            learner_bytes=learner_on.free_bytes if learner_on else 0,
        ),
        games=games,
        max_loras=case.max_loras,
        engines_per_gpu=1 if asked.engines_per_gpu == "auto" else asked.engines_per_gpu,
        engine=engine,
        cached_tokens=tokens_of(case, games),
        learner_on=learner_on,
    )


def tokens_of(case: Case, games: int) -> int:
    """That games cache at once; few prompts are as long as allowed, but one may be."""
    return max(case.longest, games * case.longest // 2)
