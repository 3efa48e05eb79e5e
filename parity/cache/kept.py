"""A reference that runs once: what it did is kept, and found by the runs after that.

Only the recording and the float64 runs are kept. Experiments that look for a cause need the live
modules, and have them.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity.cache.calls import from_plain, to_plain
from parity.cache.chosen import chosen
from parity.cache.code import Unknown
from parity.cache.float64 import KeptFloat64
from parity.cache.folder import CALLS, Folder
from parity.cache.key import key_of, sees_hooks
from parity.cache.memory import Memory
from parity.cache.pack import Pack, Place, TooLarge, Writer
from parity.capture.torch import settled
from parity.core.calls import Trace
from parity.core.pair import Case
from parity.core.store import Buffer, Store
from parity.core.verdicts import Diagnosis
from parity.diagnose.scene import Scene
from parity.force.common import Float64
from parity.judge.faults import Found
from parity.run.case import Outcome
from parity.run.live import Live

NOT_KEPT = "not kept: "


class Kept:
    """A live reference of `run_case`, with what `folder` has of it."""

    def __init__(self, live: Live, folder: Folder, seed: int) -> None:
        self._live, self._folder, self._seed = live, folder, seed
        self._packs: list[Pack] = []
        self._memory: Memory | None = None
        self._alike = False
        self._damage = self._broken = ""
        self._cases: dict[tuple[str, str], tuple[str, bool]] = {}
        self._case = ("", "")

    @property
    def summary(self) -> str:
        """What people should know of where the reference's side of a report comes from."""
        told = [text for text, _ in self._cases.values()]
        if len(told) == 1:
            return told[0]
        found = sum(there for _, there in self._cases.values())
        others = dict.fromkeys(text for text in told if text.startswith(NOT_KEPT))
        return "; ".join([f"{found} of {len(told)} cases from the cache", *others])

    def _say(self, text: str, *, found: bool = False) -> None:
        self._cases[self._case] = (text, found)

    def run(self, case: Callable[[], Outcome]) -> Outcome:
        """Run a case; once more if what it was given turns out to be damaged."""
        try:
            try:
                outcome = self._once(case)
            except Exception:
                if not self._damage:
                    raise
            else:
                if not self._damage:
                    return outcome
            return self._once(case)
        finally:
            self._folder.end()  # whatever interrupted it

    def _once(self, case: Callable[[], Outcome]) -> Outcome:
        try:
            outcome = case()
            if self._memory is not None and not self._found_damage():
                self._memory.end()
                if self._memory.problem:
                    text, found = self._cases[self._case]
                    text += f"; what it does in float64 is not kept: {self._memory.problem}"
                    self._say(text, found=found)
            return outcome
        finally:
            self._damage = self._found_damage()
            self._close()

    def _found_damage(self) -> str:
        return next((pack.damage for pack in self._packs if pack.damage), self._broken)

    def _close(self) -> None:
        if self._memory is not None:
            self._memory.give_up()
        for pack in self._packs:
            pack.close()
        self._packs, self._memory, self._alike, self._broken = [], None, False, ""

    def arguments(
        self, case: Case, layout: Mapping[str, str]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """As they are given."""
        return self._live.arguments(case, layout)

    def paths(self) -> Collection[str]:
        """As they are named in the root."""
        return self._live.paths()

    def record(
        self,
        case: Case,
        store: Store,
        layout: Mapping[str, str],
        inside: Collection[str] | None,
    ) -> Trace:
        """What was recorded before, if there is such a case, else what is now.

        All calls are kept; those `inside` are taken from them.
        """
        self._case = (case.name, case.path)
        if case.returned_from is not None:  # nothing runs
            return self._live.record(case, store, layout, inside)
        module = self._live.called(case)
        watched = inside if sees_hooks(module) else None
        try:
            key = key_of(module, case, layout, self._seed, watched)
        except Unknown as error:
            self._say(f"{NOT_KEPT}{error}")
            return self._live.record(case, store, layout, inside)
        trace = self._before(key, store)
        if trace is None:
            recorded = self._live.observe
            trace = self._now(key, lambda: recorded(case, store, layout, watched), store)
        if inside is not None:
            trace = chosen(trace, inside)
        return settled(trace)

    def _before(self, key: str, store: Store) -> Trace | None:
        """The calls of an entry, and what it has of them in float64."""
        why, self._damage = self._damage, ""
        paths = [] if why else self._folder.packs(key)
        calls = [path for path in paths if path.name == CALLS]
        try:
            if calls:
                pack = self._opened(calls[0])
                trace = from_plain(pack.content["trace"], _adopted(pack, store))
                others = [self._opened(path) for path in paths if path != calls[0]]
                self._memory = Memory(self._folder, key, pack.signature, others)
                self._alike = not trace.stateful
                when = pack.content["recorded"]
                self._say(f"from the cache, recorded {when}, key {key[:12]}", found=True)
                return trace
        except Exception as error:  # whatever the content makes code do that expects another one
            # the store has arrays of it by now: begin again, with another one
            self._broken = str(error) or type(error).__name__
            raise
        if why:
            self._folder.forget(key)
        self._say(f"recorded now, key {key[:12]}{f': {why}' if why else ''}")
        return None

    def _opened(self, path: Path) -> Pack:
        self._packs.append(Pack(path))
        return self._packs[-1]

    def _now(self, key: str, observe: Callable[[], Trace], store: Store) -> Trace:
        """Record the calls, and keep them if the same would be recorded again."""
        before = _streams()
        trace = observe()
        if _streams() != before:
            self._say(f"{NOT_KEPT}it draws random numbers")
            return trace
        try:
            signature = self._write(key, trace, store)
        except TooLarge:
            self._say(f"{NOT_KEPT}larger than {self._folder.limit / 2**30:g} GiB")
        except (Unknown, OSError) as error:
            self._say(f"{NOT_KEPT}{error}")
        else:
            self._alike = not trace.stateful
            self._memory = Memory(self._folder, key, signature, ()) if signature else None
        return trace

    def _write(self, key: str, trace: Trace, store: Store) -> str:
        """Write an entry; its signature, `""` if another process was first."""
        recorded = datetime.now(UTC).isoformat(timespec="seconds")
        writer = Writer(self._folder.begin(), self._folder.limit)
        try:
            plain = to_plain(trace, lambda buffer: writer.put(store.get(buffer)))
            signature = writer.end({"recorded": recorded, "trace": plain})
            return signature if self._folder.keep(writer.folder, key, CALLS) else ""
        finally:
            writer.give_up()
            self._folder.drop(writer.folder)  # where it was not moved away

    def float64(self, case: Case) -> Float64:
        """What is known of its float64 runs, and its modules for the rest."""
        live = self._live.float64(case)
        return live if self._memory is None else KeptFloat64(live, self._memory, self._alike)

    def diagnose(self, found: Found, scene: Scene) -> Diagnosis:
        """By experiment, with the live modules."""
        reference = scene.sides.reference
        if isinstance(reference, KeptFloat64):
            scene = replace(scene, sides=replace(scene.sides, reference=reference.live))
        return self._live.diagnose(found, scene)

    def optional(self, case: Case) -> Mapping[str, Sequence[str]]:
        """As the signatures of the classes say."""
        return self._live.optional(case)

    def notes(self, case: Case) -> tuple[str, ...]:
        """Those of the live modules."""
        return self._live.notes(case)


def _streams() -> tuple[bytes, ...]:
    """Where the streams of random numbers are that a reference may draw from."""
    torchs = torch.get_rng_state().numpy().tobytes()
    return torchs, repr(np.random.get_state()).encode(), repr(random.getstate()).encode()  # noqa: NPY002


def _adopted(pack: Pack, store: Store) -> Callable[[Place], Buffer]:
    def adopt(place: Place) -> Buffer:
        key = bytes.fromhex(place.digest)
        return store.adopt(key, place.shape, place.dtype, lambda: pack.get(place))

    return adopt
