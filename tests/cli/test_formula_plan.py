"""A study with a formula on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cipherbayes as cb
from terminal import cipherbayes

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "flchain-formula.toml"


@pytest.mark.slow
def test_plan_says_what_each_term_costs() -> None:
    said = cipherbayes("plan", EXAMPLE).stdout
    assert "terms       rcs(age, [55, 65, 75, 90]): 6 columns with its products" in said
    found = json.loads(cipherbayes("plan", EXAMPLE, "--json").stdout)
    assert found["dimension"] == 13
    costs = {cost["term"]: cost for cost in found["terms"]}
    assert list(costs)[:3] == [
        "rcs(age, [55, 65, 75, 90])",
        "sex",
        "rcs(age, [55, 65, 75, 90]):sex",
    ]
    assert costs["log(kappa)"]["columns"] == 1
    curve = costs["rcs(age, [55, 65, 75, 90])"]
    assert curve["columns"] == 6
    assert curve["width"] > costs["log(kappa)"]["width"] >= 1.0


def test_a_formula_that_is_wrong_is_told_with_its_line(tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8").replace("log(kappa)", "scale(kappa)")
    (tmp_path / "study.toml").write_text(text, encoding="utf-8")
    done = cipherbayes("plan", tmp_path / "study.toml")
    assert done.returncode == 1
    assert "scale(...) learns from the rows" in " ".join(done.stderr.split())
    assert "study.toml, line" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "table",
    [
        '[describe]\nby = ["sex"]\n',
        '[hierarchy]\nslopes = ["age"]\n',
        '[hierarchy]\nintercept = false\nslopes = ["kappa"]\n',
    ],
)
def test_terms_have_a_cost_where_other_tables_name_their_features(
    table: str, tmp_path: Path
) -> None:
    text = EXAMPLE.read_text(encoding="utf-8").replace("log(kappa)", "kappa")
    text = text.replace('"weibull"', '"exponential"')
    (tmp_path / "study.toml").write_text(f"{text}\n{table}", encoding="utf-8")
    done = cipherbayes("plan", tmp_path / "study.toml", "--json")
    assert done.returncode == 0, done.stderr
    costs = {cost["term"]: cost for cost in json.loads(done.stdout)["terms"]}
    assert {"rcs(age, [55, 65, 75, 90])", "sex", "kappa"} <= set(costs)


def test_plan_says_where_a_reference_record_would_be_that_nobody_chose() -> None:
    def told(method: str, **sections: Any) -> list[str]:
        study = cb.Study(
            model=cb.models.Logistic(outcome="death"),
            features={
                "tumour": {"low": 1, "high": 150},
                "age": {"low": 18, "high": 90},
            },
            preparation={"method": method},
            privacy={"epsilon": 1.0, "records": 4000},
            sites={"a": {}, "b": {}, "c": {}},
            **sections,
        )
        return [line for line in cb.plan(study).lines if line.startswith("reference")]

    (line,) = told("public-bounds", reference={"age": 65})
    assert "tumour 75.5" in line
    assert "age" not in line
    assert told("public-bounds", reference={"age": 65, "tumour": 20}) == []
    assert told("private-scales") == []
