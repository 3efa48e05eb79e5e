"""The command, through its entry point: exit codes, and one clear line for bad input."""

import io
import json
import shutil
import subprocess
import time
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from jaxvae.cli import cli as jaxvae_commands
from parity.cli import cli as parity_commands
from parity.cli.output import Output
from parity.core.verdicts import Coverage
from parity.report import Report
from tests.commands import parity, refused


def test_help_is_quick_and_names_the_options():
    times = []
    for _ in range(3):
        start = time.perf_counter()
        done = parity("run", "--help")
        times.append(time.perf_counter() - start)
    assert done.returncode == 0
    assert parity("run", "-h").stdout == done.stdout
    options = ("--seed", "--only", "--depth", "--emulate", "--eager", "--repro", "--profile",
               "--out")  # fmt: skip
    for option in options:
        assert option in done.stdout
    assert min(times) < 1.5  # 0.2 s on an idle machine


@pytest.mark.parametrize("group", [parity_commands, jaxvae_commands], ids=["parity", "jaxvae"])
def test_every_command_has_a_whole_sentence_in_the_list_and_an_example(group):
    listed = CliRunner().invoke(group, ["--help"], terminal_width=80).output
    assert "..." not in listed.partition("Commands:")[2]
    for name, command in group.commands.items():
        assert f"  {name} " in listed
        _, example = command.help.split("\b\n")
        assert example.lstrip().startswith("Example")
        assert f" {name} " in example


def test_the_page_is_opened_on_request(tmp_path, monkeypatch):
    page = tmp_path / "report.html"
    report = Report("pair", (), (), Coverage(0, (), {}, (), {}, 0, 0), {}, {})
    for there, said in ((True, ""), (False, f"parity: no browser was found; open {page} in one\n")):
        opened = []
        monkeypatch.setattr("webbrowser.open", lambda url, to=opened, x=there: to.append(url) or x)
        with pytest.raises(SystemExit), redirect_stderr(io.StringIO()) as errors:
            Output(quiet=False, as_json=False, out=None, opened=True).end(report, tmp_path)
        assert errors.getvalue() == said
        assert opened == [page.resolve().as_uri()]


def test_the_shell_completes_commands_options_and_pairs():
    for words, found in (("parity ru", "run"), ("parity run cogv", "cogvideox"),
                         ("parity run cogvideox --fr", "--frames"),
                         ("parity compare --dev", "--device")):  # fmt: skip
        asked = {"_PARITY_COMPLETE": "bash_complete", "COMP_WORDS": words,
                 "COMP_CWORD": str(words.count(" "))}  # fmt: skip
        done = parity(**asked)
        assert f"plain,{found}" in done.stdout.splitlines()


def test_version():
    assert parity("--version").stdout.startswith("parity, version 0.")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["run", "cogvideox", "--frames", "0"], "--frames"),
        (["run", "cogvideox", "--size", "64"], "is not HEIGHTxWIDTH"),
        (["run", "cogvideox", "--size", "0x8"], "is not HEIGHTxWIDTH"),
        (["run", "nonsense"], "no pair 'nonsense'; registered: cogvideox"),
        (["run", "no.such:pair"], "cannot be loaded"),
        (["run", "parity.cli.options:find_pair"], "expected a parity.Pair"),
        (["run", "cogvideox", "--weights", "x", "--config", "small"], "leave --config out"),
        (["frobnicate"], "No such command"),
    ],
)
def test_wrong_usage(words, part, tmp_path):
    refused(parity(*words, cwd=tmp_path), part)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    for option in ("--out", "--profile"):
        words = ("run", "cogvideox", option, tmp_path / "file" / "out")
        refused(parity(*words, cwd=tmp_path), "cannot be made", option)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_that_of_this_checkout():
    from parity.host import environment

    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(environment.__file__).parent,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if head.returncode:
        pytest.skip("not a git checkout")
    assert head.stdout[:12] == environment.own_commit()[:12]


@pytest.mark.skipif(shutil.which("git") is None, reason="git makes the commit")
def test_a_report_has_the_commit_of_the_folder_that_the_command_runs_in(tmp_path):
    def git(*words):
        named = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        done = subprocess.run(
            ["git", *named, *words], cwd=tmp_path, check=True, capture_output=True
        )
        return done.stdout.decode().strip()

    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "-m", "first")
    found = json.loads(parity("env", "--json", cwd=tmp_path).stdout)
    assert git("rev-parse", "HEAD").startswith(found["commit"])
    assert found["parity_commit"] != found["commit"]


def test_a_missing_video(tmp_path):
    words = ("run", "cogvideox", "--video", "gone.mp4")
    refused(parity(*words, cwd=tmp_path), "'--video': gone.mp4: no such file")


@pytest.mark.slow
def test_a_clip_too_small_for_the_model(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((1, 2, 2, 3), np.uint8))
    words = ("run", "cogvideox", "--config", "small", "--video", "a.npy", "--frames", 1,
             "--size", "2x2")  # fmt: skip
    refused(parity(*words, cwd=tmp_path), "frames of 2x2", "at least 4x4")
