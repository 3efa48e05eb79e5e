"""What is good in the first place, made once."""

import pytest

from tests.hostile import stock


@pytest.fixture(scope="session")
def good(tmp_path_factory):
    return stock.fill(tmp_path_factory.mktemp("stock"))
