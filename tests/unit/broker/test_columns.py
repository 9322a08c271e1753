"""String columns behave like the strings that they hold."""

from __future__ import annotations

import numpy as np
import pytest

from broker.wire.columns import StringColumn, decimals, glue


def _texts(texts: list[str]) -> StringColumn:
    return StringColumn.of([text.encode() for text in texts])


def _hashes(texts: list[str]) -> list[int]:
    return list(_texts(texts).hashes().tolist())


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("e0", 890113962054944154),
        ("a", 7150357289660981469),
        ("12345678", 7569011107262455245),
        ("123456789", -4043350506085741224),
        ("ä" * 256, -5016818662928339589),
    ],
)
def test_an_id_has_the_same_number_in_every_process_and_batch(text: str, number: int) -> None:
    alone = _hashes([text])[0]
    assert alone == number
    for others in ([], ["x"], ["y" * 300], ["", "z" * 8]):
        assert _hashes([*others, text, *others])[len(others)] == alone


def test_ids_that_differ_only_at_the_end_or_in_length_have_other_numbers() -> None:
    texts = ["", "\0", "\0\0", "a", "a\0", "a" * 8, "a" * 9, "a" * 8 + "\0", *(f"e{n}" for n in range(5000))]
    assert len(set(_hashes(texts))) == len(texts)


def test_texts_come_back_as_they_were_put_in() -> None:
    texts = [b"a", b"", b"\n", b"bc", b"\0"]
    assert StringColumn.of(texts).each() == texts
    assert StringColumn.of([]).each() == []
    assert StringColumn.of_lines(b"a\n\nbc\n").each() == [b"a", b"", b"bc"]
    assert StringColumn.of_lines(b"").each() == []
    assert StringColumn.concat(
        [StringColumn.of(texts), StringColumn.of([]), StringColumn.of(texts).take(np.array([3, 0]))]
    ).each() == [
        *texts,
        b"bc",
        b"a",
    ]


@pytest.mark.parametrize(
    ("lengths", "reason"),
    [
        ([4, -1], "cannot split 3 bytes: the length -1 is negative"),
        ([1, 1], "cannot split 3 bytes: the 2 lengths do not add up to that size"),
        ([], "cannot split 3 bytes: the 0 lengths do not add up to that size"),
    ],
)
def test_lengths_that_do_not_divide_the_bytes_are_refused_with_the_reason(lengths: list[int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        StringColumn.of_lengths(b"abc", np.array(lengths, dtype=np.int64))


def test_texts_with_nothing_between_them_are_packed_as_they_are_and_others_moved_together() -> None:
    whole = _texts(["a", "", "bc"])
    assert whole.packed() is whole
    for some in ([0, 1], [1, 2], [2, 0], [0, 2, 2], []):
        packed = whole.take(np.array(some, dtype=np.int64)).packed()
        assert packed.each() == [[b"a", b"", b"bc"][at] for at in some]
        assert len(packed.data) == sum(map(len, packed.each()))


def test_columns_are_glued_row_by_row() -> None:
    left, right = _texts(["a", "", "ccc"]), _texts(["1", "22", ""]).take(np.array([2, 1, 0]))
    assert glue(b"<", left, b":", right, b"", b">").each() == [b"<a:>", b"<:22>", b"<ccc:1>"]
    assert glue(left.where(np.array([False, True, True]))).each() == [b"", b"", b"ccc"]
    assert len(glue(b"x", StringColumn.of([]))) == 0


def test_columns_that_have_no_common_number_of_rows_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"different numbers of rows: \[1, 2\]"):
        glue(_texts(["a"]), _texts(["b", "c"]))
    with pytest.raises(ValueError, match="all arguments are bytes"):
        glue(b"a", b"b")


def test_texts_that_differ_are_numbered_as_they_come() -> None:
    texts = ["b", "a", "b", "", "a", "ba", ""]
    number, first = _texts(texts).distinct()
    assert number.tolist() == [0, 1, 0, 2, 1, 3, 2]
    assert first.tolist() == [0, 1, 3, 5]
    many = [f"thing {at % 1000}" for at in range(5000)]
    number, first = _texts(many).distinct()
    assert (number.tolist(), first.tolist()) == ([at % 1000 for at in range(5000)], list(range(1000)))


@pytest.mark.parametrize("number", [0, 7, -7, 10, -10, 99, 100, 2**63 - 1, -(2**63), 10**18, -(10**18)])
def test_integers_are_written_in_plain_digits(number: int) -> None:
    assert decimals(np.array([5, number])).each() == [b"5", str(number).encode()]


@pytest.mark.parametrize("text", ["0", "5", "-5", "120", "9" * 18, "-" + "9" * 18])
def test_plain_digits_are_read_as_integers(text: str) -> None:
    found = _texts(["1", text]).integers()
    assert found is not None
    assert found.tolist() == [1, int(text)]


@pytest.mark.parametrize("text", ["", "-", "-0", "01", "-01", "+1", "1.0", "1e3", " 1", "1 ", "9" * 19, "a", "/", ":"])
def test_other_numbers_are_left_to_others(text: str) -> None:
    assert _texts(["1", text]).integers() is None
