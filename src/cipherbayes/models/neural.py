"""A small neural network in the place of the linear predictor."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from cipherbayes.errors import StudyError
from cipherbayes.models import kernels
from cipherbayes.models.base import Model
from cipherbayes.models.design import Design
from cipherbayes.models.logistic import Logistic
from cipherbayes.models.metrics import Metrics
from cipherbayes.models.outcomes import OutcomeRange
from cipherbayes.models.registry import register
from cipherbayes.models.rows import RecordGradients, Rows
from cipherbayes.models.survival import SurvivalCurves
from cipherbayes.models.weibull import Weibull
from cipherbayes.typing import Floats

CHUNK_ROWS = 512
"""Records that one call of the compiled network takes, the last ones padded with
zeros. One program for all tables: another size would be another program, whose
roundings differ. A multiple of every vector register's length, so that a loop over
the records has no tail."""

OUTPUT = Design(("eta",), np.zeros(1), np.ones(1), None)
"""What the plain model of a network's output sees."""


class Neural(Model):
    """A model whose linear predictor is a network of the columns.

    eta = x'beta + z'v / sqrt(H), z = tanh(W x) of the last of the hidden layers, of
    width H; each deeper layer has a bias. The likelihood of (eta, outcome) and its
    derivative s in eta are those of the plain model ``head``; the gradient of a
    record is s times the gradient of eta, which autodiff (JAX) gives for each record
    by itself, so that it is clipped, noised and summed like any other. Where nothing is
    clipped only sums are wanted, and :meth:`gradient_sums` takes matrix products.

    The linear part makes the plain model a special case (v = 0). A network has no
    use for a zero start, where its gradient in W vanishes with v, so W = W0 + theta
    with W0 a public draw that every party derives from ``seed``: the prior of theta
    is centred at W0, of v at 0.

    Its weights mean nothing one by one and are reported as they are, on the prepared
    scale; use predictions. JAX is imported when the first gradient is taken.

    Parameters
    ----------
    hidden
        Widths of the hidden layers.
    seed
        Of the public W0; not a secret.
    """

    near_gaussian: ClassVar[bool] = False
    response: ClassVar[tuple[str, ...]] = ()  # it learns curves and products itself
    hidden: tuple[Annotated[int, Field(ge=1, le=256)], ...] = Field(
        default=(8,), min_length=1, max_length=4
    )
    seed: int = Field(default=1, ge=0)

    @property
    @abstractmethod
    def head(self) -> Model:
        """The plain model of the network's output."""

    def prepare_outcome(self, raw: Mapping[str, Floats]) -> dict[str, Floats]:
        return self.head.prepare_outcome(raw)

    def out_of_range(self, raw: Mapping[str, Floats]) -> str | None:
        return self.head.out_of_range(raw)

    def check_outcomes(self, outcome: Mapping[str, Floats]) -> None:
        self.head.check_outcomes(outcome)

    def parameters(self, design: Design) -> tuple[str, ...]:
        names, inputs = list(design.names), list(design.names)
        for depth, width in enumerate(self.hidden, start=1):
            names += [f"w{depth}[{k},{i}]" for k in range(width) for i in inputs]
            inputs = ["bias", *(str(k) for k in range(width))]
        names += [f"v[{k}]" for k in range(self.hidden[-1])]
        return (*names, *self.head.extra_parameters())

    def log_likelihood(self, theta: Floats, rows: Rows) -> Floats:
        eta, _ = self._network(theta, rows, gradients=False)
        return self.head.log_likelihood(*self._output(theta, rows, eta))

    def gradients(self, theta: Floats, rows: Rows) -> RecordGradients:
        eta, slopes = self._network(theta, rows, gradients=True)
        head = self.head.gradients(*self._output(theta, rows, eta))
        extra = head.column_scores * slopes
        if head.extra is not None:
            extra = np.concatenate([extra, head.extra])
        return RecordGradients(rows, score=head.score, extra=extra)

    def gradient_sum(self, theta: Floats, rows: Rows) -> Floats:
        (total,) = self.gradient_sums(theta[None], rows)
        return np.asarray(total)

    def gradient_sums(self, thetas: Floats, rows: Rows) -> Floats:
        """The same sums by matrix products over all records and thetas at once.

        With D_l the derivative of the log-likelihoods in the layer's linear parts
        W_l z_(l-1), one column a record, D_L = (v / sqrt(H)) s' * (1 - z_L²) and
        D_(l-1) = W_l' D_l * (1 - z_(l-1)²); the gradient in W_l is D_l z_(l-1)'.
        """
        count, width = len(thetas), rows.design.width
        weights = self._weights(thetas, width)
        layers: list[Floats] = []
        outputs: list[Floats] = []
        used = 0
        for depth, units in enumerate(self.hidden):
            biased = int(depth > 0)
            wide = self.hidden[depth - 1] + 1 if biased else width
            layer = weights[:, used : used + units * wide].reshape(count, units, wide)
            used += units * wide
            layers.append(layer[:, :, biased:])
            if biased:
                linear = layers[-1] @ outputs[-1] + layer[:, :, :1]
            else:  # one product for all thetas
                linear = (layer.reshape(-1, wide) @ rows.x).reshape(count, units, -1)
            outputs.append(_tanh(linear))
        out = weights[:, used:, None] / np.sqrt(self.hidden[-1])
        eta = thetas[:, :width] @ rows.x
        eta += (out.transpose(0, 2, 1) @ outputs[-1])[:, 0]
        score, extra = self._scores(thetas, rows, eta)
        last = (outputs[-1] @ score[:, :, None])[:, :, 0] / np.sqrt(self.hidden[-1])
        parts = [*extra, last]
        slopes = out * score[:, None]
        for depth in reversed(range(len(layers))):
            curved = outputs[depth] * outputs[depth]
            slopes *= np.subtract(1.0, curved, out=curved)
            if depth > 0:
                gradient = slopes @ outputs[depth - 1].transpose(0, 2, 1)
                gradient = np.concatenate(
                    [slopes.sum(axis=2, keepdims=True), gradient], axis=2
                )
                slopes = layers[depth].transpose(0, 2, 1) @ slopes
            else:
                gradient = slopes.reshape(-1, rows.count) @ rows.x.T
            parts.append(gradient.reshape(count, -1))
        parts.append(score @ rows.x.T)
        return np.concatenate(parts[::-1], axis=1)

    def _scores(
        self, thetas: Floats, rows: Rows, eta: Floats
    ) -> tuple[Floats, list[Floats]]:
        """Derivatives of the records' log-likelihoods in eta, and sums of those in
        the head's other parameters, if there are any; one row a theta."""
        if not self.head.extra_parameters():
            # To a head without parameters thetas are so many records more.
            told = {name: np.tile(y, len(eta)) for name, y in rows.outcome.items()}
            repeated = Rows(rows.design, rows.x, told, rows.squared_norms)
            head = self.head.gradients(
                *self._output(thetas[0], repeated, eta.reshape(-1))
            )
            return head.column_scores.reshape(eta.shape), []
        score, extra = np.empty_like(eta), []
        for k, theta in enumerate(thetas):
            head = self.head.gradients(*self._output(theta, rows, eta[k]))
            score[k] = head.column_scores
            if head.extra is not None:
                extra.append(head.extra.sum(axis=1))
        return score, [np.array(extra)]

    def curvature(self, design: Design) -> float:
        return self.head.curvature(design)

    def largest_curvature(self, design: Design) -> float:
        # tanh(W x) is about as large as x, and so, for |v| ~ 1, is its slope in W.
        return 2.0 * self.head.largest_curvature(design)

    def predictor(self, theta: Floats, rows: Rows) -> Floats:
        """eta of each record, shape ``(m,)``."""
        return self._network(theta, rows, gradients=False)[0]

    def predict(self, draws: Floats, rows: Rows, times: Floats | None = None) -> Floats:
        return self.each_draw(draws, rows, lambda d, r: self.head.predict(d, r, times))

    def fitted(self, theta: Floats, rows: Rows) -> Floats | None:
        eta, _ = self._network(theta, rows, gradients=False)
        return self.head.fitted(*self._output(theta, rows, eta))

    def metrics(self, outcome: Mapping[str, Floats], fitted: Floats) -> Metrics:
        return self.head.metrics(outcome, fitted)

    def to_user_scale(self, draws: Floats, design: Design) -> Floats:
        """The weights as they are."""
        return np.array(draws)

    def each_draw(
        self, draws: Floats, rows: Rows, function: Callable[[Floats, Rows], Floats]
    ) -> Floats:
        """What the head says of each draw's own output."""
        parts = []
        for theta in draws:
            eta, _ = self._network(theta, rows, gradients=False)
            head, output = self._output(theta, rows, eta)
            parts.append(function(head[None], output))
        return np.concatenate(parts)

    def _output(self, theta: Floats, rows: Rows, eta: Floats) -> tuple[Floats, Rows]:
        """The head's parameters and records: one column, eta, with coefficient 1."""
        extra = theta[theta.size - len(self.head.extra_parameters()) :]
        with np.errstate(over="ignore"):
            output = Rows(OUTPUT, eta[None], rows.outcome, eta**2)
        return np.append(1.0, extra), output

    def _weights(self, theta: Floats, width: int) -> Floats:
        """W and v of all layers, W0 added."""
        start = initial_weights(self.seed, (width, *self.hidden))
        weights = theta[..., width : width + start.size + self.hidden[-1]].copy()
        weights[..., : start.size] += start
        return weights

    def _network(
        self, theta: Floats, rows: Rows, *, gradients: bool
    ) -> tuple[Floats, Floats]:
        """eta of each record; its gradient in all weights but beta, ``(q, m)``."""
        jax = _jax()
        width, count = rows.design.width, rows.count
        weights = self._weights(theta, width)
        function = _compiled((width, *self.hidden), gradients)
        network = np.empty(count)
        extra = np.empty((weights.size if gradients else 0, count))
        for first in range(0, count, CHUNK_ROWS):
            chunk = slice(first, min(first + CHUNK_ROWS, count))
            size = chunk.stop - first
            x = np.zeros((width, CHUNK_ROWS))
            x[:, :size] = rows.x[:, chunk]
            with jax.enable_x64(True):
                output, *slopes = function(weights, x)
            network[chunk] = np.asarray(output)[:size]
            if gradients:
                extra[:, chunk] = np.asarray(slopes[0])[:, :size]
        eta: Floats = kernels.linear_predictor(theta[:width], rows.x) + network
        return eta, extra


