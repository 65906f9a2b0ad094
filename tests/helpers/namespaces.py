"""Simulated machines: network namespaces, each with its own address and folders.

Each has its own `/tmp` with all of its files: home, copy of the package, working folder. So
machines share no disk, and their files are invisible from outside.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent.parent
PORT = 6379
NOTICED = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
"""Ray's health checks of nodes, as in docs/scaling.md."""


def lacking() -> str | None:
    """Return why namespaces are unavailable, or None."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and iproute2"
    if " " in sys.executable:
        return "`ray start --head` fails from a path with a space, for its client server"
    name = f"unst{os.getpid()}x"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return None if made.returncode == 0 else made.stderr.decode().strip()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Host:
    """Simulated machine; `join` starts Ray on it."""

    def __init__(self, network: "Network", number: int) -> None:
        self.name = f"{network.name}n{number}"
        self.address = f"10.77.0.{number}"
        self.folder = network.folder / self.name
        self.environment = {
            **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
            "HOME": "/tmp/home",
            "PYTHONPATH": "/tmp/copy",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": network.token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_WAIT_POLICY": "PASSIVE",
            "CUDA_VISIBLE_DEVICES": "",
            **NOTICED,
        }
        self._begun: list[psutil.Popen] = []
        for folder in ("home", "work"):
            (self.folder / folder).mkdir(parents=True)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "unstable", self.folder / "copy/unstable", ignore=ignored)
        for file in ("tests/__init__.py", "tests/helpers"):
            place = self.folder / "copy" / file
            place.parent.mkdir(exist_ok=True)
            copy = shutil.copytree if (ROOT / file).is_dir() else shutil.copy
            copy(ROOT / file, place)
        ip("netns", "add", self.name)
        inside, outside = f"{self.name}i", f"{self.name}o"
        ip("link", "add", inside, "netns", self.name, "type", "veth", "peer", "name", outside,
           "netns", network.name)  # fmt: skip
        ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", inside)
        ip("-n", self.name, "link", "set", "lo", "up")
        ip("-n", self.name, "link", "set", inside, "up")
        ip("-n", network.name, "link", "set", outside, "master", "switch")
        ip("-n", network.name, "link", "set", outside, "up")
        self._cable = network.name, outside

    def command(self, *words: str) -> list[str]:
        """The words of a command that runs there, in its working folder."""
        script = f'mount --bind {self.folder} /tmp && cd /tmp/work && exec "$@"'
        return ["ip", "netns", "exec", self.name, "sh", "-c", script, "sh", *words]

    def begin(self, *words: str, log: str, **variables: str) -> psutil.Popen:
        """Begin a command there, whose output goes to a file of its folder."""
        with (self.folder / log).open("ab") as output:
            process = psutil.Popen(
                self.command(*words),
                env=self.environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._begun.append(process)
        return process

    def join(self, head: "Host | None" = None, *options: str) -> psutil.Popen:
        """Have Ray run there: a cluster of its own, or as a node of another host's."""
        at = [f"--address={head.address}:{PORT}"] if head else ["--head", f"--port={PORT}"]
        if head is None:
            at.append("--include-dashboard=false")
        ray = str(Path(sys.executable).parent / "ray")
        common = ["--block", f"--node-ip-address={self.address}", "--num-cpus=4", "--num-gpus=0"]
        common += ["--object-store-memory=100000000", "--disable-usage-stats"]
        return self.begin(ray, "start", *at, *common, *options, log="ray.txt")

    def unplug(self) -> None:
        """Disconnect it from the network; its processes continue."""
        ip("-n", self._cable[0], "link", "set", self._cable[1], "down")

    def kill(self) -> None:
        """End all that was begun there, at once."""
        family: list[psutil.Process] = [each for each in self._begun if each.is_running()]
        for process in list(family):
            with contextlib.suppress(psutil.NoSuchProcess):
                family += process.children(recursive=True)
        family += [each for each in psutil.process_iter() if self.is_mine(each)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        for process in self._begun:
            process.wait()
        self._begun.clear()

    def is_mine(self, process: psutil.Process) -> bool:
        """Return whether a process runs in this host's network."""
        try:
            theirs = os.stat(f"/proc/{process.pid}/ns/net").st_ino
        except OSError:
            return False
        return theirs == os.stat(f"/run/netns/{self.name}").st_ino


class Network:
    """Hosts that reach each other and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.name = f"un{os.getpid() % 100_000}"
        self.folder, self.token = folder, os.urandom(32).hex()
        self._hosts: list[Host] = []
        ip("netns", "add", self.name)
        ip("-n", self.name, "link", "add", "switch", "type", "bridge")
        ip("-n", self.name, "link", "set", "switch", "up")

    def host(self) -> Host:
        """Another machine."""
        self._hosts.append(Host(self, len(self._hosts) + 1))
        return self._hosts[-1]

    def close(self) -> None:
        """End all that runs there, and all of it."""
        for host in self._hosts:
            host.kill()
            ip("netns", "del", host.name)
        ip("netns", "del", self.name)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """Machines that are gone afterwards; their folder has a short path, as sockets need one."""
    folder = Path(tempfile.mkdtemp(prefix="un-", dir="/tmp"))
    made = Network(folder)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)
