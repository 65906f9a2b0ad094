"""`unstable serve`: what it prints, how it ends, and its mistakes in one line each."""

import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.helpers.cli import PATIENCE_S, background, no_developers_lines
from tests.helpers.mistakes import line_of
from tests.helpers.pages import ROOT, blocks
from tests.helpers.serving import HI, Says, make_run, served_config, url_of
from unstable.cli import run
from unstable.config import ConfigError, RunFailedError
from unstable.engines import kinds
from unstable.engines.base import EngineDiedError
from unstable.models.base import load_tokenizer


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with a run of three versions."""
    folder = tmp_path_factory.mktemp("serve")
    make_run(folder / "run", served_config(), [0, 3, 12]).best.symlink_to("000003")
    return folder


def served(place: Path, *words: str, **variables: str) -> "tuple[subprocess.Popen[str], str]":
    process = background(place, ["serve", *words, "--port", "0"])
    return process, url_of(process)


def ended(process: "subprocess.Popen[str]", by: signal.Signals, code: int) -> str:
    process.send_signal(by)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code and no_developers_lines(output), output
    return output


def test_run_versions_are_served_with_token(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "open-sesame-please")
    words = ["run", "--versions", "0,best,12", "--token_env", "MY_TOKEN", "--seed", "5"]
    process, url = served(place, *words)
    assert url.startswith("http://127.0.0.1:")
    with openai.OpenAI(base_url=url, api_key="open-sesame-please", max_retries=0) as client:
        names = [model.id for model in client.models.list()]
        assert names == ["main@0", "main@3", "main@12", "base"]
        for name in names:
            asked: dict[str, Any] = {"model": name, "messages": HI, "max_tokens": 4, "seed": 1}
            reply = client.chat.completions.create(**asked, logprobs=True, top_logprobs=5)
            assert 1 <= len(reply.choices[0].logprobs.content) <= 4
        with pytest.raises(openai.BadRequestError, match="must be <= 5"):
            client.chat.completions.create(**asked, logprobs=True, top_logprobs=6)
    with (
        openai.OpenAI(base_url=url, api_key="open-sesame-pleasf", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()
    output = ended(process, signal.SIGINT, 130)
    assert "served 4 of 5 requests (1 rejected): " in output
    paths = [path for path in (place / "run").rglob("*") if path.suffix in (".log", ".yaml")]
    assert "open-sesame" not in output + "".join(path.read_text() for path in paths)
    assert (place / "run/logs/serve.log").is_file()


@pytest.mark.slow
@pytest.mark.tables("serving", 0)
def test_base_model_is_served_without_run(place: Path) -> None:
    process, url = served(place, "--config", "tiny", "--top_logprobs", "0")
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["base"]
        reply = client.completions.create(model="base", prompt="X", max_tokens=2)
        assert reply.usage.prompt_tokens == 1
    assert "served 1 of 1 requests: 1 prompt tokens" in ended(process, signal.SIGTERM, 143)
    assert not list((place / "outputs").iterdir())


@pytest.mark.fault("the embedded engine fails in a step (non-finite logits)")
def test_dead_engine_ends_command(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, statuses = Says(lambda seed: [5, 6]), list[int]()
    engine.error = EngineDiedError("FloatingPointError: the logits are not finite")

    async def made(config: Any, log: Path) -> Any:
        return engine, load_tokenizer(config.model)

    monkeypatch.setattr(kinds, "make_engine", made)
    monkeypatch.chdir(place)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

    def ask() -> None:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any") as client:
            while not statuses:
                try:
                    client.with_options(max_retries=0).chat.completions.create(
                        model="base", messages=HI, max_tokens=2
                    )
                except openai.APIStatusError as error:
                    statuses.append(error.status_code)
                except openai.APIConnectionError:
                    time.sleep(0.1)

    asking = threading.Thread(target=ask)
    asking.start()
    with pytest.raises(RunFailedError, match=r"engine died \(Floating.* in .*serve.log"):
        run(["serve", "run", "--port", str(port)])
    asking.join()
    assert statuses == [503]
    assert "served 0 of 1 requests (1 failed)" in capsys.readouterr().out


@pytest.mark.tables("serving", 3)
@pytest.mark.slow
def test_documented_requests_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/serve.md").read_text(encoding="utf-8")
    (curl,) = [each for each in blocks("bash", page) if each.startswith("curl")]
    (script,) = blocks("python", page)
    process, url = served(place, "run@12")
    curl, script = (each.replace("http://127.0.0.1:8000/v1", url) for each in (curl, script))
    done = subprocess.run(["bash", "-ec", curl], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    exec(script, {})
    for said in (done.stdout, capsys.readouterr().out):
        assert said and "error" not in said
    assert "served 3 of 3 requests: " in ended(process, signal.SIGINT, 130)


WRONG = [
    (["run", "--host", "0.0.0.0"], r"^--host = '0.0.0.0': open to the network .* --token_env"),
    (["run", "--host", "::"], r"^--host = '::': open to the network"),
    (["run", "--token_env", "NOT_SET"], r"^--token_env = 'NOT_SET': not set; export"),
    (["run", "--token_env", "sk-12345"], r"^--token_env: not the name of an environment variable"),
    (["run", "--token_env", "SPACED"], r"^--token_env = 'SPACED': its value is not one word"),
    (["run", "--versions", "0,x"], r"^--versions = '0,x': invalid version; give a number such as"),
    (["run", "--versions", "7"], r"^version = 7: checkpoint not found in .*; available: 0, 3, 12$"),
    (["run@3", "--versions", "0"], r"^--versions: conflicts with RUN_DIR@VERSION; remove one$"),
    (["run@4"], r"^version = 4: checkpoint not found"),
    (["nowhere"], r"^RUN_DIR = 'nowhere': contains no config.yaml; give a run"),
    (["--versions", "0"], r"^--versions: RUN_DIR is missing; give the run of these versions$"),
    (["run", "--config", "tiny"], r"^--config: conflicts with RUN_DIR and its config"),
    (["run", "--threads", "0"], r"^--threads = '0': input should be greater than or equal to 1$"),
    (["run", "--top_logprobs", "21"], r"^tracking.top_logprobs = 21: input should be less"),
    (["run", "--port", "70000"], r"^--port = 70000: cannot listen on 127.0.0.1"),
    (["run", "--foo", "1"], r"^unknown key 'foo'"),
]


def test_wrong_options_give_one_line_errors(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("SPACED", "two words")
    monkeypatch.delenv("NOT_SET", raising=False)
    rows = []
    for words, line in WRONG:
        rows.append((line, line_of(run, ["serve", *words])))
    assert [row for row in rows if not re.search(*row)] == []


def test_taken_port_is_rejected(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^--port = {port}: .* choose another port$"):
            run(["serve", "run", "--port", str(port)])
