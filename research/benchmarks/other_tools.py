"""A round of other tools on the same model and rows: ``python other_tools.py nvflare``.

Logistic regression, one gradient of every site summed at a server: 184 parameters,
1,000 rows a site. CPU time of one round, medians; bytes that a site sends and gets.

``nvflare``
    NVIDIA FLARE's own filters for homomorphic encryption with TenSEAL, with the
    parameters of its provisioning: sites encrypt, the server adds, sites decrypt. No
    noise. Needs nvflare and tenseal.
``flower``
    Flower's SecAgg+ workflow with its local differential privacy, messages handed over
    in this process. Needs flwr, which goes into an environment of its own.
``cipherbayes``
    The secure sum of this package, noise and ledgers included.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

DIMENSION, ROWS, ROUNDS, WARM_UP = 184, 1_000, 12, 3
CLIP, EPSILON, DELTA = 1.0, 1.0, 1e-6


def rows_of(site: int) -> tuple[Any, Any]:
    """Uniform columns and an outcome that depends on some of them."""
    rng = np.random.default_rng(site)
    x = rng.uniform(-1.0, 1.0, (ROWS, DIMENSION)) / np.sqrt(DIMENSION)
    y = rng.random(ROWS) < 1.0 / (1.0 + np.exp(-4.0 * x[:, :8].sum(axis=1)))
    return x, y.astype(np.float64)


def mean_gradient(theta: Any, x: Any, y: Any) -> Any:
    """Mean of the log-likelihood's gradients; no row's is longer than 1."""
    return x.T @ (y - 1.0 / (1.0 + np.exp(-x @ theta))) / len(y)


class Times:
    """CPU milliseconds of each kind of work, one number for a round."""

    def __init__(self) -> None:
        self.now: dict[str, float] = {}
        self.rounds: list[dict[str, float]] = []

    def spend(self, who: str, work: Callable[[], Any]) -> Any:
        """The result of some work, whose time is added to somebody's."""
        started = time.process_time()
        result = work()
        spent = 1e3 * (time.process_time() - started)
        self.now[who] = self.now.get(who, 0.0) + spent
        return result

    def next_round(self) -> None:
        self.rounds.append(self.now)
        self.now = {}

    def median(self, who: str) -> float:
        return statistics.median(each[who] for each in self.rounds[WARM_UP:])


