"""docs/api.md is what the docstrings say."""

from tools.api import OUT, as_markdown


def test_it_is_current():
    assert OUT.read_text() == as_markdown(), "run `python -m tools.api`"


def test_every_public_name_is_there():
    import jaxvae
    import parity

    text = OUT.read_text()
    for package in (parity, jaxvae):
        missing = [x for x in package.__all__ if f"### {package.__name__}.{x}\n" not in text]
        assert not missing
