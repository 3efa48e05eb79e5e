"""What an entry of the cache holds in float64, and what this run adds to it."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from parity.cache.folder import Folder
from parity.cache.pack import Array, Pack, Place, TooLarge, Writer

Found = tuple[Pack, Place]


class Memory:
    """By name and section, arrays by leaf; `None` where the recorded one says all.

    It belongs to the recording of that `signature`: another one of the same may round otherwise.
    What is added is found by the runs after this one.
    """

    def __init__(self, folder: Folder, key: str, signature: str, packs: Sequence[Pack]) -> None:
        self._folder, self._key, self._signature = folder, key, signature
        self._known: dict[str, dict[str, dict[str, Found | None]]] = {}
        for pack in packs:
            if pack.content["of"] != signature:
                continue
            for name, sections in pack.content["found"].items():
                self._known[name] = {
                    section: {leaf: None if place is None else (pack, Place.read(place))
                              for leaf, place in leaves.items()}
                    for section, leaves in sections.items()
                }  # fmt: skip
        self._added: dict[str, Mapping[str, Any]] = {}
        self._writer: Writer | None = None
        self.problem = ""

    def knows(self, name: str) -> bool:
        """Whether it is there."""
        return name in self._known

    def find(self, name: str, section: str) -> Mapping[str, Found | None] | None:
        """Where the arrays lie, if they are known."""
        return self._known.get(name, {}).get(section)

    def get(self, found: Found) -> Array:
        """An array."""
        pack, place = found
        return pack.get(place)

    def put(self, array: Array) -> list[Any] | None:
        """Write an array; the place for `add`. Once one cannot be written, none is."""
        if self.problem:
            return None
        try:
            if self._writer is None:
                room = self._folder.limit - self._folder.size(self._key)
                self._writer = Writer(self._folder.begin(), room)
            return self._writer.put(array).plain()
        except TooLarge:
            self.problem = f"larger than {self._folder.limit / 2**30:g} GiB"
        except OSError as error:
            self.problem = str(error)
        return None

    def add(self, name: str, sections: Mapping[str, Any]) -> None:
        """Keep what was put, by section and leaf."""
        if not self.problem:  # else some of it is not there
            self._added[name] = sections

    def end(self) -> None:
        """Write what was added, a pack of its own."""
        if not self._added:
            return
        try:
            if self._writer is None:  # all of it is as it was recorded
                self._writer = Writer(self._folder.begin(), self._folder.limit)
            self._writer.end({"of": self._signature, "found": self._added})
            name = f"float64-{secrets.token_hex(4)}"
            self._folder.keep(self._writer.folder, self._key, name)
        except OSError as error:
            self.problem = str(error)

    def give_up(self) -> None:
        """Leave nothing."""
        if self._writer is not None:
            self._writer.give_up()
            self._folder.drop(self._writer.folder)
            self._writer = None
