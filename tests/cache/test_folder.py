"""The folder: whose it is, how large it becomes, and what several processes do to it."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from parity.cache import folder
from parity.cache.folder import CALLS, Folder, default_folder, open_folder
from parity.cache.pack import ARRAYS, INDEX, Damaged, Pack, Place, TooLarge, Writer
from parity.errors import InputError

KIB = 1024


def keep(into, key, size=KIB, name=CALLS):
    """An entry of about that size."""
    writer = Writer(into.begin(), 1 << 20)
    place = writer.put(np.full(size // 8, len(key), np.float64))
    writer.end({"place": place.plain()})
    return into.keep(writer.folder, key, name)


def names(into):
    return sorted(path.name for path in into.path.iterdir())


def test_the_folder_is_that_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv(folder.VARIABLE, str(tmp_path / "named"))
    assert open_folder().path == tmp_path / "named"
    assert (tmp_path / "named").stat().st_mode & 0o777 == 0o700
    assert open_folder().limit == 10 * 2**30
    monkeypatch.setenv(folder.VARIABLE, "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_folder() == tmp_path / "xdg" / "parity"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_folder() == Path.home() / ".cache" / "parity"


@pytest.mark.parametrize("limit", ["much", "-1", "nan", "inf"])
def test_a_limit_that_is_none(limit, monkeypatch):
    monkeypatch.setenv(folder.LIMIT, limit)
    with pytest.raises(InputError, match=f"PARITY_CACHE_GIB={limit}: expected a number of GiB"):
        open_folder()


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(InputError, match=r"has mode 777 and owner .*, so others may write"):
        Folder(tmp_path / "shared", KIB)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="expected a folder for the cache"):
        Folder(tmp_path / "file", KIB)


def test_what_was_used_longest_ago_goes_first(tmp_path):
    into = Folder(tmp_path / "c", 4 * KIB)
    for age, key in enumerate(("one", "two", "three")):
        assert keep(into, key)
        os.utime(into.path / key, (age, age))
    assert into.packs("one")  # it is used: now `two` is the oldest
    keep(into, "four")
    assert names(into) == ["four", "one", "three"]
    keep(into, "large", 4 * KIB)
    assert names(into) == ["large"]


def test_what_a_killed_process_left_goes_after_an_hour(tmp_path):
    into = Folder(tmp_path / "c", 100 * KIB)
    left, new = into.begin(), into.begin()
    for path in (left, new):
        (path / ARRAYS).write_bytes(b"x" * KIB)
    old = time.time() - 3700
    for path in (left / ARRAYS, left):
        os.utime(path, (old, old))
    keep(into, "one")
    assert names(into) == sorted([new.name, "one"])


def test_several_writers_and_readers_at_once(tmp_path):
    """Whoever reads finds a whole entry or none; the folder stays within its limit."""
    into = Folder(tmp_path / "c", 8 * KIB)
    wrong = []

    def work(number):
        for turn in range(25):
            key = str((turn + number) % 7)
            keep(into, key)
            for path in into.packs(str(turn % 7)):
                try:
                    pack = Pack(path)
                except Damaged as error:
                    if "cannot be read" not in str(error):  # gone in the meantime
                        wrong.append(error)
                    continue
                array = pack.get(Place.read(pack.content["place"]))
                if array.shape != (KIB // 8,):
                    wrong.append(array)
                pack.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not [name for name in names(into) if name.startswith(".gone")]
    whole = [path for path in into.path.iterdir() if not path.name.startswith(".")]
    assert 1 <= len(whole) <= 6


def test_the_first_of_two_stays(tmp_path):
    into = Folder(tmp_path / "c", 100 * KIB)
    assert keep(into, "one", KIB)
    assert not keep(into, "one", 2 * KIB)
    assert into.size("one") < 2 * KIB


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "bool", "int64"])
def test_arrays_come_back_as_they_were(dtype, tmp_path):
    from parity.golden.shards import dtype_of

    arrays = [np.arange(24).reshape(2, 3, 4).astype(dtype_of(dtype)).transpose(2, 0, 1),
              np.ones((), dtype_of(dtype)), np.ones((0, 3), dtype_of(dtype)),
              np.arange(1 << 19).astype(dtype_of(dtype))]  # fmt: skip
    writer = Writer(tmp_path, 1 << 24)
    places = [writer.put(array) for array in (*arrays, arrays[0])]
    assert places[-1].offset == places[0].offset
    writer.end({"places": [place.plain() for place in places]})
    pack = Pack(tmp_path)
    for array, place in zip(arrays, pack.content["places"], strict=False):
        back = pack.get(Place.read(place))
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert back.tobytes() == np.ascontiguousarray(array).tobytes()
        back[...] = 0  # the caller's own
        assert pack.get(Place.read(place)).tobytes() == np.ascontiguousarray(array).tobytes()
    pack.close()


def test_no_more_is_written_than_there_is_room_for(tmp_path):
    writer = Writer(tmp_path, KIB)
    writer.put(np.zeros(100))
    with pytest.raises(TooLarge):
        writer.put(np.ones(100))
    writer.put(np.zeros((10, 10)))  # there already
    writer.give_up()
    assert not (tmp_path / INDEX).exists()
