"""Common parts of all engines: the choice, the probe, adapters on disk, no process left behind."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, load_file

from tests.helpers.builders import asking, completion
from tests.helpers.models import random_adapter, tiny_model
from tests.helpers.rows import every_row
from tests.helpers.vllm import Deaf, Scorer
from unstable.config import ModelConfig, parse
from unstable.engines.base import SamplingRequest
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.engines.kinds import make_engine
from unstable.engines.probe import BOUNDS, ProbeAnswer, ask_probe, check_probe, probe_adapters
from unstable.engines.vllm.adapters import AdapterStore
from unstable.engines.vllm.versions import ScratchFolder
from unstable.models.adapters import padded_rank, read_adapter
from unstable.models.base import load_model, load_tokenizer, named_stop_token_ids, stop_token_ids
from unstable.models.shape import shape_of
from unstable.types import Adapter, Completion

LINEARS = {each.name: (each.inputs, each.outputs) for each in shape_of(tiny_model().config).linears}


def store(root: Path, capacity: int = 8) -> AdapterStore:
    return AdapterStore(root, LINEARS, torch.bfloat16, capacity)


def served(adapters: AdapterStore, adapter: Adapter):
    stored = adapters.reserve(adapter.name)
    adapters.write(stored, adapter)
    adapters.serve(stored)
    return stored


async def test_embedded_engine_is_made_from_config(tiny_folder, tmp_path):
    model = {"name": str(tiny_folder), "dtype": "float32"}
    actors = {"engine": "embedded", "games_in_flight": 2}
    config = parse({"model": model, "actors": actors})
    engine, tokenizer = await make_engine(config, tmp_path / "log")

    ids = tokenizer.encode("go")
    answer = await engine.generate(asking(ids, max_tokens=3))
    assert len(answer.token_ids) == len(answer.logprobs) > 0
    with pytest.raises(ValueError, match="exceed the engine's limit of 2064"):
        await engine.generate(asking(ids * 1032, max_tokens=3))
    await engine.close()


def test_stop_tokens_do_not_depend_on_loaded_model(tiny_folder):
    config = ModelConfig(name=str(tiny_folder))
    tokenizer = load_tokenizer(config)
    expected = stop_token_ids(load_model(config), config, tokenizer)
    assert named_stop_token_ids(config, tokenizer) == expected == {0}


class Forgetful(Deaf):
    """An engine that is deaf once it has slept."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        super().__init__(engine)
        self.forget_prefixes = engine.forget_prefixes
        self._slept = False

    async def sleep(self) -> None:
        await self._engine.sleep()
        self._slept = True

    async def wake(self) -> None:
        await self._engine.wake()

    async def generate(self, request: SamplingRequest) -> Completion:
        return await (super() if self._slept else self._engine).generate(request)


async def test_probe_detects_engine_that_ignores_adapters(tiny_folder):
    config = ModelConfig(name=str(tiny_folder), dtype="float32")
    model, scorer = load_model(config), Scorer(config)
    shape = shape_of(model.config)
    adapters = probe_adapters(shape, config.lora)
    engine = EmbeddedEngine(model, (), max_requests=4)

    async def probe(asked, sleeps: bool = False) -> list[str]:
        answers = await ask_probe(asked, adapters, shape.vocabulary, sleeps=sleeps)
        assert len(answers) == 6 * (1 + sleeps)
        scores = {name: scorer.score(answers, adapter) for name, adapter in named}
        return check_probe(answers, scores, BOUNDS["float32"])

    named = [(None, None), *((adapter.name, adapter) for adapter in adapters)]
    assert await probe(engine) == []
    assert await probe(engine, sleeps=True) == []  # no state is left of the first probe
    with pytest.raises(RuntimeError, match="logprobs under an adapter differ .* does not serve"):
        await probe(Deaf(engine))
    assert await probe(Forgetful(engine)) == []
    with pytest.raises(RuntimeError, match="an adapter after a sleep differ .* the base model by"):
        await probe(Forgetful(engine), sleeps=True)
    named[1], named[2] = (named[1][0], adapters[1]), (named[2][0], adapters[0])
    with pytest.raises(RuntimeError, match="differ"):
        await probe(engine)
    named = [(name, None) for name, _ in named]
    with pytest.raises(RuntimeError, match="does not distinguish the base model from another"):
        await probe(Deaf(engine))
    await engine.close()


