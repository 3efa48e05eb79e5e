"""The folder: whose it is, how large it becomes, and what several processes do to it."""

import hashlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from parity.cache import folder
from parity.cache.folder import CALLS, Folder, default_folder, open_folder
from parity.cache.pack import ARRAYS, INDEX, Damaged, Pack, Place, TooLarge, Writer
from parity.core.exceptions import InputError

KIB = 1024


def called(name):
    """The key of an entry that tests call so."""
    return hashlib.sha256(name.encode()).hexdigest()


NAMES = {called(name): name for name in ("one", "two", "three", "four", "large")}


def keep(into, name_of_entry, size=KIB, name=CALLS):
    """An entry of about that size."""
    key = called(name_of_entry)
    writer = Writer(into.begin(), 1 << 20)
    place = writer.put(np.full(size // 8, len(name_of_entry), np.float64))
    writer.end({"place": place.plain()})
    return into.keep(writer.folder, key, name)


def names(into):
    return sorted(NAMES.get(path.name, path.name) for path in into.path.iterdir())


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
        os.utime(into.path / called(key), (age, age))
    assert into.packs(called("one"))  # it is used: now `two` is the oldest
    keep(into, "four")
    assert names(into) == ["four", "one", "three"]
    keep(into, "large", 4 * KIB)
    assert names(into) == ["large"]


def test_what_is_no_entry_stays_and_does_not_count(tmp_path):
    into = Folder(tmp_path / "c", 4 * KIB)
    for name in ("thesis", "a" * 63, "A" * 64, f".{'a' * 64}"):
        (into.path / name).mkdir()
        (into.path / name / "data").write_bytes(b"x" * 100 * KIB)
        os.utime(into.path / name, (1, 1))
    (into.path / ("b" * 64)).write_bytes(b"x" * 100 * KIB)  # no folder
    theirs = set(names(into))
    for key in ("one", "two"):
        keep(into, key)
    assert set(names(into)) == {*theirs, "one", "two"}


def test_what_a_dead_process_left_goes_at_once(tmp_path):
    into = Folder(tmp_path / "c", 100 * KIB)
    here = str(Path(folder.__file__).parents[2])
    text = (f"import sys; sys.path.insert(0, {here!r})\n"
            "from pathlib import Path; from parity.cache.folder import Folder\n"
            f"print(Folder(Path({str(into.path)!r}), 1).begin())")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    left, alive = Path(done.stdout.strip()), into.begin()
    other = left.with_name(left.name.replace(folder._host(), "elsewhere"))
    other.mkdir()  # of another machine, whose processes nobody knows here
    assert left.exists()
    keep(into, "one")
    assert names(into) == sorted([alive.name, other.name, "one"])


def test_an_interrupted_writer_leaves_nothing(tmp_path, monkeypatch):
    into = Folder(tmp_path / "c", 100 * KIB)
    (into.begin() / ARRAYS).write_bytes(b"x")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", interrupted(Path.mkdir))
        with pytest.raises(KeyboardInterrupt):
            into.begin()
    assert len(names(into)) == 2
    keep(into, "one")
    into.end()
    assert names(into) == ["one"]


def interrupted(function):
    """Does it, and is interrupted before it can say so."""

    def called(*args, **kwargs):
        function(*args, **kwargs)
        raise KeyboardInterrupt

    return called


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
            for path in into.packs(called(str(turn % 7))):
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
    assert into.size(called("one")) < 2 * KIB


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "bool", "int64"])
def test_arrays_come_back_as_they_were(dtype, tmp_path):
    from parity.traces.shards import dtype_of

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
