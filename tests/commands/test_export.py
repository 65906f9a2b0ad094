"""`unstable export`: what it writes loads elsewhere and plays as the run's own engine does."""

import io
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import constants
from peft import PeftModel
from safetensors.torch import load, load_file, save
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.helpers.cli import in_process, unstable
from tests.helpers.exports import VERSION, card_code, greedy_text, make_run, prompts_of
from tests.helpers.mistakes import refused
from tests.helpers.models import random_adapter
from unstable.cli import run
from unstable.commands.export import export
from unstable.config import ConfigError, ModelConfig, RunConfig, parse
from unstable.models.base import load_model
from unstable.models.merge import add_adapter
from unstable.records.folder import RunFolder
from unstable.types import Adapter

SECRET = "sk-a-key-that-nobody-may-see"


@pytest.fixture(scope="module")
def config(tiny_folder: Path) -> RunConfig:
    model = {"name": str(tiny_folder), "dtype": "float32", "init": "fresh"}
    remote = {"kind": "openai", "model": "m", "base_url": "http://a.private.host/v1"}
    asked = {"model": "m", "base_url": "http://b.private.host/v1", "api_key_env": "SOME_KEY"}
    return parse(
        {
            "model": model | {"adapter": {"rank": 4, "alpha": 8}},
            "games": [{"env": "TicTacToe-v0", "prompt": "answer"}],
            "opponents": {"fixed": [remote | {"api_key_env": "SOME_KEY"}]},
            "judges": {"style": {"kind": "llm", "args": asked}},
            "cluster": {"address": "c.private.host:6379"},
            "sampling": {"max_tokens": 6},
            "actors": {"games_in_flight": 2},
            "tracking": {"dashboard": "off"},
        }
    )


@pytest.fixture(scope="module")
def adapter(config: RunConfig) -> Adapter:
    return random_adapter(load_model(config.model), f"main@{VERSION}", seed=3)


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory, config: RunConfig, adapter: Adapter
) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("runs") / "run", config, adapter)


@pytest.fixture(scope="module")
def exported(folder: RunFolder) -> Path:
    return export(folder.root, None)


@pytest.fixture(scope="module")
def merged(folder: RunFolder) -> Path:
    return export(folder.root, VERSION, merged=True)


def printed(code: str) -> str:
    output = io.StringIO()
    with redirect_stdout(output):
        exec(code, {})
    return output.getvalue().removesuffix("\n")


