"""Oracle: pyproject.toml, the packages' own requirements and Docker's rules: the image has all
packages of ours, runs as nobody in particular, and installs nothing but what is locked by hash.

Nothing here can ask Docker; what can be known without it is checked.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from contextlib import suppress
from fnmatch import fnmatch
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import tidemark_native
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from connectors.extras import EXTRAS
from service.runtime.release import VERSION

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
NATIVE = "tidemarkdb-native"


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's lines, continued ones joined."""
    text = (DEPLOY / "Dockerfile").read_text()
    joined = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE))
    lines = [line.strip() for line in joined.splitlines() if line.strip()]
    return [(w, rest.strip()) for w, _, rest in (line.partition(" ") for line in lines)]


def test_the_image_has_all_packages_and_is_nobody_in_particular() -> None:
    found = instructions()
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL"}
    known |= {"HEALTHCHECK", "ENTRYPOINT", "CMD", "ARG"}
    assert {word for word, _ in found} <= known
    copied = [shlex.split(rest) for word, rest in found if word == "COPY"]
    ours = [parts[:-1] for parts in copied if not parts[0].startswith("--")]
    sources = {source for parts in ours for source in parts}
    assert all((ROOT / source).exists() for source in sources)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {name.rstrip("*") for name in packages} <= sources
    assert {f"{m}.py" for m in project["tool"]["setuptools"]["py-modules"]} <= sources
    assert not [source for source in sources if is_ignored(source)]
    for word, rest in found:
        if word in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(rest), list)
        if word == "RUN":
            checked = subprocess.run(["sh", "-n", "-c", rest], capture_output=True, check=False)
            assert checked.returncode == 0, checked.stderr
    users = [rest for word, rest in found if word == "USER"]
    assert users and users[-1] != "root"
    given = dict(rest.split("=", 1) for word, rest in found if word == "ARG")
    bases = {rest.split()[0] for word, rest in found if word == "FROM"}
    stages = {name for name in bases if name in ("service", "executor")}
    assert bases - stages == {"${PYTHON_IMAGE}${PYTHON_DIGEST}"}
    # What is built without a target is the service.
    assert [rest for word, rest in found if word == "FROM"][-1] == "service"
    # An exact version, to which --build-arg adds what it means.
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", given["PYTHON_IMAGE"])
    assert given["PYTHON_DIGEST"] == ""


def is_ignored(source: str) -> bool:
    """Whether what the image copies is kept from its build; the last pattern that fits counts."""
    is_left_out = False
    for line in (DEPLOY / "Dockerfile.dockerignore").read_text().split():
        glob = line.removeprefix("!")
        if fnmatch(source, glob) or source.startswith(f"{glob}/"):
            is_left_out = not line.startswith("!")
    return is_left_out


# --- the lock -------------------------------------------------------------------------------------


def locked(name: str) -> dict[str, tuple[Requirement, list[str]]]:
    """Package -> (its pinned requirement, hashes) of a lock."""
    joined = re.sub(r"\\\n", " ", (DEPLOY / name).read_text())
    found = {}
    for line in joined.splitlines():
        if line.strip() and not line.startswith("#"):
            text, *hashes = re.split(r"\s+--hash=", line.strip())
            requirement = Requirement(text)
            found[canonicalize_name(requirement.name)] = (requirement, hashes)
    return found


def version_of(requirement: Requirement) -> str:
    (pin,) = requirement.specifier
    assert pin.operator == "==", requirement
    return pin.version


def test_the_lock_has_what_the_project_asks_for() -> None:
    """Each package that pyproject.toml names, in a version that it takes, and what they need."""
    lock = locked("requirements.lock")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    of_extras = [text for name in set(EXTRAS.values()) for text in extras[name]]
    wanted = [Requirement(text) for text in (*project["dependencies"], *of_extras)]
    faults, seen = [], set()
    while wanted:
        one = wanted.pop()
        name = canonicalize_name(one.name)
        if name == NATIVE:
            # Ours: the image builds it.
            continue
        if name not in lock:
            faults.append(f"{one} is not locked")
            continue
        version = version_of(lock[name][0])
        if not one.specifier.contains(version, prereleases=True):
            faults.append(f"{one} is locked as {version}")
        with suppress(PackageNotFoundError):
            # What another version of it needs says nothing of this one.
            if name in seen or metadata.version(name) != version:
                continue
            seen.add(name)
            needed = [Requirement(text) for text in metadata.requires(name) or ()]
            chosen = [{"extra": extra} for extra in (one.extras or ("",))]
            wanted += [n for n in needed if not n.marker or any(map(n.marker.evaluate, chosen))]
    assert faults == []
    for name in ("requirements.lock", "build.lock"):
        for requirement, hashes in locked(name).values():
            assert version_of(requirement) and hashes, requirement
            assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), requirement
    for project in ("pyproject.toml", "native/pyproject.toml"):
        for text in tomllib.loads((ROOT / project).read_text())["build-system"]["requires"]:
            one = Requirement(text)
            name = canonicalize_name(one.name)
            pinned, hashes = locked("build.lock")[name]
            assert one.specifier.contains(version_of(pinned))
            assert (pinned, hashes) == lock.get(name, (pinned, hashes))


def test_the_kernels_have_the_version_of_what_calls_them() -> None:
    crate = tomllib.loads((ROOT / "native" / "Cargo.toml").read_text())["package"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert crate["version"] == VERSION == tidemark_native.VERSION
    assert f"{NATIVE}=={VERSION}" in project["dependencies"]


# Of others, in the registry of packages.
OTHERS = re.compile(
    r"tidemark[-_](?:native|client)-(?!target)|tidemark-(?:native|client)\b|\btidemark\[[a-z]"
    r"|pip3? install[^|;&`\n]* [\"']?tidemark(?:$|[^\w/_-]|-\d)"
)


def test_the_distributions_have_names_that_are_ours() -> None:
    """On every page, in every message and file: `tidemark` is a project of somebody else there."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    left_out = {"deploy/setup.sh", "tests/test_image.py"}
    faults = []
    for name in listed.stdout.split():
        path = ROOT / name
        if name in left_out or path.suffix not in (".py", ".md", ".sh", ".toml", ".yml", ".lock"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if OTHERS.search(line):
                faults.append(f"{name}:{number}: {line.strip()[:100]}")
    assert faults == []
    names = [ROOT / part / "pyproject.toml" for part in (".", "native", "deploy/client")]
    found = [tomllib.loads(path.read_text())["project"]["name"] for path in names]
    assert found == ["tidemarkdb", "tidemarkdb-native", "tidemarkdb-client"]


def test_the_image_installs_nothing_but_what_is_locked() -> None:
    """By hashes alone, with nothing fetched to build with."""
    runs = [rest for word, rest in instructions() if word == "RUN"]
    installs = [c for run in runs for c in run.split("&&") if re.search(r"\bpip\b.*\binstall\b", c)]
    assert len(installs) == 3
    for command in installs:
        words = command.split()
        if "--require-hashes" in words:
            lock = words[words.index("-r") + 1]
            assert lock == "build.lock" or "--no-build-isolation" in words, command
        else:
            assert {"--no-deps", "--no-index", "--no-build-isolation"} <= set(words), command
