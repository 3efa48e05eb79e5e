import numpy as np
import pytest

from parity.diagnose.error_map import location

REF = np.random.default_rng(0).standard_normal((2, 8, 9, 10, 6))


def changed(*index):
    port = REF.copy()
    port[index] += 1
    return port


RING = changed(slice(None), slice(None), [0, -1])
RING[:, :, :, [0, -1]] += 1


@pytest.mark.parametrize(
    ("port", "text"),
    [
        (changed(slice(None), slice(None), -1), "only in row 8 of 9"),
        (changed(slice(None), 0), "only in frame 0 of 8"),
        (changed(Ellipsis, slice(0, 2)), "only in channel 0, 1 of 6"),
        (RING, "only in a border 1 wide"),
        (changed(slice(None), slice(None), [0, -1]), "only in row 0, 8 of 9"),
        (changed(Ellipsis), "everywhere"),
        (REF[:, ::-1], "the same values in another order"),
        (REF, ""),
        (REF[:1], ""),
    ],
    ids=["row", "frame", "channels", "border", "two rows", "everywhere", "order", "equal", "shape"],
)
def test_where(port, text):
    found = location(REF, port)
    assert found.startswith(text) if text else found == ""