@register
class NeuralLogistic(Neural):
    """A binary outcome with log odds eta, a network of the columns.

    Parameters
    ----------
    outcome
        Column of zeros and ones.
    """

    roles: ClassVar[Mapping[str, str]] = Logistic.roles
    family: ClassVar[str] = Logistic.family
    kind: Literal["neural-logistic"] = "neural-logistic"
    outcome: str

    @property
    def head(self) -> Logistic:
        return Logistic(outcome=self.outcome)


@register
class NeuralWeibull(Neural, SurvivalCurves):
    """A survival time with hazard k t^(k-1) exp(eta), eta a network of the columns.

    Parameters
    ----------
    time, event, horizon
        As in every survival model.
    """

    roles: ClassVar[Mapping[str, str]] = Weibull.roles
    family: ClassVar[str] = Weibull.family
    predicts_over_time: ClassVar[bool] = True
    kind: Literal["neural-weibull"] = "neural-weibull"
    time: str
    event: str
    horizon: float = Field(gt=0.0, allow_inf_nan=False)

    @property
    def head(self) -> Weibull:
        return Weibull(time=self.time, event=self.event, horizon=self.horizon)

    @property
    def outcome_ranges(self) -> Mapping[str, OutcomeRange]:
        return self.head.outcome_ranges

    def reference_times(self) -> Floats:
        return self.head.reference_times()

    def median(self, draws: Floats, rows: Rows) -> Floats:
        return self.each_draw(draws, rows, self.head.median)


