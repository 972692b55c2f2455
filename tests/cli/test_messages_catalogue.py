"""Every mistake a person can make ends in one line that says where and what to do.

Each entry provokes one mistake in a folder with a working study, and names what the
line must contain. No traceback, no value of any row.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from mistakes import (
    CANARY,
    NORTH,
    PAPER,
    PRIVATE,
    QUICK,
    SITES,
    STUDY,
    SURVIVAL,
    Mistake,
    all_dead,
    change_header,
    column,
    encrypted,
    file,
    finished_survival,
    modelled,
    new_level,
    put_bytes,
    replaced,
    spend,
    study,
    survival_with,
    without,
)

from conftest import LOGISTIC, logistic_frame
from terminal import cipherbayes

CATALOGUE = {
    # the study file
    "no such study": Mistake((STUDY, "no such file", "check"), study=""),
    "a folder": Mistake(("is a folder", "TOML"), words=("run", ".")),
    "not TOML": Mistake(
        (STUDY, "line 3", "TOML"), study="[study]\nname = 'a'\nb = = 1\n"
    ),
    "nothing filled in": Mistake(
        (STUDY, "line", "FILL_IN", "code book"),
        words=("plan", "study.toml"),
        study=replaced("low = 18", "low = FILL_IN"),
    ),
    "not text": Mistake(
        (STUDY, "UTF-8"), change=lambda f: put_bytes(f / STUDY, b"\xff\xfe\x00")
    ),
    "unknown key": Mistake(
        (STUDY, "line", "'privacy.epsylon'", "did you mean 'epsilon'?"),
        study=study("[privacy]\nepsilon = 1.0\nepsylon = 1.0\n"),
    ),
    "unknown model": Mistake(
        (STUDY, "model.kind", 'is "logistic"', "choose"),
        study=replaced('"logistic"', '"logit"'),
    ),
    "Cox by its name": Mistake(
        (STUDY, "model.kind", "piecewise", "intervals"),
        study=replaced('"logistic"', '"cox"'),
    ),
    "missing key": Mistake(
        (STUDY, "'model.outcome'", "add it"), study=replaced('outcome = "death"\n', "")
    ),
    "wrong type": Mistake(
        (STUDY, "features.age.low"), study=replaced("low = 18", 'low = "young"')
    ),
    "low above high": Mistake(
        (STUDY, "features.age", "low must be below high"),
        study=replaced("low = 18", "low = 180"),
    ),
    "one level": Mistake(
        (STUDY, "features.sex", "two levels"), study=replaced('["F", "M"]', '["F"]')
    ),
    "log of zero": Mistake(
        (STUDY, "features.age", "low > 0"),
        study=replaced("low = 18, high = 100", 'low = 0, high = 9, transform = "log"'),
    ),
    "negative epsilon": Mistake(
        (STUDY, "'privacy.epsilon'", "greater than 0"),
        study=study("[privacy]\nepsilon = -1.0\n"),
    ),
    "a prior without width": Mistake(
        (STUDY, "'prior.scale': must be above 0"), study=study("[prior]\nscale = 0\n")
    ),
    "outcome as feature": Mistake(
        (STUDY, "'death'", "[features]"),
        study=replaced("[features]\n", "[features]\ndeath = { levels = [0, 1] }\n"),
    ),
    "everybody colludes": Mistake(
        (STUDY, "colluders", "below the number of sites"),
        study=study(PRIVATE + "colluders = 2\n").replace("chains = 1\n", ""),
    ),
    "private with chains": Mistake(
        (STUDY, "inference.chains", "remove it"),
        study=study(PRIVATE).replace("chains = 1", "chains = 4"),
    ),
    "scores on private rows": Mistake(
        (STUDY, "holdout_is_public"),
        study=study(PRIVATE + "[evaluation]\nholdout = 0.2\nprivate = false\n"),
    ),
    "characteristics by what is no group": Mistake(
        (STUDY, "describe.by", "'age'"),
        study=study(PRIVATE + '[describe]\nby = ["age"]\n'),
    ),
    "a site called csp": Mistake(
        (STUDY, "'csp'", "choose another"), study=replaced("north =", "csp =")
    ),
    "no sites": Mistake(("study 'small'", "[sites]"), study=LOGISTIC),
    "prior for nobody": Mistake(
        ("[prior]", "'agee'", "parameters are"),
        study=study("[prior.parameters]\nagee = { scale = 1.0 }\n"),
    ),
    # the other models
    "a number without its range": Mistake(
        (STUDY, "model.low", "add it"),
        study=modelled('kind = "linear"\noutcome = "age"'),
    ),
    "negative count": Mistake(
        (NORTH, "'death'", "count"),
        study=modelled('kind = "poisson"\noutcome = "death"'),
        change=column("death", f"-{CANARY}"),
    ),
    "half a count": Mistake(
        (NORTH, "'death'", "count"),
        study=modelled('kind = "poisson"\noutcome = "death"'),
        change=column("death", f"0.{CANARY}"),
    ),
    "exposure and offset": Mistake(
        (STUDY, "model", "exposure", "offset"),
        study=modelled(
            'kind = "poisson"\noutcome = "death"\nexposure = "a"\noffset = "b"'
        ),
    ),
    "a number in another unit": Mistake(
        (NORTH, "'death'", "unit"),
        study=modelled('kind = "linear"\noutcome = "death"\nlow = 0\nhigh = 1'),
        change=column("death", CANARY),
    ),
    "cuts that do not grow": Mistake(
        (STUDY, "model", "cuts"),
        study=SURVIVAL.replace(
            'kind = "exponential"', 'kind = "piecewise"\ncuts = [500, 100]'
        )
        + '[sites]\none = { data = "one.csv" }\n',
    ),
    "no cuts": Mistake(
        (STUDY, "model", "cuts", "intervals"),
        study=SURVIVAL.replace('kind = "exponential"', 'kind = "piecewise"')
        + '[sites]\none = { data = "one.csv" }\n',
    ),
    "a column called like a parameter": Mistake(
        ("log_shape", "rename"),
        study=SURVIVAL.replace('kind = "exponential"', 'kind = "weibull"').replace(
            "age =", "log_shape ="
        )
        + PRIVATE
        + '[sites]\none = { data = "one.csv" }\n',
        words=("plan", "study.toml"),
    ),
    "a network without units": Mistake(
        (STUDY, "model.hidden"),
        study=modelled('kind = "neural-logistic"\noutcome = "death"\nhidden = [0]'),
    ),
    # the noise-aware posterior
    "noise-aware without noise": Mistake(
        ("noise-aware", "[privacy]", "remove it"),
        study=LOGISTIC + '[inference]\nmethod = "noise-aware"\n' + SITES,
    ),
    "noise-aware under encryption": Mistake(
        (STUDY, "inference.method", "secure-sum"),
        study=encrypted("", '[inference]\nmethod = "noise-aware"\n'),
    ),
    # the encrypted update
    "a circuit without its protocol": Mistake(
        (STUDY, "study.circuit", "encrypted-update"),
        study=replaced("[model]", 'circuit = "fast"\n[model]'),
    ),
    "an unknown circuit": Mistake(
        (STUDY, "study.circuit", "hardened"), study=encrypted('circuit = "quick"\n')
    ),
    "an encrypted update without a budget": Mistake(
        (STUDY, "encrypted-update", "[privacy]"),
        study=encrypted("").replace(PRIVATE, ""),
    ),
    "an encrypted update that loses sites": Mistake(
        (STUDY, "privacy.dropouts", "set dropouts = 0"),
        study=encrypted("", "dropouts = 1\ncolluders = 0\n"),
    ),
    "an encrypted update with moments": Mistake(
        (STUDY, "private-moments", "public-bounds"),
        study=encrypted("", '[preparation]\nmethod = "private-moments"\n'),
    ),
    "the paper without its table": Mistake(
        (STUDY, "as-printed", "[paper]"), study=encrypted('noise = "as-printed"\n')
    ),
    "the paper's table without the paper": Mistake(
        (STUDY, "[paper]", "remove it"), study=encrypted("", PAPER)
    ),
    "the paper's moments between two": Mistake(
        (STUDY, "accept_two_sites", "public-bounds"),
        study=encrypted(
            'noise = "as-printed"\n',
            PAPER + '[preparation]\nmethod = "as-printed"\nintercept = 0\n',
        ),
    ),
    # tables
    "no such table": Mistake(
        (NORTH, "no such file"), change=lambda f: (f / NORTH).unlink()
    ),
    "unknown ending": Mistake(
        ("north.xls", "csv"),
        study=replaced("north.csv", "north.xls"),
        change=file("north.xls", "x"),
    ),
    "no such column": Mistake((NORTH, "'age'", "header"), change=without("age")),
    "text among numbers": Mistake((NORTH, "'age'"), change=column("age", f"x{CANARY}")),
    "outcome in words": Mistake(
        (NORTH, "'death'", "1 and 0"), change=column("death", f"yes{CANARY}")
    ),
    "quotes in the header": Mistake(
        (NORTH, "'age'", "quotes", "remove"),
        change=lambda f: change_header(f / NORTH, "age", "'age'"),
    ),
    "semicolons and decimal commas": Mistake(
        (NORTH, "not separated by commas", "points"),
        change=lambda f: pd.read_csv(f / NORTH).to_csv(
            f / NORTH, sep=";", decimal=",", index=False
        ),
    ),
    "records four times too many": Mistake(
        ("privacy.records = 3200", "400 rows", "nothing was released"),
        study=LOGISTIC + PRIVATE.replace("800", "3200") + SITES,
    ),
    "records half of what there are": Mistake(
        ("privacy.records = 199", "400 rows", "nothing was released"),
        study=LOGISTIC + PRIVATE.replace("800", "199") + SITES,
    ),
    "unknown level at predict": Mistake(
        ("new.csv", "'sex'", "knows no other", "leave such rows out"),
        ("predict", "before", "new.csv"),
        change=lambda f: new_level(f),
    ),
    "missing value": Mistake(
        (NORTH, "'age'", "features.age.missing"), change=column("age", None)
    ),
    "infinite value": Mistake(
        (NORTH, "'age'", "infinite"), change=column("age", "inf")
    ),
    "unknown level": Mistake(
        (NORTH, "'sex'", "features.sex.levels"), change=column("sex", f"x{CANARY}")
    ),
    "outcome not binary": Mistake(
        (NORTH, "'death'", "0 and 1"), change=column("death", CANARY)
    ),
    "missing outcome": Mistake(
        (NORTH, "'death'", "missing"), change=column("death", None)
    ),
    "no rows": Mistake(
        (NORTH, "no rows"), change=file(NORTH, "age,sex,death\n")
    ),
    "two columns of one name": Mistake(
        (NORTH, "same name"), change=file(NORTH, "age,age,sex,death\n1,1,F,0\n")
    ),
    "no variation": Mistake(
        ("study 'small'", "'death'", "both classes"),
        change=lambda f: [all_dead(f / n) for n in (NORTH, "south.csv")] and None,  # type: ignore[arg-type, func-returns-value]
    ),
    "negative time": Mistake(
        ("one.csv", "'time'", "negative"),
        study=SURVIVAL + QUICK + '[sites]\none = { data = "one.csv" }\n',
        change=lambda f: survival_with(f, f"-{CANARY}"),
    ),
    # running, reading back
    "used folder": Mistake(
        ("out", "not empty", "--out"), change=file("out/mine.txt", "x")
    ),
    "folder below a file": Mistake(
        (NORTH, "cannot be made", "--out"), ("run", STUDY, "--out", f"{NORTH}/out")
    ),
    "spent budget": Mistake(
        ("budget", "ledger"),
        study=LOGISTIC + PRIVATE + '[inference]\nmethod = "averaged"\n' + SITES,
        change=lambda f: spend(f),
    ),
    "nothing to resume": Mistake(("empty", "holds no run"), ("resume", "empty")),
    "nothing to verify": Mistake(("empty", "no transcript"), ("verify", "empty")),
    "no folder to verify": Mistake(
        ("nowhere", "no such folder"), ("verify", "nowhere")
    ),
    "nothing to report": Mistake(("empty", "no finished run"), ("report", "empty")),
    "a run that is not finished": Mistake(
        ("empty", "not finished", "cipherbayes resume"),
        ("report", "empty"),
        change=lambda f: put_bytes(f / "empty" / "run.json", b"{}"),
    ),
    "nothing to watch": Mistake(("empty", "holds no run"), ("watch", "empty")),
    "nothing to predict from": Mistake(
        ("empty", "no finished run"), ("predict", "empty", NORTH)
    ),
    "a damaged result": Mistake(
        ("broken", "run the study again"),
        ("report", "broken"),
        change=file("broken/result.json", "{"),
    ),
    "a result of the future": Mistake(
        ("broken", "version"),
        ("report", "broken"),
        change=file("broken/result.json", json.dumps({"version": 99})),
    ),
    "no ledger": Mistake(("none.ledger",), ("ledger", "none.ledger")),
    "no keys": Mistake(("holds no keys",), ("keys", "empty")),
    "init over a study": Mistake(
        (STUDY, "exists already", "--out"), ("init", NORTH)
    ),
    "init without a header": Mistake(
        ("bare.csv", "header line"),
        ("init", "bare.csv", "--out", "new.toml"),
        change=file("bare.csv", "1,2\n3,4\n"),
    ),
    # several machines
    "kits over kits": Mistake(
        ("kits", "not empty", "--out"),
        ("deploy", STUDY),
        study=study(PRIVATE).replace("rounds = 50\nchains = 1\n", ""),
        change=file("kits/mine.txt", "x"),
    ),
    "kits without sites": Mistake(
        ("no sites", "[sites]"), ("deploy", STUDY), study=LOGISTIC + PRIVATE
    ),
    "kits for no host": Mistake(
        ("--host", "host name"),
        ("deploy", STUDY, "--host", "not a host"),
        study=study(PRIVATE).replace("rounds = 50\nchains = 1\n", ""),
    ),
    "a folder that is no kit": Mistake(
        ("empty", "not a party's kit"), ("site", "enrol", "empty")
    ),
    "submitting without a kit": Mistake(
        ("kits", "not a party's kit"),
        ("submit", STUDY, "--out", "out"),
        study=study(PRIVATE).replace("rounds = 50\nchains = 1\n", ""),
    ),
    # experiments
    "reproducing without the data": Mistake(
        ("--data", "PhysioNet"), ("reproduce", "logistic", "--out", "new")
    ),
    "calibration over something else": Mistake(
        ("cells.jsonl", "line 1"),
        ("calibrate", "--quick", "--results", "cells.jsonl"),
        change=file("cells.jsonl", "no JSON\n"),
    ),
    "an option of --table without one": Mistake(
        ("--epsilon", "give a --table"), ("calibrate", "--quick", "--epsilon", "3")
    ),
    "survival without times": Mistake(
        ("--times",),
        ("predict", "out", "one.csv"),
        change=lambda f: finished_survival(f),
    ),
    "physionet without its archive": Mistake(
        ("--from", "set-a"), ("data", "physionet2012")
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CATALOGUE)
def test_a_mistake_ends_in_one_line_with_its_place_and_remedy(
    name: str, tmp_path: Path
) -> None:
    mistake = CATALOGUE[name]
    for seed, site in enumerate(("north", "south")):
        logistic_frame(200, seed=seed).to_csv(tmp_path / f"{site}.csv", index=False)
    (tmp_path / "empty").mkdir()
    text = study("") if mistake.study is None else mistake.study
    if text:
        (tmp_path / STUDY).write_text(text, encoding="utf-8")
    if mistake.change is not None:
        mistake.change(tmp_path)
    done = cipherbayes(*mistake.words, cwd=tmp_path)
    line = done.stderr
    assert done.returncode == 1, done.stdout + line
    assert line.startswith("error: ")
    assert line.count("\n") == 1, line
    assert "Traceback" not in line
    assert CANARY not in line
    for said in mistake.says:
        assert said in line, line
    assert re.search(r"[;:(]", line.removeprefix("error: ")), line
