"""What is released: the wheel, the source distribution, the versions that they say."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
VERSION = version("nnx-parity")
DATA = {".py", ".typed", ".json", ".html", ".css", ".js", ".jinja"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return {path.suffix: path for path in folder.iterdir()}


def test_the_wheel_has_all_of_both_packages_and_nothing_else(built):
    names = set(zipfile.ZipFile(built[".whl"]).namelist())
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in ("jaxvae", "parity")
        for path in (ROOT / package).rglob("*")
        if path.suffix in DATA or path.name == "LICENSE"
    }
    assert {name for name in names if ".dist-info/" not in name} == wanted
    assert f"nnx_parity-{VERSION}.dist-info/licenses/LICENSE" in names


def test_the_source_distribution_has_what_a_clone_has(built):
    with tarfile.open(built[".gz"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    missing = {name for name in listed.stdout.splitlines() if name not in names}
    assert missing == set()


def test_one_version_everywhere():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == VERSION
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest[1] == VERSION


def test_the_workflow_calls_what_there_is():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    runs = [step["run"] for job in workflow["jobs"].values() for step in job["steps"]
            if "run" in step]  # fmt: skip
    called = {run.split()[1] for run in runs if run.startswith("make ")}
    assert called
    assert called <= targets


@pytest.mark.slow
def test_the_wheel_by_itself(built, tmp_path):
    """Dependencies are those of this environment, the two packages the wheel's."""
    home = tmp_path / "installed"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*command, str(home), str(built[".whl"])], check=True)
    environment = {**os.environ, "PYTHONPATH": str(home)}

    def run(*words):
        return subprocess.run(
            [sys.executable, "-P", *words], cwd=tmp_path, env=environment, check=False,
            capture_output=True, text=True,
        )  # fmt: skip

    where = run("-c", "import parity, jaxvae; print(parity.__file__, jaxvae.__file__)")
    assert all(place.startswith(str(home)) for place in where.stdout.split())
    assert run("-m", "parity", "--version").stdout == f"parity, version {VERSION}\n"
    done = run("-m", "parity", "run", "cogvideox", "--config", "small", "--quiet")
    assert (done.returncode, done.stdout) == (0, "cogvideox: PASS\n"), done.stderr
    assert (tmp_path / "reports/cogvideox/report.html").stat().st_size > 100_000
