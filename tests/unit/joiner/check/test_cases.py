"""Do the built-in cases detect an incorrect engine, and pass a correct one?

The correct engine is the oracle behind the engine's interface; each incorrect engine violates one guarantee.
"""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest

from joiner.check.model import oracle
from joiner.check.model.cases import Case, built_in_cases, entries, large_case, random_case, records
from joiner.check.model.drive import Outcome, run_case
from joiner.check.report import render_outcomes


class _OracleBuffer:
    """The oracle behind the engine's interface. It holds every record, and returns the new output of each step."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._entries: tuple[list[Any], list[Any]] = ([], [])
        self._given: set[tuple[int, int]] = set()
        self._late: tuple[set[int], set[int]] = (set(), set())

    def push(self, **batches: Any) -> Any:
        for side, name in enumerate(("left", "right")):
            batch: list[Any] = [oracle.Rec(*row) for row in zip(*batches[name], strict=True)]
            batch += [oracle.Watermark(*row) for row in zip(*batches[f"{name}_watermarks"], strict=True)]
            self._entries[side].extend(sorted(batch, key=lambda entry: entry.seq))
        return self._step(closed=False)

    def close(self) -> Any:
        return self._step(closed=True)

    def _step(self, *, closed: bool) -> Any:
        answer = oracle.join(*self._entries, **self._options, closed=closed)
        pairs = sorted(answer.pairs - self._given)
        late = [{int(r.seq) for r in side.late} for side in (answer.left, answer.right)]
        new_late = [sorted(now - before) for now, before in zip(late, self._late, strict=True)]
        self._given |= answer.pairs
        self._late = (late[0], late[1])
        return self.spoil(
            SimpleNamespace(
                left_seq=np.array([left for left, _ in pairs], dtype=np.int64),
                right_seq=np.array([right for _, right in pairs], dtype=np.int64),
                left_late_seq=np.array(new_late[0], dtype=np.int64),
                right_late_seq=np.array(new_late[1], dtype=np.int64),
                left_released_seq=np.array([], dtype=np.int64),
                right_released_seq=np.array([], dtype=np.int64),
            )
        )

    def spoil(self, step: Any) -> Any:
        """Return the step unchanged. The incorrect engines override this to corrupt it."""
        return step

    def snapshot(self) -> bytes:
        return pickle.dumps(self.__dict__)

    @classmethod
    def restore(cls, data: bytes) -> Self:
        buffer = cls()
        buffer.__dict__ = pickle.loads(data)  # noqa: S301 - pickled by this class
        return buffer

    def __len__(self) -> int:
        kept = sum(isinstance(entry, oracle.Rec) for side in self._entries for entry in side)
        return kept - sum(map(len, self._late))


class _LosesPairs(_OracleBuffer):
    def spoil(self, step: Any) -> Any:
        step.left_seq, step.right_seq = step.left_seq[1:], step.right_seq[1:]
        return step


class _DoublesPairs(_OracleBuffer):
    def spoil(self, step: Any) -> Any:
        step.left_seq, step.right_seq = np.tile(step.left_seq, 2), np.tile(step.right_seq, 2)
        return step


class _InventsPairs(_OracleBuffer):
    def spoil(self, step: Any) -> Any:
        if len(step.left_seq) > 1:
            step.right_seq = np.roll(step.right_seq, 1)
        return step


class _HidesLateRecords(_OracleBuffer):
    def spoil(self, step: Any) -> Any:
        step.left_late_seq = step.left_late_seq[:0]
        return step


class _ReleasesTooEarly(_OracleBuffer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._released: set[int] = set()

    def spoil(self, step: Any) -> Any:
        new = set(step.left_seq.tolist()) - self._released
        self._released |= new
        step.left_released_seq = np.array(sorted(new), dtype=np.int64)
        return step

    def __len__(self) -> int:
        return super().__len__() - len(self._released)


class _ForgetsOnRestore(_OracleBuffer):
    @classmethod
    def restore(cls, data: bytes) -> Self:
        buffer = super().restore(data)
        buffer._entries[0].clear()  # noqa: SLF001 - same class
        return buffer


class _Miscounts(_OracleBuffer):
    def __len__(self) -> int:
        return super().__len__() + 1


def small_cases() -> list[Case]:
    return [case for case in built_in_cases() if len(case.left) + len(case.right) < 30]


def test_the_numbers_worked_out_by_hand_are_the_oracles() -> None:
    known = [case for case in built_in_cases() if case.pairs is not None and len(case.left) < 400]
    assert len(known) > 12
    for case in known:
        sides = (case.left, case.right)
        options: dict[str, Any] = {"tolerance_ns": case.tolerance_ns, "lateness_ns": case.lateness_ns}
        certain = oracle.join(*sides, **options)
        after_end = oracle.join(*sides, **options, closed=True)
        assert (len(certain.pairs), len(after_end.pairs)) == case.pairs, case.name


def test_a_right_engine_passes() -> None:
    for case in [*small_cases(), *(random_case(seed) for seed in range(20))]:
        outcome = run_case(case, _OracleBuffer, seed=1)
        assert outcome.differences == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (_LosesPairs, "is missing"),
        (_DoublesPairs, "was emitted twice"),
        (_InventsPairs, "is unexpected"),
        (_HidesLateRecords, "should be late"),
        (_ReleasesTooEarly, "has a record that was already released"),
        (_ForgetsOnRestore, "is missing"),
        (_Miscounts, "the buffer holds"),
    ],
)
def test_a_wrong_engine_is_found_and_the_message_says_how(wrong: type[_OracleBuffer], message: str) -> None:
    outcomes = [run_case(case, wrong, seed=1) for case in small_cases()]
    found = [difference for outcome in outcomes for difference in outcome.differences]
    assert any(message in difference for difference in found), found
    assert "WRONG" in render_outcomes(outcomes)


def test_a_case_that_contradicts_the_hand_is_a_difference() -> None:
    case = Case("wrong", records(1), records(1), pairs=(2, 2))
    assert "calculated by hand: 2 and 2" in run_case(case, _OracleBuffer, seed=1).differences[0]


def test_a_random_case_is_its_seed() -> None:
    assert random_case(5) == random_case(5)
    assert random_case(5) != random_case(6)
    assert large_case(2, 50) == large_case(2, 50)


def test_a_stream_in_short() -> None:
    assert entries(3, (1, 4), ">5", "2>6") == [
        oracle.Rec(0, 3, 0),
        oracle.Rec(1, 4, 1),
        oracle.Watermark(oracle.ALL_KEYS, 5, 2),
        oracle.Watermark(2, 6, 3),
    ]


def test_the_table_ends_in_a_verdict() -> None:
    assert render_outcomes([Outcome("a", 1)]).endswith("RIGHT: engine and oracle agree in all 1 cases.")
