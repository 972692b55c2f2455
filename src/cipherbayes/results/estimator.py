"""A private logistic regression that scikit-learn's pipelines and searches take.

For one table in one place. Needs scikit-learn (the extra ``sklearn``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa

from cipherbayes.errors import RunError
from cipherbayes.models import Logistic
from cipherbayes.results.run import run
from cipherbayes.study.protocol_rules import CURATED_DEFAULT
from cipherbayes.study.schema import Study
from cipherbayes.typing import Floats

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError:
    raise RunError(
        "needs scikit-learn",
        where="PrivateLogistic",
        remedy='pip install "cipherbayes[sklearn]"',
    ) from None


class PrivateLogistic(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Bayesian logistic regression of one table under differential privacy.

    Parameters
    ----------
    epsilon, delta
        The budget of one fit; ``epsilon=None`` fits without privacy.
    low, high
        Public range of the columns: a number for all, or one for each. Values beyond
        it are clipped. Take it from the code book, never from the rows.
    records
        Public number of rows; left out, it is released with noise.
    prior_scale
        Scale of the coefficients' normal prior, on columns scaled to [-1, 1].
    method, rounds
        As in a study's ``[inference]``.

    Attributes
    ----------
    result_
        The :class:`~cipherbayes.results.result.Result`: posterior, intervals,
        certificate, warnings.
    classes_
        The two labels, in order.

    Notes
    -----
    *Formal guarantees.* One :meth:`fit` is a study of protocol ``pooled``: what is
    fitted is (ε, δ)-differentially private for adding or removing one row.
    *Edge cases.* Every fit spends ε anew, and nothing keeps count over fits: under
    cross-validation or a search the rows pay once for each. The names of the classes
    and how many columns there are count as public. Errors about the rows (one class
    only, a missing value) are seen by whoever calls.

    Examples
    --------
    >>> from cipherbayes import PrivateLogistic
    >>> model = PrivateLogistic(epsilon=2.0, low=[18, 0], high=[100, 1])
    >>> model.fit(X, y).predict_proba(X)  # doctest: +SKIP
    """

    def __init__(
        self,
        epsilon: float | None = 1.0,
        delta: float = 1e-6,
        *,
        low: float | Sequence[float] = -5.0,
        high: float | Sequence[float] = 5.0,
        records: int | None = None,
        prior_scale: float = 1.0,
        method: str | None = None,
        rounds: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.low = low
        self.high = high
        self.records = records
        self.prior_scale = prior_scale
        self.method = method
        self.rounds = rounds

    def fit(self, X: Any, y: Any) -> Self:
        """Fit; this spends ε."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y")
        if kind != "binary":
            raise ValueError(
                "Only binary classification is supported. The type of the target is "
                f"{kind}."
            )
        self.classes_, codes = np.unique(y, return_inverse=True)
        if self.classes_.size < 2:
            raise ValueError(
                "Classifier can't train when only one class is present: y must have "
                "two classes"
            )
        names = self._names()
        outcome = "y"
        while outcome in names:  # a column of the frame has that name
            outcome += "_"
        table = _table(X, names).append_column(
            outcome, pa.array(codes.astype(np.float64))
        )
        self.result_ = run(self._study(names, outcome), {"table": table})
        return self

    def predict_proba(self, X: Any) -> Floats:
        """Posterior predictive probability of each class, in the order of classes_."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        second = self.result_.predict(_table(X, self._names()))["mean"]
        return np.stack([1.0 - second, second], axis=1)

    def predict(self, X: Any) -> Any:
        """The more probable class of each row."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def _names(self) -> list[str]:
        """The frame's own columns; x0, x1, … where there were none."""
        known = getattr(self, "feature_names_in_", None)
        if known is None:
            return [f"x{j}" for j in range(self.n_features_in_)]
        return [str(name) for name in known]

    def _study(self, names: Sequence[str], outcome: str) -> Study:
        width = len(names)
        low, high = np.broadcast_to(self.low, width), np.broadcast_to(self.high, width)
        features = {
            name: {"low": float(a), "high": float(b)}
            for name, a, b in zip(names, low, high, strict=True)
        }
        settings = {"method": self.method, "rounds": self.rounds}
        budget = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "records": self.records,
        }
        return Study.model_validate(
            {
                "study": {"name": "private-logistic", "protocol": CURATED_DEFAULT},
                "model": Logistic(outcome=outcome),
                "features": features,
                "prior": {"scale": self.prior_scale},
                "privacy": None if self.epsilon is None else budget,
                "inference": {k: v for k, v in settings.items() if v is not None},
            }
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.non_deterministic = self.epsilon is not None
        return tags


def _table(values: Floats, names: Sequence[str]) -> pa.Table:
    columns = [pa.array(column) for column in np.ascontiguousarray(values).T]
    return pa.Table.from_arrays(columns, names=list(names))