def probe_case(noise: float, effects: Sequence[float] = (1.0, -1.5)) -> list[str]:
    """Check the probe of an engine `noise` nats off; its adapters add `effects` nats a token."""
    names = [None, "probe@0", "probe@1"]
    changed = dict(zip(names, (0.0, *effects), strict=True))
    answers = [
        ProbeAnswer(prompt_ids=[1], completion=completion(adapter=name, logprobs=logprobs))
        for name in names
        for logprobs in [[changed[name] - 5 + noise, changed[name] - 5 - noise]]
    ]

    scores = {name: [[changed[name] - 5] * 2 for _ in answers] for name in names}
    return check_probe(answers, scores, BOUNDS["bfloat16"])


def test_probe_doubts_do_not_raise():
    """Bounds that other models have are no proof; what an adapter changes is."""
    assert probe_case(0.1) == []
    usual = probe_case(0.3)
    assert len(usual) == 3 and all("usual are 0.2 and 1.0" in doubt for doubt in usual)
    near = probe_case(0.5)
    assert len(near) == 3 and "under the base model differ" in near[0]
    assert "0.5000 per token, maximum 0.5000, but an adapter changes only 1.0000" in near[0]


@every_row("noise", 1.2, float("nan"), float("inf"))
def test_probe_raises_if_engine_error_reaches_adapter_effect(noise):
    with pytest.raises(RuntimeError, match="does not serve the trained weights"):
        probe_case(noise)


def test_adapter_is_written_in_engine_dtype(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("the write waits for the disk"))
    adapters, adapter = store(tmp_path), random_adapter(tiny_model(), "main@0", seed=0)
    stored = served(adapters, adapter)
    assert read_adapter(stored.folder, "main@0").config == adapter.config
    written = load_file(stored.folder / "adapter_model.safetensors")
    expected = {key: value.bfloat16() for key, value in load(adapter.weights).items()}

    assert written.keys() == expected.keys()
    assert all(torch.equal(written[key], expected[key]) for key in expected)
    assert adapters.find("main@0") is stored
    with pytest.raises(ValueError, match="'main@0' already exists"):
        adapters.reserve("main@0")
    assert [path.name for path in tmp_path.iterdir()] == [stored.folder.name]


def test_adapter_numbers_and_folders_are_never_reused(tmp_path):
    adapters = store(tmp_path)
    stored = [served(adapters, random_adapter(tiny_model(), "same", seed)) for seed in [0]]
    for seed in range(1, 4):
        adapters.withdraw(stored[-1])
        adapters.drop(stored[-1])
        assert not stored[-1].folder.exists()
        with pytest.raises(ValueError, match="'same' not found"):
            adapters.find("same")
        stored.append(served(adapters, random_adapter(tiny_model(), "same", seed)))
    assert [entry.number for entry in stored] == [1, 2, 3, 4]
    assert len({entry.folder for entry in stored}) == 4


def test_adapter_of_another_base_leaves_no_files(tmp_path):
    adapters = store(tmp_path)
    stored = adapters.reserve("wide")
    with pytest.raises(ValueError, match="'wide' does not fit the base"):
        adapters.write(stored, random_adapter(tiny_model(hidden=16), "wide", seed=0))
    adapters.drop(stored)
    assert list(tmp_path.iterdir()) == []
    served(adapters, random_adapter(tiny_model(), "wide", seed=0))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=40), st.integers(1, 4))
