"""``cipherbayes plan``: what a study will cost and whether it can work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from cipherbayes.cli.console import console

if TYPE_CHECKING:
    from cipherbayes.protocols.forecast import Outlook
    from cipherbayes.protocols.plan import StudyPlan
    from cipherbayes.protocols.releases import Phase
    from cipherbayes.study.schema import Study

NO_PARAMETERS = {
    "scheme": None,
    "ring": None,
    "modulus_bits": None,
    "security_bits": None,
}
# Section 4.1 and appendix B of the paper.
PAPER_PARAMETERS = {
    "scheme": "CKKS",
    "ring": 16384,
    "modulus_bits": 380,
    "security_bits": 128,
}


def plan(
    study: Annotated[Path, typer.Argument(help="The study file (TOML).")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say what a study will cost, before any data is read.

    Rounds, noise, epsilon as it grows, noise against signal, encryption and bytes.
    """
    from cipherbayes.study.schema import Study

    loaded = Study.load(study)
    if loaded.as_printed:
        document, lines = _as_printed(loaded)
    elif loaded.private:
        document, lines = _private(loaded)
    else:
        document, lines = _without_privacy(loaded)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
        return
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    for warning in document["warnings"]:
        said = f"[yellow]warning:[/yellow] {escape(warning)}"
        console.print(said, highlight=False, soft_wrap=True)