@cache
def initial_weights(seed: int, widths: tuple[int, ...]) -> Floats:
    """W0: uniform with variance 1 / inputs, from SHA-256, alike at every party.

    Not from numpy's generator, whose stream may change between releases. Biases are
    zero.
    """
    layers = []
    for depth, (inputs, units) in enumerate(pairwise(widths), start=1):
        words = [
            hashlib.sha256(f"cipherbayes W0 {seed} {depth} {i}".encode()).digest()
            for i in range(units * inputs)
        ]
        integers = np.array([int.from_bytes(word[:6]) for word in words])
        uniform = (integers + 0.5) / 2.0**48
        layer = np.sqrt(12.0 / inputs) * (uniform - 0.5).reshape(units, inputs)
        bias = np.zeros((units, 0 if depth == 1 else 1))
        layers.append(np.hstack([bias, layer]).reshape(-1))
    weights: Floats = np.concatenate(layers)
    weights.flags.writeable = False
    return weights


def _tanh(values: Floats) -> Floats:
    """tanh = 1 - 2 / (1 + exp(2 x)), to within two roundings of one; in half the time
    of numpy's."""
    result = 2.0 * values
    with np.errstate(over="ignore"):
        np.exp(result, out=result)
    result += 1.0
    np.divide(-2.0, result, out=result)
    result += 1.0
    return result


@cache
def _compiled(widths: tuple[int, ...], gradients: bool) -> Callable[..., Any]:
    """(eta,) of a chunk of records, or (eta, gradients), records on the last axis.

    Products are written out as multiplications and sums for each record by itself:
    a matrix product of the whole chunk may treat its last columns differently.
    """
    jax = _jax()

    def network(weights: Any, x: Any) -> Any:
        start = 0
        for depth, (inputs, units) in enumerate(pairwise(widths), start=1):
            wide = inputs if depth == 1 else inputs + 1
            layer = weights[start : start + units * wide].reshape(units, wide)
            start += units * wide
            linear = (layer[:, wide - inputs :] * x).sum(axis=1)
            x = jax.numpy.tanh(linear if depth == 1 else linear + layer[:, 0])
        return (weights[start:] * x).sum() / np.sqrt(widths[-1])

    def one(weights: Any, x: Any) -> Any:
        if gradients:
            return jax.value_and_grad(network)(weights, x)
        return (network(weights, x),)

    compiled: Callable[..., Any] = jax.jit(
        jax.vmap(one, in_axes=(None, 1), out_axes=-1)
    )
    return compiled


def _jax() -> Any:
    """JAX, which only networks need."""
    try:
        import jax
    except ImportError:
        raise StudyError(
            "a neural model needs JAX, which is not installed",
            where="[model]",
            remedy="pip install 'cipherbayes[neural]'",
        ) from None
    return jax