def nvflare(sites: int) -> dict[str, Any]:
    """Rounds of NVFLARE's encryptor, aggregator and decryptor."""
    import tenseal
    from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_constant import FLContextKey, ReservedKey
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import ReservedHeaderKey
    from nvflare.app_common.app_constant import AppConstants
    from nvflare.app_opt.he.intime_accumulate_model_aggregator import (
        HEInTimeAccumulateWeightedAggregator,
    )
    from nvflare.app_opt.he.model_decryptor import HEModelDecryptor
    from nvflare.app_opt.he.model_encryptor import HEModelEncryptor

    keys = tenseal.context(
        tenseal.SCHEME_TYPE.CKKS,
        poly_modulus_degree=8192,
        coeff_mod_bit_sizes=[60, 40, 40],
        encryption_type=tenseal.ENCRYPTION_TYPE.SYMMETRIC,
    )
    keys.global_scale = 2**40
    public = tenseal.context_from(keys.serialize(save_secret_key=False))
    encryptor, decryptor = HEModelEncryptor(), HEModelDecryptor()
    for each in (encryptor, decryptor):
        each.tenseal_context = keys
    encryptor.encrypt_layers = [True]
    encryptor.n_iter = 1
    names = [f"site-{site}" for site in range(sites)]
    tables = {name: rows_of(site) for site, name in enumerate(names)}
    times, theta, worst, sent = Times(), np.zeros(DIMENSION), 0.0, [0, 0]

    def context(name: str, number: int) -> FLContext:
        peer, own = FLContext(), FLContext()
        peer.set_prop(ReservedKey.IDENTITY_NAME, name, sticky=False)
        own.set_peer_context(peer)
        own.set_prop(FLContextKey.CURRENT_RUN, "1", sticky=False)
        own.set_prop(AppConstants.CURRENT_ROUND, number, sticky=False)
        return own

    def encrypted(gradient: Any, at: FLContext) -> bytes:
        values, _ = encryptor.encryption({"theta": gradient}, at)
        return bytes(values["theta"].serialize())

    def added(messages: dict[str, bytes], number: int) -> bytes:
        aggregator = HEInTimeAccumulateWeightedAggregator(
            weigh_by_local_iter=False, expected_data_kind=DataKind.WEIGHT_DIFF
        )
        aggregator.handle_event(EventType.START_RUN, context("server", number))
        for name, message in messages.items():
            at = context(name, number)
            dxo = DXO(
                DataKind.WEIGHT_DIFF,
                data={"theta": tenseal.ckks_vector_from(public, message)},
                meta={
                    MetaKey.NUM_STEPS_CURRENT_ROUND: 1,
                    MetaKey.PROCESSED_KEYS: {"theta": True},
                    MetaKey.PROCESSED_ALGORITHM: "HE_CKKS",
                },
            )
            shareable = dxo.to_shareable()
            shareable.set_header(ReservedHeaderKey.PEER_PROPS, {})
            shareable.set_peer_props({ReservedKey.IDENTITY_NAME: name})
            shareable.add_cookie(AppConstants.CONTRIBUTION_ROUND, number)
            shareable.set_header(AppConstants.CURRENT_ROUND, number)
            if not aggregator.accept(shareable, at):
                raise SystemExit("NVFLARE's aggregator took no message")
        total = from_shareable(aggregator.aggregate(context("server", number)))
        return bytes(total.data["theta"].serialize())

    def opened(total: bytes, at: FLContext) -> Any:
        held = {"theta": tenseal.ckks_vector_from(keys, total)}
        return np.asarray(decryptor.decryption(held, {"theta": True}, at)["theta"])

    for number in range(ROUNDS):
        messages, plain = {}, np.zeros(DIMENSION)
        for name, (x, y) in tables.items():
            gradient = times.spend("site", partial(mean_gradient, theta, x, y))
            plain += gradient / sites
            at = context(name, number)
            messages[name] = times.spend("site", partial(encrypted, gradient, at))
        total = times.spend("server", partial(added, messages, number))

        for name in names:
            values = times.spend("site", partial(opened, total, context(name, number)))
        worst = max(worst, float(np.abs(values - plain).max()))
        theta = theta + values
        sent = [len(messages[names[0]]), len(total)]
        times.next_round()
    return summary(times, sites, sent[0], sent[1], error=worst)