def _document(**known: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {
        "rounds": None,
        "noise_multiplier": None,
        "epsilon": None,
        "delta": None,
        "certified": False,
        "paper_claim": None,
        "parameters": NO_PARAMETERS,
        "bytes_per_round_site": 0,
        "warnings": [],
    }
    return empty | known


def _without_privacy(study: Study) -> tuple[dict[str, Any], list[str]]:
    warnings = ["no [privacy] table: whoever reads the result learns about the rows"]
    lines = [
        f"[bold]{study.name}[/bold]: {study.model.kind}, pooled, without privacy",
        "nothing is noised and nothing is charged",
    ]
    return _document(rounds=study.inference.rounds, warnings=warnings), lines


def _private(study: Study) -> tuple[dict[str, Any], list[str]]:
    from cipherbayes.protocols.forecast import advice, look_ahead
    from cipherbayes.protocols.plan import plan_study

    planned = plan_study(study)
    outlook = look_ahead(planned)
    release = planned.gradient.privacy
    growth = epsilon_by_tenths(planned)
    parameters, size = _encryption(planned)
    assert study.privacy is not None
    document = _document(
        rounds=planned.rounds,
        noise_multiplier=planned.noise_multiplier,
        epsilon=growth[-1][1],
        delta=study.privacy.delta,
        certified=_certified(planned),
        parameters=parameters,
        bytes_per_round_site=size,
        warnings=[*advice(planned, outlook), *_cautions(planned)],
        epsilon_after={str(rounds): spent for rounds, spent in growth},
        sampling_rate=release.rate,
        clip=release.clip,
        dimension=release.dimension,
        signal_over_noise=outlook.ratio,
        width_ratio=outlook.width_ratio,
    )
    return document, _lines(planned, outlook, growth, parameters, size)


def _certified(planned: StudyPlan) -> bool:
    """Whether a run of this plan will be certified."""
    if planned.study.protocol != "encrypted-update":
        return not planned.study.insecure
    from cipherbayes.protocols.encrypted_update.plan import EncryptedPlan

    assert isinstance(planned, EncryptedPlan)
    return planned.certified


def epsilon_by_tenths(planned: StudyPlan) -> list[tuple[int, float]]:
    """ε spent after each tenth of the rounds."""
    tenths = sorted({-(-planned.rounds * k // 10) for k in range(1, 11)})
    return [(rounds, planned.epsilon_after(rounds)) for rounds in tenths]


def _encryption(planned: StudyPlan) -> tuple[dict[str, Any], int]:
    if planned.study.protocol == "encrypted-update":
        return _ckks(planned)
    parameters = planned.parameters
    if parameters is None:
        return dict(NO_PARAMETERS), 0
    described = {
        "scheme": "BFV",
        "ring": parameters.ring,
        "modulus_bits": parameters.modulus_bits,
        "security_bits": parameters.security_bits,
        "id": parameters.id,
    }
    return described, _message(planned, planned.gradient)


def _message(planned: StudyPlan, phase: Phase) -> int:
    """Bytes of a site's message in a round of a phase."""
    assert planned.parameters is not None
    # Frames, names and a signature around the coefficients take some 350 bytes.
    return planned.parameters.payload_bytes(phase.dimension) + 350


def _traffic(planned: StudyPlan) -> int:
    """Bytes that all sites send in all rounds; and get, where they check them."""
    if planned.study.protocol == "encrypted-update":
        sites = planned.gradient.privacy.sites
        return planned.rounds * sites * _ckks(planned)[1] * (1 + sites)
    sizes = (p.rounds * _message(planned, p) for p in planned.phases)
    return sum(sizes) * planned.gradient.privacy.sites


def _noise(planned: StudyPlan) -> str:
    release = planned.gradient.privacy
    weighting = planned.gradient.weighting
    if weighting is None:
        return (
            f"{release.noise_multiplier:.4g} × the clipping norm {release.clip:g} in "
            "every round"
        )
    matrix = planned.gradient.information
    assert matrix is not None
    return (
        f"{release.noise_multiplier:.4g} × {release.clip:.3g} on scores, "
        f"{matrix.noise_multiplier:.4g} × {matrix.clip:.3g} on information in the "
        f"last {planned.gradient.rounds} rounds; rows beyond norm "
        f"{weighting.clip:.3g} count less"
    )


def _cautions(planned: StudyPlan) -> list[str]:
    if planned.study.protocol != "encrypted-update":
        return []
    from cipherbayes.protocols.encrypted_update.certificate import cautions

    point = "this protocol gives a point estimate without intervals"
    return [*cautions(planned), point]


def _ckks(planned: StudyPlan) -> tuple[dict[str, Any], int]:
    """Circuit, parameters and bytes of an encrypted update."""
    from cipherbayes.protocols.encrypted_update.plan import EncryptedPlan

    assert isinstance(planned, EncryptedPlan)
    circuit = planned.circuit
    parameters, dimension = circuit.parameters, circuit.update.dimension
    described = {
        "scheme": "CKKS",
        "ring": parameters.ring,
        "modulus_bits": parameters.modulus_bits,
        "security_bits": parameters.security_bits,
        "id": parameters.id,
        "circuit": planned.study.circuit,
        "flooding_bits": planned.flooding_bits,
    }
    # Frames, names and signatures of a reply and an attestation take some 700 bytes.
    payload = parameters.payload_bytes(dimension, 2, parameters.levels)
    return described, payload + 700


def _lines(
    planned: StudyPlan,
    outlook: Outlook,
    growth: list[tuple[int, float]],
    parameters: dict[str, Any],
    size: int,
) -> list[str]:
    study, release = planned.study, planned.gradient.privacy
    privacy = study.privacy
    assert privacy is not None
    records = f"{privacy.records:,}" if privacy.records else "released with noise"
    pooled = study.protocol == "pooled"
    sites = "one place" if pooled else f"{len(study.sites)} sites"
    spent = ", ".join(f"{e:.2g} after {n}" for n, e in growth)
    lines = [
        f"[bold]{study.name}[/bold]: {study.model.kind}, {study.protocol}, "
        f"{sites}, N = {records}, {release.dimension} parameters",
        f"promise     ({privacy.epsilon:g}, {privacy.delta:g})-differential privacy, "
        "adding or removing one record"
        + ("" if _certified(planned) else ", [bold red]not certified[/bold red]"),
        f"releases    {planned.rounds} rounds of {study.method}"
        + (
            f", each on {100 * release.rate:.3g} % of the rows"
            if release.rate < 1
            else ""
        ),
        f"noise       {_noise(planned)}",
        f"epsilon     {spent}",
        f"outlook     signal/noise {outlook.ratio:.3g} for an effect of the prior's "
        f"scale; intervals at least {outlook.width_ratio:.2f} × those without privacy",
        f"            (noise {outlook.noise:.3g}, typical signal {outlook.signal:.3g}, "
        f"largest possible {outlook.largest:.3g}, all rounds together)",
    ]
    if not pooled:
        lines += [
            f"colluders   {release.colluders} of {release.sites} sites; "
            f"{release.dropouts} may be lost",
            f"encryption  {parameters['scheme']}, ring {parameters['ring']}, "
            f"{parameters['modulus_bits']} bits, "
            f"{parameters['security_bits']}-bit security"
            + (
                f", circuit {parameters['circuit']}, "
                f"{parameters['flooding_bits']} bits of flooding"
                if "circuit" in parameters
                else ""
            ),
            f"traffic     {size:,} bytes from each site in a round, about "
            f"{_traffic(planned) / 1e6:,.0f} MB in all",
        ]
    return lines


def _as_printed(study: Study) -> tuple[dict[str, Any], list[str]]:
    from cipherbayes.protocols.as_printed.plan import (
        PrintedPlan,
        printed_cautions,
    )
    from cipherbayes.protocols.plan import plan_study

    planned = plan_study(study)
    assert isinstance(planned, PrintedPlan)
    setting, claim, paper = planned.setting, planned.claim, study.paper
    assert paper is not None
    warnings = printed_cautions(planned)
    document = _document(
        rounds=claim.rounds,
        noise_multiplier=setting.noise_multiplier(1),
        epsilon=claim.honest_epsilon,
        delta=setting.delta,
        paper_claim={
            "claimed_epsilon": claim.claimed_epsilon,
            "honest_epsilon": claim.honest_epsilon,
        },
        parameters=PAPER_PARAMETERS,
        # Two polynomials of 7 primes (55 and 6 × 45 bits) in 64-bit words.
        bytes_per_round_site=2 * 16384 * 7 * 8,
        warnings=warnings,
    )
    lines = [
        f"[bold]{study.name}[/bold]: {study.model.kind}, the paper's method as printed",
        f"claimed     ε = {claim.claimed_epsilon:g} (Theorem 4, c = {paper.scale:g})",
        f"honest      ε ≈ {claim.honest_epsilon:,.0f} over {claim.rounds:,} rounds, "
        f"{claim.first_round_epsilon:,.0f} from the first alone, "
        "[bold red]not certified[/bold red]",
        "encryption  CKKS, ring 16384, 380 bits, 128-bit security",
    ]
    return document, lines
