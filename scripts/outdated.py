"""Output of `outdated.sh`: pinned packages and the newest ones, by pip's own resolver."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PINS = ("constraints.txt", "scripts/constraints_gpu.txt")


def pinned() -> dict[str, str]:
    """Return pinned versions by canonical name."""
    lines = [line for name in PINS for line in (ROOT / name).read_text().splitlines()]
    pairs = (line.split("==") for line in lines if "==" in line)
    return {canonicalize_name(name): version for name, version in pairs}


def required(extras: Iterable[str]) -> list[Requirement]:
    """Return the requirements of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    texts = [*project["dependencies"], *(text for extra in extras for text in optional[extra])]
    return [Requirement(text) for text in texts]


def newest(wanted: Iterable[str]) -> dict[str, str]:
    """Return the versions that pip would install today; downloads only metadata."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
    command += ["--quiet", "--report", "-", *wanted]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = [each["metadata"] for each in json.loads(done.stdout)["install"]]
    return {canonicalize_name(each["name"]): each["version"] for each in found}


def lines(
    pins: Mapping[str, str], found: Mapping[str, str], direct: Iterable[Requirement]
) -> Iterator[str]:
    """Yield one line for each outdated pin and each package without a pin."""
    bounds = {canonicalize_name(each.name): each.specifier for each in direct}
    for name, version in sorted(found.items()):
        if name not in pins:
            yield f"{name} {version} is not pinned"
        elif Version(pins[name]) < Version(version):
            beyond = name in bounds and not bounds[name].contains(version)
            why = f", beyond {bounds[name]} of pyproject.toml" if beyond else ""
            yield f"{name} {pins[name]} is pinned, {version} is the newest{why}"


def main(flavour: str = "") -> None:
    """Print the lines; only with `flavour` the bounds of pyproject.toml apply."""
    direct = required(["gpu"] if flavour == "gpu" else ["dev"])
    wanted = [str(each) for each in direct]
    if flavour != "gpu":
        wanted = [each.name for each in direct if each.marker is None or each.marker.evaluate()]
    said = list(lines(pinned(), newest(wanted), direct))
    print("\n".join(said) or "all pins are up to date")


if __name__ == "__main__":
    main(*sys.argv[1:])