def flower(sites: int) -> dict[str, Any]:
    """Rounds of Flower's SecAgg+ workflow; its messages never leave this process."""
    from flwr.client.mod import LocalDpMod, secaggplus_mod
    from flwr.client.mod.utils import make_ffn
    from flwr.common import (
        Code,
        ConfigRecord,
        Context,
        FitIns,
        FitRes,
        Message,
        RecordDict,
        Status,
        ndarrays_to_parameters,
        parameters_to_ndarrays,
    )
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.compat.common import recorddict_compat as compat
    from flwr.proto.message_pb2 import Message as ProtoMessage
    from flwr.server.compat.legacy_context import LegacyContext
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.server.workflow.constant import (
        MAIN_CONFIGS_RECORD,
        MAIN_PARAMS_RECORD,
        Key,
    )
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    times, theta, worst = Times(), np.zeros(DIMENSION), 0.0
    sent = [0, 0]
    tables = {number + 1: rows_of(number) for number in range(sites)}
    gradients: dict[int, Any] = {}
    found: list[Any] = []

    class Proxy:
        def __init__(self, node: int) -> None:
            self.node_id, self.cid = node, str(node)

    class Everyone(FedAvg):  # type: ignore[misc]
        def configure_fit(self, number: int, parameters: Any, manager: Any) -> Any:
            return [(Proxy(node), FitIns(parameters, {})) for node in tables]

        def aggregate_fit(self, number: int, results: Any, failures: Any) -> Any:
            found.append(parameters_to_ndarrays(results[0][1].parameters)[0])
            return results[0][1].parameters, {}

    def fit(message: Message, context: Context) -> Message:
        given = compat.recorddict_to_fitins(message.content, keep_input=True)
        (at,) = parameters_to_ndarrays(given.parameters)
        gradients[context.node_id] = mean_gradient(at, *tables[context.node_id])
        new = ndarrays_to_parameters([at + gradients[context.node_id]])
        answer = FitRes(Status(Code.OK, ""), new, 1, {})
        return Message(compat.fitres_to_recorddict(answer, False), reply_to=message)

    # What a row moves a mean by; Flower splits neither noise nor budget over sites.
    private = LocalDpMod(2.0, 2.0 / ROWS, EPSILON, DELTA)
    private_ffn = make_ffn(fit, [secaggplus_mod, private])
    exact_ffn = make_ffn(fit, [secaggplus_mod])
    contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in tables}

    class Here:
        """Hands messages to the sites of this process."""

        ffn = private_ffn

        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> list[Any]:
            answers = []
            for message in messages:
                node = message.metadata.dst_node_id
                message.metadata.__dict__["_src_node_id"] = 0
                message.metadata.__dict__["_message_id"] = "1"
                data = message_to_proto(message).SerializeToString()
                sent[1] += len(data)
                started = time.process_time()
                given = message_from_proto(ProtoMessage.FromString(data))
                answer = self.ffn(given, contexts[node])
                spent = 1e3 * (time.process_time() - started)
                times.now["site"] = times.now.get("site", 0.0) + spent
                answer.metadata.__dict__["_src_node_id"] = node
                data = message_to_proto(answer).SerializeToString()
                sent[0] += len(data)
                answers.append(message_from_proto(ProtoMessage.FromString(data)))
            return answers

    workflow = SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=0.5)
    grid = Here()
    for number in range(ROUNDS):
        state = RecordDict()
        state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord(
            {Key.CURRENT_ROUND: number + 1}
        )
        parameters = ndarrays_to_parameters([theta])
        state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(
            parameters, True
        )
        context = LegacyContext(Context(1, 0, {}, state, {}), strategy=Everyone())
        sent[:] = [0, 0]
        if number == 0:
            grid.ffn = exact_ffn
        before = len(found)
        times.spend("all", partial(workflow, grid, context))
        if len(found) == before:
            raise SystemExit("Flower's workflow ended before its last step")
        if number == 0:
            mean = sum(gradients.values()) / sites
            worst = float(np.abs(found[-1] - theta - mean).max())
            grid.ffn = private_ffn
        times.now["server"] = times.now["all"] - times.now["site"]
        theta = found[-1]
        times.next_round()
    return summary(times, sites, sent[0] // sites, sent[1] // sites, error=worst)


def secure_sum(sites: int) -> dict[str, Any]:
    """Rounds of this package's secure sum."""
    from cipherbayes_research.benchmarks.iteration import Clock, bench_iteration

    clock = Clock()
    setting = bench_iteration(DIMENSION, sites, ROWS, ROUNDS, clock=clock)
    row = setting["variants"]["secure-sum"]
    return {
        "sites": sites,
        "site_ms": round(row["site_ms"], 2),
        "server_ms": round(row["server_ms"] + row["decrypt_ms"], 2),
        "site_sends_bytes": row["message_bytes"],
    }


def summary(
    times: Times, sites: int, sent: int, received: int, **more: float
) -> dict[str, Any]:
    """One line of the comparison."""
    return {
        "sites": sites,
        "site_ms": round(times.median("site") / sites, 2),
        "server_ms": round(times.median("server"), 2),
        "site_sends_bytes": sent,
        "site_gets_bytes": received,
        **more,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tool", choices=("nvflare", "flower", "cipherbayes"))
    parser.add_argument("--sites", type=int, nargs="+", default=[4])
    options = parser.parse_args()
    logging.disable(logging.INFO)
    tools = {"nvflare": nvflare, "flower": flower, "cipherbayes": secure_sum}
    for sites in options.sites:
        print(json.dumps({"tool": options.tool, **tools[options.tool](sites)}))


if __name__ == "__main__":
    main()
