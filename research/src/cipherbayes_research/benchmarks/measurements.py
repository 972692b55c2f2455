"""What the benchmarks write down: the shapes of their JSON.

Times are CPU milliseconds unless a name says otherwise, medians over the rounds.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict


class Variant(TypedDict):
    """One way to do a round: ``plaintext``, ``secure-sum`` or a CKKS circuit.

    ``site_ms`` is all of a site's work, gradient and noise included, and only the
    protocols have it; key sizes, bounds and ``…_online_ms`` only the circuits. The move
    of θ is in ``server_ms`` of ``plaintext``, and beside that of ``secure-sum``
    (``move_ms``), so that ratios to ``literal`` are of cryptography on both sides.
    Ratios are to ``literal``, and None where it was not run.
    """

    server_ms: float
    encrypt_ms: float
    decrypt_ms: float
    message_bytes: int
    max_error_over_noise: float
    iteration_ms: float
    server_ratio: NotRequired[float | None]
    iteration_ratio: NotRequired[float | None]
    iteration_ratio_all_cpu: NotRequired[float]
    iteration_ratio_both_prepared: NotRequired[float]
    site_ms: NotRequired[float]
    noise_ms: NotRequired[float]
    move_ms: NotRequired[float]
    iteration_over_plaintext: NotRequired[float]
    over_unprotected: NotRequired[float]
    server_mean_ms: NotRequired[float | None]
    server_prepare_ms: NotRequired[float]
    encrypt_online_ms: NotRequired[float]
    decrypt_online_ms: NotRequired[float]
    iteration_online_ms: NotRequired[float]
    output_bytes: NotRequired[int]
    key_generation_s: NotRequired[float]
    public_key_bytes: NotRequired[int]
    evaluation_key_bytes: NotRequired[int]
    noise_bound: NotRequired[float]
    flooding_over_noise: NotRequired[dict[str, float]]


class Setting(TypedDict):
    """All variants with the same parameters, sites and rows."""

    d: int
    sites: int
    rows_per_site: int
    variants: dict[str, Variant]


class SiteCrypto(TypedDict):
    """A site's cryptography beside one bare encryption."""

    bare_encryption_ms: float
    site_crypto_ms: float
    site_crypto_over_bare: float
    noise_ms: float


class Bench(Setting):
    """``cipherbayes bench``: the setting that was asked for, and others around it.

    ``steps_ms`` says where the time of a secure-sum round goes: of one site, before it
    is asked and afterwards, of the server and of the CSP. The steps of each add up to
    what it takes.
    """

    steps_ms: dict[str, dict[str, float]]
    site_crypto: SiteCrypto
    scaling: list[Setting]


class Costs(TypedDict):
    """What an iteration of a protocol costs."""

    protocol: str
    server_ms: float
    csp_ms: float
    site_ms: NotRequired[float]
    iteration_ms: NotRequired[float]
    message_bytes: NotRequired[int]


class GrowthRow(Costs):
    """The costs where one quantity has another value."""

    quantity: str
    value: int


class GrowthBase(TypedDict):
    """What is held still while another quantity varies."""

    d: int
    sites: int
    rows: int


class Growth(TypedDict):
    """``cipherbayes bench --scaling``."""

    base: GrowthBase
    rows: list[GrowthRow]
