from __future__ import annotations

import numpy as np
import pytest

from hostgap.trace.columns import Columns, Interner, Names


def test_interner_numbers_values_as_they_come() -> None:
    codes: Interner[str] = Interner()
    assert [codes[value] for value in "abcab"] == [0, 1, 2, 0, 1]
    assert tuple(codes) == ("a", "b", "c")


def test_columns() -> None:
    columns = Columns({"start": np.int64, "kind": np.int8})
    columns.append(start=[1, 2**60], kind=3)
    columns.append(start=[], kind=9)
    columns.append(start=np.array([5]), kind=[-1])
    kind = columns.pop("kind")
    assert kind.dtype == np.int8
    assert kind.tolist() == [3, 3, -1]
    assert columns.pop("start").tolist() == [1, 2**60, 5]
    with pytest.raises(KeyError):
        columns.pop("start")


def test_empty_columns_keep_their_type() -> None:
    column = Columns({"start": np.int32}).pop("start")
    assert column.dtype == np.int32
    assert len(column) == 0


def test_names_are_cut_and_counted() -> None:
    names = Names(3)
    assert [names[text] for text in ("abc", "abcd", "ab", "abce", "abc")] == [0, 0, 1, 0, 0]
    assert list(names) == ["abc", "ab"]
    assert names.cut == 2
