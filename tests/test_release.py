"""What is released: the wheel, the source distribution, the versions that they say."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from jaxvae.io.messages import PACKAGES
from tests import commands
from tests.commands import refused, run
from tests.docs.documents import blocks
from tests.hidden import beyond, without

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


def test_configurations_can_be_read():
    files = [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"]
    assert all(yaml.safe_load(path.read_text()) for path in files)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stated = {
        x.rpartition(" ")[2] for x in project["classifiers"] if x.count("::") == 2 and "3." in x
    }
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert set(workflow["jobs"]["test"]["strategy"]["matrix"]["python"]) == stated


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """A folder with the two packages of the wheel; dependencies are those of this environment."""
    home = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*command, str(home), str(built[".whl"])], check=True)
    return home


def test_the_harness_needs_its_dependencies_and_the_frameworks(installed, tmp_path):
    """It names the fault of the README, writes all files, and says what the rest needs."""
    alone = without(*beyond("nnx-parity", "torch", "jax", "flax"), path=str(installed))
    parity = partial(run, sys.executable, "-P", "-m", "parity", cwd=tmp_path, **alone)
    model = next(block.text for block in blocks("README.md") if block.about[0] == "file")
    (tmp_path / "mlp.py").write_text(model)
    done = parity("compare", "mlp:make_pair", "--quiet", "--repro", "repro")
    assert done.returncode == 1, done.stderr
    assert "why      tanh GELU" in done.stdout
    folder = tmp_path / "reports" / "mlp.make_pair"
    assert {"layers.csv", "weights.csv", "report.html"} <= {x.name for x in folder.iterdir()}
    assert parity("show", folder).returncode == parity("diff", folder, folder).returncode == 0
    code = f"import parity; parity.Report.from_json({str(folder)!r}).table"
    shown = run(sys.executable, "-P", "-c", code, cwd=tmp_path, **alone).stderr.splitlines()[-1]
    assert shown.endswith(
        "InputError: pandas is not installed, and is needed here: pip install pandas"
    )


def test_reports_are_read_without_any_framework(installed, tmp_path):
    alone = without(*beyond("nnx-parity"), path=str(installed))
    parity = partial(run, sys.executable, "-P", "-m", "parity", cwd=tmp_path, **alone)
    kept = ROOT / "reports" / "baseline"
    for words in (["show", kept], ["diff", kept, kept], ["history", "h", "--add", kept]):
        done = parity(*words)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_wheel_in_a_new_environment_without_pins(version, built, tmp_path):
    """Each Python that is supported and is here reads reports with the newest dependencies."""
    python = shutil.which(f"python{version}")
    if python is None or run(python, "--version").returncode:
        pytest.skip(f"Python {version} is not on this machine")
    subprocess.run([python, "-m", "venv", tmp_path / "new"], check=True)
    within = tmp_path / "new" / "bin"
    install = [within / "python", "-m", "pip", "install", "--quiet", built[".whl"]]
    subprocess.run(install, check=True, capture_output=True)
    kept = ROOT / "reports" / "baseline"
    for words in (["--version"], ["show", kept], ["diff", kept, kept]):
        done = run(within / "parity", *words, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    refused(
        run(within / "parity", "compare", "json:loads", cwd=tmp_path),
        "parity: torch is not installed, and is needed here: pip install torch",
    )


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_a_framework_that_is_missing_is_one_line(name, tmp_path):
    (tmp_path / "mlp.py").write_text("def make_pair(): ...")
    done = commands.parity("compare", "mlp:make_pair", cwd=tmp_path, **without(name))
    refused(done, f"parity: {name} is not installed, and is needed here: pip install {name}")
    code = "import parity; parity.compare"
    shown = run(sys.executable, "-c", code, **without(name)).stderr.splitlines()[-1]
    assert shown.endswith(
        f"parity.compare: {name} is not installed, and is needed here: pip install {name}"
    )


def test_a_framework_of_another_version_is_one_line(tmp_path):
    (tmp_path / "mlp.py").write_text("def make_pair(): ...")
    (tmp_path / "flax.py").write_text("")
    parity = partial(commands.parity, "compare", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    refused(parity("mlp:make_pair"), "parity: the version of flax here is too old or too new",
            "cannot import name 'nnx'", "pip install 'nnx-parity[jax]'")  # fmt: skip
    (tmp_path / "mlp.py").write_text("from flax import nnx")
    assert 'mlp.py", line 1' in parity("mlp:make_pair").stderr  # its author needs to see where


@pytest.mark.parametrize(("name", "code"), [
    ("jax", "from jaxvae import AutoencoderKL"),
    ("filelock", "import jaxvae; jaxvae.from_pretrained"),
    ("huggingface_hub", "import jaxvae; jaxvae.from_pretrained('owner/name')"),
    ("av", "import pathlib, jaxvae.io.video as v; v.find_video(pathlib.Path('a.mp4'))"),
])  # fmt: skip
def test_what_the_autoencoders_lack_is_one_line(name, code, tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"")
    done = run(sys.executable, "-c", code, cwd=tmp_path, **without(name))
    extra = "video" if name == "av" else "vae"
    assert done.stderr.splitlines()[-1].endswith(f"pip install 'nnx-parity[{extra}]'"), done.stderr


def test_a_system_without_a_module_for_resources():
    code = "import sys; sys.platform = 'win32'; import parity.host.memory as m; m.give_back()"
    assert run(sys.executable, "-c", code, **without("resource")).stderr == ""


def test_extras_that_messages_name():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    source = "".join(path.read_text() for path in (ROOT / "jaxvae").rglob("*.py"))
    named = set(re.findall(r"nnx-parity\[(\w+)\]", source)) | set(PACKAGES.values())
    assert named == {"vae", "video"} <= set(extras)
    table = (ROOT / "docs" / "index.md").read_text()
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.M))))
    assert named == set(extras) - {"dev", "docs", "test", "zoo"}


@pytest.mark.slow
def test_the_wheel_by_itself(installed, tmp_path):
    parity = partial(run, sys.executable, "-P", cwd=tmp_path, PYTHONPATH=str(installed))
    where = parity("-c", "import parity, jaxvae; print(parity.__file__, jaxvae.__file__)")
    assert all(place.startswith(str(installed)) for place in where.stdout.split())
    assert parity("-m", "parity", "--version").stdout == f"parity, version {VERSION}\n"
    done = parity("-m", "parity", "run", "cogvideox", "--config", "small", "--quiet")
    assert (done.returncode, done.stdout) == (0, "cogvideox: PASS\n"), done.stderr
    assert (tmp_path / "reports/cogvideox/report.html").stat().st_size > 100_000