def test_adapter_hits_follow_lru_cache(order, capacity):
    adapters = store(Path("unused"), capacity)
    stored = [adapters.reserve(str(number)) for number in range(5)]
    resident: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for entry in stored:
        adapters.serve(entry)
    for number in range(5):
        resident[number] = None
    for number in [None, *order]:
        if number is not None:
            hits += number in resident
            with adapters.used(stored[number]):
                pass
            resident[number] = None
            resident.move_to_end(number)
        while len(resident) > capacity:
            resident.popitem(last=False)
    assert (adapters.requests, adapters.hits) == (len(order), hits)


def test_adapter_in_use_stays_resident():
    adapters = store(Path("unused"), capacity=2)
    first, second, third = [adapters.reserve(name) for name in "abc"]
    for entry in (first, second, third):
        adapters.serve(entry)
    with adapters.used(first):
        for entry in (second, third, second):
            with adapters.used(entry):
                pass
        before = adapters.hits
        with adapters.used(first):
            assert adapters.hits == before + 1


@every_row("rank, expected", (1, 8), (8, 8), (9, 16), (48, 64), (512, 512))
def test_ranks_are_rounded_up_to_vllm_ranks(rank, expected):
    assert padded_rank(rank) == expected


def test_scratch_folder_of_killed_process_is_deleted_by_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (
        "import os, unstable.engines.vllm.versions as s; f = s.ScratchFolder('adapters-'); "
        "(f.path / 'file').touch(); print(f.path, flush=True); input()"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    variables = os.environ | {"TMPDIR": str(tmp_path)}
    owner = subprocess.Popen([sys.executable, "-c", code], env=variables, **pipes)

    folder = Path(owner.stdout.readline().strip())
    first = ScratchFolder("adapters-")
    assert sorted(tmp_path.iterdir()) == sorted([folder, first.path])
    owner.kill()
    owner.communicate()
    second = ScratchFolder("adapters-")
    assert sorted(tmp_path.iterdir()) == sorted([first.path, second.path])
    first.close()
    second.close()
    assert list(tmp_path.iterdir()) == []


START_VLLM = """
from pathlib import Path
from typing import Any
import torch
from unstable.engines.vllm.engine import VLLMEngine, VLLMSettings
settings = VLLMSettings(
    model="none", linears={}, dtype=torch.float32, max_requests=1, max_length=8, max_rank=8,
    max_loras=1, max_cpu_loras=1,
)
VLLMEngine(settings, [], Path("log"))
"""


def test_environment_is_complete_before_vllm_is_imported(tmp_path: Path):
    """The environment is complete at vLLM's import, where a stand-in raises what it finds."""
    (tmp_path / "vllm").mkdir()
    found = "import os; raise ImportError({k: v for k, v in os.environ.items() if 'VLLM' in k})"
    (tmp_path / "vllm/__init__.py").write_text(found)
    own = {name: value for name, value in os.environ.items() if "VLLM" not in name}
    done = subprocess.run(
        [sys.executable, "-c", START_VLLM],
        env=own | {"VLLM_CPU_KVCACHE_SPACE": "3"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "'VLLM_CONFIGURE_LOGGING': '0'" in done.stderr, done.stderr
    assert "'VLLM_LOGGING_LEVEL': 'WARNING'" in done.stderr
    assert "'VLLM_CPU_KVCACHE_SPACE': '3'" in done.stderr  # the user's setting is kept


def test_worker_exits_with_its_engine_owner():
    """Without vLLM: what its workers import, in a process of its own."""
    owner = subprocess.Popen(["sleep", "60"])
    variables = {"UNSTABLE_ENGINE_OWNER": str(owner.pid)}
    code = "import time, unstable.engines.vllm.worker as w; print('on', flush=True); "
    with subprocess.Popen(
        [sys.executable, "-c", code + "time.sleep(60)"],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
    ) as worker:
        assert worker.stdout.readline() == b"on\n"
        time.sleep(0.2)
        assert worker.poll() is None
        owner.kill()
        assert worker.wait(timeout=60) == -signal.SIGKILL
    owner.wait()
    late = [sys.executable, "-c", code + "time.sleep(60)"]
    done = subprocess.run(late, env=os.environ | variables, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, "the worker exited before its owner"
