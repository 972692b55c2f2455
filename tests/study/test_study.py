"""The study file is checked to the letter and explained in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from cipherbayes.errors import StudyError
from cipherbayes.study.schema import Study
from conftest import LOGISTIC


def load(tmp_path: Path, text: str) -> Study:
    path = tmp_path / "study.toml"
    path.write_text(text, encoding="utf-8")
    return Study.load(path)


def test_a_small_study_loads_with_its_defaults(tmp_path: Path) -> None:
    study = load(tmp_path, LOGISTIC)
    assert study.name == "small"
    assert study.protocol == "pooled"
    assert study.full_prior.scale == 1.0
    assert not study.private


def test_the_resolved_study_reads_back_as_itself(tmp_path: Path) -> None:
    study = load(tmp_path, LOGISTIC)
    again = load(tmp_path, study.to_toml())
    assert again.document() == study.document()
    assert again.fingerprint() == study.fingerprint()


def test_sites_and_a_budget_mean_secure_sum_unless_the_study_says_otherwise(
    tmp_path: Path,
) -> None:
    sites = "[sites]\na = {}\nb = {}\n"
    assert load(tmp_path, LOGISTIC + PRIVATE + sites).protocol == "secure-sum"
    assert load(tmp_path, LOGISTIC + sites).protocol == "pooled"
    stated = LOGISTIC.replace("[model]", 'protocol = "pooled"\n[model]')
    assert load(tmp_path, stated + PRIVATE + sites).protocol == "pooled"


def test_the_fingerprint_ignores_where_tables_are_but_nothing_else(
    tmp_path: Path,
) -> None:
    one = load(tmp_path, LOGISTIC + '[sites]\nnorth = { data = "a.csv" }\n')
    two = load(tmp_path, LOGISTIC + '[sites]\nnorth = { data = "b.csv" }\n')
    other = load(tmp_path, LOGISTIC + '[sites]\nsouth = { data = "a.csv" }\n')
    changed = load(tmp_path, LOGISTIC.replace("high = 100", "high = 101"))
    assert one.fingerprint() == two.fingerprint()
    assert len({s.fingerprint() for s in (one, other, changed)}) == 3


def test_data_paths_are_relative_to_the_study(tmp_path: Path) -> None:
    study = load(tmp_path, LOGISTIC + '[sites]\nnorth = { data = "a.csv" }\n')
    assert study.sites["north"].data == str(tmp_path / "a.csv")


PRIVATE = "[privacy]\nepsilon = 1.0\nrecords = 1000\n"
WRONG = {
    "unknown key": (LOGISTIC + "[prior]\nscal = 1.0\n", r"line 11.*unknown key"),
    "unknown table": (LOGISTIC + "[privcy]\nepsilon = 1\n", "unknown key 'privcy'"),
    "unknown model": (LOGISTIC.replace('"logistic"', '"probit"'), "line 5.*logistic"),
    "no model kind": (LOGISTIC.replace('kind = "logistic"', ""), "model.kind"),
    "no outcome": (LOGISTIC.replace('outcome = "death"', ""), "model.outcome"),
    "not TOML": ("[study\n", "not valid TOML"),
    "brackets in brackets": ("x = " + "[" * 100_000, "without end"),
    "tables in tables": ("[a" + ".a" * 20_000 + "]\n", "TOML|unknown key"),
    "number without end": (f"records = {'9' * 5_000}\n", "without end"),
    "text without end": ("#" * 8_000_001, "more than 8,000,000 characters"),
    "duplicate feature": (
        LOGISTIC.replace("[features]", "[features]\nage = { low = 1, high = 2 }"),
        "not valid TOML",
    ),
    "no features": (LOGISTIC.split("[features]")[0] + "[features]\n", "features"),
    "outcome as feature": (
        LOGISTIC + "death = { low = 0, high = 1 }\n",
        "an outcome and a feature",
    ),
    "bounds reversed": (LOGISTIC.replace("high = 100", "high = 1"), "line 8"),
    "negative epsilon": (LOGISTIC + PRIVATE.replace("1.0", "-1.0"), "epsilon"),
    "zero epsilon": (LOGISTIC + PRIVATE.replace("1.0", "0"), "epsilon"),
    "delta of one": (LOGISTIC + PRIVATE + "delta = 1.0\n", "delta"),
    "no budget": (
        LOGISTIC.replace("[model]", 'protocol = "secure-sum"\n[model]'),
        r"needs a \[privacy\]",
    ),
    "too many colluders": (
        LOGISTIC.replace("[model]", 'protocol = "secure-sum"\n[model]')
        + PRIVATE
        + "colluders = 2\n[sites]\na = {}\nb = {}\n",
        "colluders",
    ),
    "dropouts leave nobody": (
        LOGISTIC.replace("[model]", 'protocol = "secure-sum"\n[model]')
        + PRIVATE
        + "dropouts = 1\n[sites]\na = {}\nb = {}\n",
        "dropouts",
    ),
    "zero rounds": (LOGISTIC + "[inference]\nrounds = 0\n", "rounds"),
    "private fisher": (
        LOGISTIC + PRIVATE + '[inference]\npreconditioner = "fisher"\n',
        "fisher",
    ),
    "private gamma": (
        LOGISTIC + PRIVATE + "[inference]\ngamma_term = true\n",
        "gamma_term",
    ),
    "several private chains": (
        LOGISTIC + PRIVATE + "[inference]\nchains = 4\n",
        "chains",
    ),
    "a method of releases without a budget": (
        LOGISTIC + '[inference]\nmethod = "noise-aware"\n',
        r"needs the noise of a private study: remove it, or add a \[privacy\]",
    ),
    "a method of rows with a budget": (
        LOGISTIC + PRIVATE + '[inference]\nmethod = "multilevel"\n',
        "reads the rows, and a private study releases noised sums",
    ),
    "a method of sites that differ where they do not": (
        LOGISTIC + '[inference]\nmethod = "multilevel"\n',
        "is for sites that may differ",
    ),
    "scores on private rows without noise": (
        LOGISTIC + PRIVATE + "[evaluation]\nholdout = 0.2\nprivate = false\n",
        "holdout_is_public",
    ),
    "held-out rows both public and private": (
        LOGISTIC
        + PRIVATE
        + "[evaluation]\nholdout = 0.2\nprivate = true\nholdout_is_public = true\n",
        "contradict each other",
    ),
    "private held-out rows without a budget": (
        LOGISTIC + "[evaluation]\nholdout = 0.2\nprivate = true\n",
        r"\[privacy\]",
    ),
    "characteristics without a budget": (LOGISTIC + "[describe]\n", r"\[describe\]"),
    "characteristics by a number": (
        LOGISTIC + PRIVATE + '[describe]\nby = ["age"]\n',
        "describe.by",
    ),
    "characteristics twice": (
        LOGISTIC + PRIVATE + '[describe]\nby = ["site", "site"]\n',
        "twice",
    ),
    "characteristics by site where a feature is called so": (
        LOGISTIC.replace("[features]", '[features]\nsite = { levels = ["a", "b"] }')
        + PRIVATE
        + '[describe]\nby = ["site"]\n',
        "a feature is called so too",
    ),
    "characteristics of shortened rows": (
        LOGISTIC + PRIVATE + "[preparation]\nrow_norm = 1.0\n[describe]\n",
        r"row_norm and \[describe\]",
    ),
    "protected held-out rows that are shortened": (
        LOGISTIC
        + PRIVATE
        + "[preparation]\nrow_norm = 1.0\n[evaluation]\nholdout = 0.2\n",
        r"row_norm and \[evaluation\]",
    ),
    "paper table elsewhere": (
        LOGISTIC + "[paper]\nbatch = 320\nepochs = 500\n",
        r"\[paper\]",
    ),
    "a slope of no feature": (
        LOGISTIC
        + PRIVATE
        + '[hierarchy]\nslopes = ["weight"]\n[sites]\na = {}\nb = {}\n',
        "line 14: hierarchy.slopes names 'weight'",
    ),
    "a key that is not there": (
        LOGISTIC + "[sites]\na = {}\nb = {}\n[hierarchy]\nintercept = false\n",
        r"line 13: \[hierarchy\] lets nothing differ",
    ),
    "another party's name": (LOGISTIC + "[sites]\ncsp = {}\n", "another party's"),
    "bad site name": (LOGISTIC + '[sites]\n"a b" = {}\n', "site name"),
    "long site name": (LOGISTIC + f"[sites]\n{'x' * 65} = {{}}\n", "give up to 64"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_study_is_refused_with_the_place_and_the_remedy(
    tmp_path: Path, case: str
) -> None:
    text, expected = WRONG[case]
    with pytest.raises(StudyError, match=expected) as caught:
        load(tmp_path, text)
    assert "study.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "no such file"), (b"\xff\xfe\x00", "UTF-8"), ("folder", "is a folder")],
)
def test_a_study_that_cannot_be_read_is_refused(
    tmp_path: Path, content: bytes | str | None, expected: str
) -> None:
    path = tmp_path / "study.toml"
    if content == "folder":
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(StudyError, match=expected):
        Study.load(path)
