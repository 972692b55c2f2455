"""A new user's afternoon, typed as they would, with three data sets that people know.

GBSG2, WHAS500 and the breast cancer data come with packages that the tests have. Each
is split over three sites by case mix: init, plan, a wrong turn and its recovery, run,
predict, report, export.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from terminal import cipherbayes

pytestmark = pytest.mark.slow

SITES = ("north", "south", "east")


@dataclass(frozen=True)
class Afternoon:
    """What a user knows of the data, from the code book.

    Attributes
    ----------
    by
        The column whose order decides at which site a record is.
    init
        What is typed after the tables.
    fill
        What is written for each feature; the others are struck out.
    wrong
        What is wrong at first: a line, what stands there, and what the message says.
    """

    by: str
    init: tuple[str, ...]
    fill: dict[str, str]
    records: int
    wrong: tuple[str, str, str]
    model: dict[str, str] = field(default_factory=dict)
    predict: tuple[str, ...] = ()
    effect: tuple[str, float, float] = ("", 0.0, 0.0)
    inference: str = ""


def gbsg2() -> pd.DataFrame:
    datasets = pytest.importorskip("sksurv.datasets")
    x, y = datasets.load_gbsg2()
    return x.assign(cens=y["cens"].astype(int), time=y["time"])


def whas500() -> pd.DataFrame:
    datasets = pytest.importorskip("sksurv.datasets")
    x, y = datasets.load_whas500()
    return x.assign(fstat=y["fstat"].astype(int), lenfol=y["lenfol"])


def breast_cancer() -> pd.DataFrame:
    datasets = pytest.importorskip("sklearn.datasets")
    frame = datasets.load_breast_cancer(as_frame=True).frame
    columns = ["mean texture", "mean concavity", "mean smoothness", "target"]
    return frame[columns]


AFTERNOONS = {
    "gbsg2": (
        gbsg2,
        Afternoon(
            by="age",
            init=("--kind", "weibull", "--outcome", "cens"),
            model={"horizon": "2700"},
            fill={
                "age": "{ low = 20, high = 90, per = 10 }",
                "horTh": '{ levels = ["no", "yes"] }',
                "pnodes": '{ low = 1, high = 60, transform = "log" }',
            },
            records=690,
            wrong=('levels = ["no", "yes"]', 'levels = ["No", "Yes"]', "horTh"),
            predict=("--times", "365,1825"),
            effect=("pnodes", 1.0, 2.5),
        ),
    ),
    "whas500": (
        whas500,
        Afternoon(
            by="age",
            init=("--kind", "exponential"),
            model={"horizon": "2400"},
            fill={
                "age": "{ low = 20, high = 110, per = 10 }",
                "chf": "{ levels = [0, 1] }",
                "bmi": "{ low = 10, high = 50, per = 5 }",
            },
            records=500,
            wrong=('event = "fstat"', 'event = "fstatt"', "did you mean 'fstat'"),
            predict=("--median",),
            effect=("age", 1.0, 3.0),
        ),
    ),
    "breast cancer": (
        breast_cancer,
        Afternoon(
            by="mean texture",
            init=(),
            fill={
                '"mean texture"': "{ low = 5, high = 45, per = 5 }",
                '"mean concavity"': "{ low = 0, high = 0.5, per = 0.1 }",
            },
            records=570,
            wrong=("epsilon = 3.0", "epsilon = -3.0", "'privacy.epsilon'"),
            effect=("mean concavity", 0.0, 1.0),
            inference='[inference]\nmethod = "averaged"\nrounds = 16\n\n',
        ),
    ),
}


def filled_in(text: str, afternoon: Afternoon) -> str:
    """The file that init wrote, as a person fills it in."""
    head, _, rest = text.partition("[features]")
    features, _, tail = rest.partition("[privacy]")
    for key, value in afternoon.model.items():
        head = re.sub(rf"^{key} = FILL_IN.*$", f"{key} = {value}", head, flags=re.M)
    kept = [f"{name} = {value}" for name, value in afternoon.fill.items()]
    for name in afternoon.fill:
        assert re.search(rf"^{re.escape(name)} = .*FILL_IN", features, flags=re.M)
    tail = re.sub(r"records = FILL_IN", f"records = {afternoon.records}", tail)
    tail = tail.replace("epsilon = 1.0 ", "epsilon = 3.0 ")
    tail = tail.replace("[sites]", f"{afternoon.inference}[sites]")
    return "\n".join([head + "[features]", *kept, "", "[privacy]" + tail])


@pytest.mark.usefixtures("fewer_draws")
@pytest.mark.parametrize("name", AFTERNOONS)
def test_a_new_user_gets_from_tables_to_a_report(name: str, tmp_path: Path) -> None:
    load, afternoon = AFTERNOONS[name]
    frame = load().sort_values(afternoon.by).reset_index(drop=True)
    for site, rows in zip(SITES, np.array_split(np.arange(len(frame)), 3), strict=True):
        frame.iloc[rows].to_csv(tmp_path / f"{site}.csv", index=False)

    def types(*words: object, code: int = 0) -> str:
        done = cipherbayes(*words, cwd=tmp_path)
        assert done.returncode == code, done.stderr + done.stdout
        assert "Traceback" not in done.stderr
        if code:
            # One line, or above it one for each thing that is wrong with the tables.
            *above, last = done.stderr.splitlines()
            assert last.startswith("error: ")
            assert all(line.startswith("- ") for line in above)
        return done.stderr if code else done.stdout

    tables = [f"{site}.csv" for site in SITES]
    said = types("init", *tables, *afternoon.init)
    assert f"{len(frame)} rows" in said
    assert "FILL_IN" in types("plan", "study.toml", code=1)

    study = tmp_path / "study.toml"
    right = filled_in(study.read_text(encoding="utf-8"), afternoon)
    stands, written, message = afternoon.wrong
    assert stands in right
    study.write_text(right.replace(stands, written), encoding="utf-8")
    assert message in types("run", "study.toml", "--out", "out", code=1)
    assert not list(tmp_path.glob("*.ledger"))

    # A budget that does not pay is the second wrong turn; the folder is the same.
    poor = right.replace('"north.csv" }', '"north.csv", budget = 0.5 }')
    study.write_text(poor, encoding="utf-8")
    assert "cannot pay" in types("plan", "study.toml")
    assert "sites.north.budget = 3" in types(
        "run", "study.toml", "--out", "out", code=1
    )

    study.write_text(right, encoding="utf-8")
    planned = types("plan", "study.toml")
    assert "outlook" in planned
    assert "drown" not in planned
    assert "cannot pay" not in planned
    shown = types("run", "study.toml", "--out", "out")
    assert "certified" in shown
    assert "report.html" in shown
    record: dict[str, Any] = json.loads((tmp_path / "out" / "result.json").read_text())
    effects = {row["name"]: row for row in record["effects"]}
    feature, low, high = afternoon.effect
    assert low < effects[feature]["estimate"] < high

    # Again: the folder is taken, and another one needs a budget.
    assert "finished run" in types("run", "study.toml", "--out", "out", code=1)
    assert "cannot pay" in types("run", "study.toml", "--out", "more", code=1)
    assert "spent" in types("ledger", "north.csv.ledger")

    columns = [key.strip('"') for key in afternoon.fill]
    frame[columns].head(3).to_csv(tmp_path / "new.csv", index=False)
    predicted = types("predict", "out", "new.csv", *afternoon.predict)
    assert len(predicted.splitlines()) in (4, 7)
    types("report", "out")
    assert "draws.csv" in types("export", "out", "--to", "csv")
