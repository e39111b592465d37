"""What a person gets from a checkout, an editable install and a wheel: the same package.

No network: the new environments see the running environment's libraries through a .pth file, and
packages are built with its setuptools.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from hostgap.cli import COMMANDS, cli

REPO = Path(__file__).resolve().parents[1]
LINKED = ["rules", "reports", "sample_traces"]
HEAVY = ["msgspec", "numpy", "pandas", "rich", "torch"]
SOURCE = [
    "CHANGELOG.md",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "pyproject.toml",
    "hostgap",
    *LINKED,
]


def run(command: list[str | Path], cwd: Path) -> str:
    """Run a command outside the influence of this process's environment; return its stdout."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_REQUIRE"))}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command} failed\n{done.stdout}\n{done.stderr}"
    return done.stdout


def copy_checkout(into: Path) -> Path:
    """Copy what is built, symlinks as symlinks: building writes into the folder it builds."""
    copy = into / "checkout"
    copy.mkdir()
    for name in SOURCE:
        if (REPO / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPO / name, copy / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy2(REPO / name, copy / name)
    return copy


def make_env(into: Path) -> Path:
    """Make a virtual environment that sees this one's libraries but not its hostgap."""
    # The copy in `into` wins: a .pth adds its folder at the end of sys.path, and does not have that
    # folder's own .pth files (such as an editable hostgap's) read.
    venv.create(into, symlinks=os.name != "nt", with_pip=False)
    scheme = sysconfig.get_path("purelib", vars={"base": str(into), "platbase": str(into)})
    Path(scheme, "outer.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return into


def bin_of(env: Path, name: str) -> Path:
    folder = sysconfig.get_path("scripts", vars={"base": str(env), "platbase": str(env)})
    return Path(folder, name)


def install(env: Path, *what: str | Path) -> None:
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--ignore-installed"]
    python = bin_of(env, "python")
    run([python, "-m", "pip", "install", *options, *what], cwd=env)


def build(kind: str, source: Path, into: Path) -> Path:
    """Build a "wheel" or an "sdist" of `source` with setuptools; return the file."""
    into.mkdir(parents=True, exist_ok=True)
    script = f"import sys; from setuptools import build_meta as b; b.build_{kind}(sys.argv[1])"
    run([sys.executable, "-c", script, into], cwd=source)
    (built,) = into.iterdir()
    return built


def package_files(root: Path) -> set[str]:
    """Every file of the package as it stands in a checkout, symlinked folders included."""
    # os.walk, because Path.walk and glob(recurse_symlinks=) are newer than our oldest Python.
    return {
        Path(folder, name).relative_to(root).as_posix()
        for folder, _, names in os.walk(root / "hostgap", followlinks=True)
        for name in names
        if not name.endswith(".pyc")
    }


def contents(wheel: Path) -> dict[str, bytes]:
    """The package's files in a wheel, without the wheel's own metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {n: archive.read(n) for n in archive.namelist() if n.startswith("hostgap/")}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_checkout(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", checkout, tmp_path_factory.mktemp("wheel"))


def check_installed(env: Path, origin: Path) -> None:
    """Hold that `env` imports hostgap and its linked packages from `origin`, and runs it."""
    names = ["hostgap", *(f"hostgap.{name}" for name in LINKED)]
    script = f"import {', '.join(names)}; print(hostgap.__file__)"
    file = run([bin_of(env, "python"), "-c", script], cwd=env).strip()
    assert Path(file).is_relative_to(origin)
    assert "analyze" in run([bin_of(env, "hostgap"), "--help"], cwd=env)


def test_editable_install(tmp_path: Path) -> None:
    source = copy_checkout(tmp_path)
    env = make_env(tmp_path / "env")
    install(env, "--editable", source)
    check_installed(env, origin=source)


def test_wheel_install(wheel: Path, tmp_path: Path) -> None:
    env = make_env(tmp_path / "env")
    install(env, wheel)
    check_installed(env, origin=env)
    script = (
        "from importlib.resources import files\n"
        "names = {f.name for f in files('hostgap.sample_traces').iterdir()}\n"
        "print(sorted(n for n in names if n.endswith('.json.gz')))"
    )
    traces = sorted(p.name for p in (REPO / "sample_traces").glob("*.json.gz"))
    assert run([bin_of(env, "python"), "-c", script], cwd=env).strip() == str(traces)


def test_wheel_holds_every_file_of_the_package_as_a_regular_file(
    wheel: Path, checkout: Path
) -> None:
    assert set(contents(wheel)) == package_files(checkout)
    with zipfile.ZipFile(wheel) as archive:
        modes = {i.filename: i.external_attr >> 16 for i in archive.infolist()}
    assert [n for n, mode in modes.items() if not stat.S_ISREG(mode)] == []
    assert {f"hostgap/{name}/__init__.py" for name in LINKED} <= set(modes)
    assert "hostgap/py.typed" in modes


def test_wheel_from_the_sdist_is_the_wheel_from_the_checkout(
    wheel: Path, checkout: Path, tmp_path: Path
) -> None:
    sdist = build("sdist", checkout, tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        assert [m.name for m in archive if not (m.isfile() or m.isdir())] == []
    shutil.unpack_archive(sdist, tmp_path, filter="data")
    (unpacked,) = [p for p in tmp_path.iterdir() if p.name.startswith("hostgap-")]
    assert contents(build("wheel", unpacked, tmp_path / "wheel")) == contents(wheel)


def test_a_checkout_works_uninstalled(checkout: Path, tmp_path: Path) -> None:
    python = bin_of(make_env(tmp_path / "env"), "python")
    assert "analyze" in run([python, "-m", "hostgap", "--help"], cwd=checkout)
    script = "import hostgap.rules, hostgap.reports, hostgap.sample_traces as s; print(s.__file__)"
    assert Path(run([python, "-c", script], cwd=checkout).strip()).is_relative_to(checkout)


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from hostgap.cli import run\n"
        "assert run(['--help']) == 0\n"
        f"print('loaded:', [m for m in {HEAVY} if m in sys.modules])"
    )
    assert run([sys.executable, "-c", script], cwd=REPO).splitlines()[-1] == "loaded: []"


@pytest.mark.parametrize("name", COMMANDS)
def test_command_list_says_what_the_command_says(name: str) -> None:
    with cli.make_context("hostgap", [name], resilient_parsing=True) as context:
        command = cli.get_command(context, name)
    assert command is not None
    assert command.help, f"{name} has no help"
    assert command.get_short_help_str(limit=200) == COMMANDS[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_command_is_in_the_readme(name: str) -> None:
    assert f"`hostgap {name}" in (REPO / "README.md").read_text(encoding="utf-8")


def test_every_command_file_is_in_the_command_list() -> None:
    files = (REPO / "hostgap" / "cli").glob("*.py")
    commands = {p.stem for p in files if "@click.command(" in p.read_text(encoding="utf-8")}
    assert commands == set(COMMANDS)