def test_exported_adapter_has_all_files_to_use_it(exported: Path) -> None:
    assert exported.name == "000002-adapter"
    assert {path.name for path in exported.iterdir()} == {
        *("adapter_config.json", "adapter_model.safetensors", "README.md", "scores.png"),
        *("prompts.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    }
    assert (exported / "scores.png").read_bytes().startswith(b"\x89PNG")


def test_peft_code_of_the_card_runs(exported: Path, config: RunConfig, adapter: Adapter) -> None:
    text = greedy_text(config, adapter, exported)
    assert text and printed(card_code(exported, 0, config.model.name)) == text


def test_merged_code_of_the_card_runs(merged: Path, config: RunConfig, adapter: Adapter) -> None:
    assert "base = " not in card_code(merged, 0, "")
    assert printed(card_code(merged, 0, "")) == greedy_text(config, adapter, merged)


@torch.no_grad()
def test_merged_and_adapter_logits_agree(exported: Path, merged: Path, config: RunConfig) -> None:
    """Within 1e-4, of logits up to some tens; without the adapter they are more than 0.1 off."""
    ids = torch.arange(4, 120)[None]
    base = AutoModelForCausalLM.from_pretrained(config.model.name, dtype=torch.float32)
    alone = base(ids).logits
    both = PeftModel.from_pretrained(base, str(exported))(ids).logits
    one = AutoModelForCausalLM.from_pretrained(merged, dtype="auto")
    assert one.dtype == torch.float32
    torch.testing.assert_close(one(ids).logits, both, atol=1e-4, rtol=0)
    assert (both - alone).abs().max() > 0.1
    assert one.generation_config.eos_token_id == [0]
    assert not one.generation_config._from_model_config


def test_merged_weights_are_rounded_once(config: RunConfig, adapter: Adapter) -> None:
    low = config.model.model_copy(update={"dtype": "bfloat16"})
    base, model = load_model(low), load_model(low)
    add_adapter(model, adapter)
    name = "model.layers.0.mlp.down_proj"
    tensors = load(adapter.weights)
    a, b = (tensors[f"base_model.model.{name}.lora_{kind}.weight"] for kind in "AB")
    wanted = (base.get_parameter(f"{name}.weight").float() + 2 * b @ a).to(torch.bfloat16)
    assert torch.equal(model.get_parameter(f"{name}.weight"), wanted)


def test_adapter_on_tied_embedding_cannot_be_merged(config: RunConfig, adapter: Adapter) -> None:
    model = load_model(config.model)
    model.lm_head.weight = model.get_input_embeddings().weight
    layer = "base_model.model.lm_head.lora_{}.weight"
    tensors = {layer.format("A"): torch.ones(4, 32), layer.format("B"): torch.ones(132, 4)}
    odd = Adapter(name="odd", weights=save(tensors), config=adapter.config)
    refused("--merged: lm_head is tied to the embedding", add_adapter, model, odd)


def test_export_omits_learner_state(exported: Path, merged: Path, folder: RunFolder) -> None:
    own = folder.checkpoint(VERSION) / "adapter_model.safetensors"
    assert (exported / "adapter_model.safetensors").read_bytes() == own.read_bytes()
    assert not any("critic" in name for name in load_file(merged / "model.safetensors"))
    assert {path.name for path in merged.iterdir()} >= {
        *("model.safetensors", "config.json", "generation_config.json", "tokenizer.json")
    }
    assert len({path.stat().st_mode for path in merged.iterdir()}) == 1


def test_example_equals_the_prompt_of_the_model(exported: Path) -> None:
    [prompt] = prompts_of(exported).values()
    tokenizer = AutoTokenizer.from_pretrained(exported)
    chat = tokenizer.apply_chat_template(
        prompt["messages"], add_generation_prompt=True, tokenize=False, **prompt["chat_template"]
    )
    assert chat == prompt["prompt"] and "TicTacToe" in chat.replace(" ", "").replace("-", "")
    assert (prompt["style"], prompt["parser"], prompt["max_tokens"]) == ("answer", "plain", 6)


def test_card_describes_the_export(exported: Path, merged: Path, tiny_folder: Path) -> None:
    card = (exported / "README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert (front["base_model"], front["library_name"]) == (tiny_folder.name, "peft")
    row = "0.60 (0.40 to 0.80) | – | 6 / 4 / 6 | 2 | 16 | 90 % |"
    assert row in card and "![Scores over the versions of the run](scores.png)" in card
    assert "| `model.adapter.rank` | 4 | 16 |" in card
    assert re.search(r"^unstable-selfplay \d.*torch \d", card, re.MULTILINE)
    assert re.search(r"SHA-256 of its tensors: `[0-9a-f]{64}`", card)
    named = json.loads((exported / "adapter_config.json").read_text())
    assert named["base_model_name_or_path"] == tiny_folder.name
    again = yaml.safe_load((merged / "README.md").read_text().split("---")[1])
    assert again["library_name"] == "transformers"


def test_export_contains_no_local_paths_or_keys(
    folder: RunFolder, tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    path = folder.games("eval", VERSION)
    before = path.read_bytes()
    path.write_bytes(before.replace(b"only your action", SECRET.encode()))
    try:
        outs = [export(folder.root, None, tmp_path / kind, merged=kind == "m") for kind in "am"]
    finally:
        path.write_bytes(before)
    places = (str(path) for path in (tiny_folder, folder.root, tmp_path))
    words = [SECRET, *places, "private.host", "SOME_KEY"]
    for out in outs:
        for file in (path for path in out.iterdir() if path.suffix not in (".png",)):
            content = file.read_bytes()
            for word in words:
                assert word.encode() not in content, (file.name, word)
        assert "<OPENAI_API_KEY>" in (out / "prompts.json").read_text()


# Mistakes


def test_full_folder_is_rejected_empty_one_accepted(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert export(folder.root, None, tmp_path / "empty") == tmp_path / "empty"
    with pytest.raises(ConfigError, match=r"--out = '.*empty' already exists; give a new or"):
        export(folder.root, None, tmp_path / "empty")
    (tmp_path / "file").touch()
    refused("already exists", export, folder.root, None, tmp_path / "file")
    with pytest.raises(ConfigError, match=r"--out = .*under': cannot be written \("):
        export(folder.root, None, tmp_path / "file/under")
    refused("version = 7: checkpoint not found", export, folder.root, 7, tmp_path / "none")
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "file"}


def test_sft_run_is_rejected(tmp_path: Path, config: RunConfig, adapter: Adapter) -> None:
    folder = make_run(tmp_path / "run", config, adapter)
    folder.examples.touch()
    refused(r"RUN_DIR = .*: an sft run, without games", export, folder.root, None)


def test_damaged_adapter_is_rejected(tmp_path: Path, config: RunConfig, adapter: Adapter) -> None:
    tensors = load(adapter.weights)
    next(iter(tensors.values()))[0, 0] = torch.nan
    spoilt = Adapter(name=adapter.name, weights=save(tensors), config=adapter.config)
    folder = make_run(tmp_path / "run", config, adapter)
    path = folder.checkpoint(VERSION) / "adapter_model.safetensors"
    path.write_bytes(spoilt.weights)
    refused(r"000002: its .* is not finite", export, folder.root, None)
    assert not (folder.root / "exports").exists()


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["run", "--steps", "3"], "No such option: --steps (Possible options: --help, --push)"),
        (["run@x"], "RUN_DIR[@VERSION] = 'run@x': invalid version; give a number"),
        (["nowhere"], "contains no config.yaml"),
    ],
)
def test_invalid_command_line_is_one_line(arguments: list[str], line: str) -> None:
    refused(re.escape(line), run, ["export", *arguments])


# A hub


class Hub(BaseHTTPRequestHandler):
    """Hub that answers only the requests of one commit."""

    refuses = False
    asked: list[tuple[str, bytes]]

    def do_GET(self) -> None:
        self._answer({}, 403 if self.refuses and "/api/" in self.path else 200)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.asked.append((self.path, body))
        if self.path.endswith("/preupload/main"):
            files = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": f, "uploadMode": "regular", "shouldIgnore": False} for f in files]
            self._answer({"files": modes})
        else:
            url = f"http://{self.headers['Host']}/me/player"
            commit = {"commitUrl": f"{url}/commit/1", "commitOid": "1", "commitMessage": ""}
            self._answer({"url": url, **commit}, 403 if self.refuses else 200)

    def _answer(self, content: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[tuple[str, type[Hub]]]:
    kind = type("OneHub", (Hub,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", kind
    server.shutdown()
    thread.join()


@pytest.fixture
def hub_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Return a function that sets what the hub's client reads from its environment at import."""

    def chosen(endpoint: str = "https://huggingface.co", offline: bool = False) -> None:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)

    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    return chosen


def pushed(folder: RunFolder, out: Path, repository: str = "me/player") -> list[str]:
    return ["export", str(folder.root), "--out", str(out), "--push", repository]


@pytest.mark.usefixtures("hub_client")
def test_push_makes_one_commit_of_the_folder(
    folder: RunFolder, tmp_path: Path, hub: tuple[str, type[Hub]]
) -> None:
    """In a process of its own, whose hub is chosen as it starts."""
    address, kind = hub
    home = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
    words = pushed(folder, tmp_path / "out")
    done = unstable(tmp_path, *words, HF_ENDPOINT=address, HF_TOKEN="hf_any", **home)
    assert done.returncode == 0, done.stderr
    assert "Loading weights" not in done.stderr
    assert f"pushed: {address}/me/player/commit/1" in done.stdout
    made = json.loads(kind.asked[0][1])
    assert made["name"] == "player"
    assert made.get("visibility") == "private" or made["private"]  # depends on the client's release
    [commit] = [body for path, body in kind.asked if "/commit/" in path]
    lines = [json.loads(line) for line in commit.splitlines()]
    sent = {line["value"]["path"] for line in lines if line["key"] == "file"}
    assert sent == {path.name for path in (tmp_path / "out").iterdir()}


def test_nothing_is_written_if_push_is_impossible(
    folder: RunFolder, tmp_path: Path, hub_client: Callable[..., None]
) -> None:
    no_name = "invalid repository name; give OWNER/NAME"
    unreached = "the hub is unreachable ([Errno 111] Connection refused)"
    rows: list[tuple[str, dict[str, Any], str, str]] = [
        ("player", {}, "", f"--push = 'player': {no_name}"),
        ("a b/c", {}, "", f"--push = 'a b/c': {no_name}"),
        ("me/player", {}, "", "--push = 'me/player': no login; set HF_TOKEN"),
        ("me/player", {"offline": True}, "", "HF_HUB_OFFLINE is set; unset it"),
        ("me/player", {"endpoint": "http://127.0.0.1:9"}, "hf_any", unreached),
    ]
    failed = []
    for repository, chosen, token, line in rows:
        hub_client(**chosen)
        done = in_process(tmp_path, *pushed(folder, tmp_path / "out", repository), HF_TOKEN=token)
        if done.returncode != 2 or line not in done.stderr or done.stderr.count("\n") != 1:
            failed.append((line, done))
    assert failed == [] and not (tmp_path / "out").exists()


def test_rejected_push_is_one_line_and_keeps_the_folder(
    folder: RunFolder, tmp_path: Path, hub: tuple[str, type[Hub]], hub_client: Callable[..., None]
) -> None:
    address, kind = hub
    kind.refuses = True
    hub_client(address)
    done = in_process(tmp_path, *pushed(folder, tmp_path / "out"), HF_TOKEN="hf_any")
    assert done.returncode == 1, done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "--push = 'me/player'" in line and "403" in line
    assert "Traceback" not in done.stderr and (tmp_path / "out/README.md").is_file()


def test_base_has_its_public_name(tiny_folder: Path) -> None:
    from unstable.models.merge import public_name

    assert public_name(ModelConfig(name=str(tiny_folder))) == tiny_folder.name
    assert public_name(ModelConfig(name="tiny")) == "tiny"
    assert public_name(ModelConfig(name="Qwen/Qwen3-0.6B")) == "Qwen/Qwen3-0.6B"


def test_card_tells_where_the_base_is(exported: Path, tmp_path: Path, config: RunConfig) -> None:
    assert 'base = "tiny"  # folder of the base model\n' in (exported / "README.md").read_text()
    own = parse({"model": {"name": "tiny", "init": "fresh", "dtype": "float32"}})
    shipped = config.model_copy(update={"model": own.model})
    adapter = random_adapter(load_model(own.model), f"main@{VERSION}", seed=1)
    out = export(make_run(tmp_path / "run", shipped, adapter).root, None)
    hint = "# the folder that `unstable model tiny` prints"
    assert f'base = "tiny"  {hint}\n' in (out / "README.md").read_text()
