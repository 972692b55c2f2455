"""A digest of rows in no order."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from cipherbayes.data.row_digest import RowDigest
from conftest import logistic_frame


def digest(frame: pd.DataFrame) -> str:
    found = RowDigest()
    table = pa.Table.from_pandas(frame, preserve_index=False)
    for start in range(0, len(frame), 7):
        found.add(table.slice(start, 7))
    return found.hex()


def test_the_digest_knows_rows_in_any_order_and_no_other_rows() -> None:
    frame = logistic_frame(50)
    frame.loc[3, "age"] = np.nan
    same = digest(frame)
    shuffled = frame.sample(frac=1.0, random_state=1)
    assert digest(shuffled) == same
    assert digest(frame.rename(columns={"age": "years"})) == same
    assert digest(frame.assign(death=frame["death"].astype(float))) == same
    assert digest(shuffled[["sex", "death", "age"]]) == same
    assert digest(frame[["sex", "age", "death"]].rename(columns={"sex": "a"})) == same
    others = [
        frame.iloc[1:],
        pd.concat([frame, frame.iloc[:1]]),
        pd.concat([frame, frame]),
        frame.assign(age=frame["age"].where(frame.index != 5, 44.0)),
        frame.assign(sex=frame["sex"].where(frame.index != 5, "X")),
        frame.assign(sex=frame["sex"].where(frame.index != 5, None)),
        frame.assign(age=np.roll(frame["age"], 1)),
        frame[["sex", "age"]],
        frame.assign(again=frame["age"]),
    ]
    assert len({same, *map(digest, others)}) == len(others) + 1
