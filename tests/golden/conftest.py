"""The tiny pair recorded once, and what `run` says of the same."""

import json
import shutil

import pytest
import tiny

from parity.core.verdicts import Diagnosis
from parity.pipeline import run_pair
from parity.run import running_reference
from parity.traces import index
from parity.traces.record import record_pair


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """A trace of the tiny pair."""
    folder = tmp_path_factory.mktemp("trace")
    record_pair(tiny.PAIR, folder, **tiny.ASKED)
    return folder


@pytest.fixture
def trace(recorded, tmp_path):
    """A copy of it, to be spoilt."""
    return shutil.copytree(recorded, tmp_path / "trace")


@pytest.fixture(scope="session")
def ran():
    """What `run` reports of a pair, on the inputs of the trace; causes are left out."""

    def run(pair, **options):
        with pytest.MonkeyPatch.context() as patch:
            # it changes no figure and takes most of the time
            patch.setattr(running_reference, "diagnose", lambda *_: Diagnosis("unknown", "", ""))
            return run_pair(pair, **tiny.ASKED, **options)

    return run


def signed_again(folder, change):
    """Changes the index, and its digest with it, as somebody would who knows the format."""
    path = folder / index.NAME
    content = json.loads(path.read_text())
    del content["sha256"]
    change(content)
    path.write_text(json.dumps({"sha256": index.signature(content), **content}))


@pytest.fixture(scope="session")
def resign():
    return signed_again
