"""Checks of every node of a Ray cluster: equal software, one shared storage, clocks, and the network between nodes."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from cluster.artefacts.credentials import without_credentials
from cluster.artefacts.errors import ClozeError
from cluster.checks.machine import Check, Places, Status, verdict
from cluster.checks.probes import ExchangeRank, NodeProbe, versions
from cluster.ray_internals import free_resources_by_node

ANSWER_S = 120.0
"""Longest wait for a node to start a process and to answer."""
JOIN_S = 120.0
"""Longest wait for the nodes that a cluster is expected to have."""
VISIBLE_S = 15.0
"""Longest wait until a file of one node is seen on another; NFS caches names for some seconds."""
_SLOW_S = 5.0
_MAX_SKEW_S: dict[Status, float] = {"fail": 30.0, "warn": 1.0}
_MIN_GIB_PER_S = 0.2
"""A network of 2 Gbit/s."""
_CLOCK_READINGS = 5
_NETWORK_REMEDY = (
    "open all TCP ports between the nodes; GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name the fast interface"
)


@dataclass(slots=True)
class NodeReport:
    """The findings about one node."""

    node: str
    """Host name and the beginning of Ray's node id."""
    checks: list[Check] = field(default_factory=list)

    @property
    def status(self) -> Status:
        """The worst of its checks."""
        found = {check.status for check in self.checks}
        return "fail" if "fail" in found else "warn" if "warn" in found else "ok"


@dataclass(slots=True)
class _Node:
    """An alive node with its probe."""

    report: NodeReport
    id: str
    num_gpus: float
    probe: Any


def check_nodes(address: str, places: Places, *, num_nodes: int | None = None) -> list[NodeReport]:
    """Check every node of the cluster at `address`; what was written for it is removed.

    Args:
        num_nodes: nodes that the cluster is expected to have; waits for them for JOIN_S seconds at most.

    Raises:
        ClusterUnreachableError: no cluster answers there.
    """
    from cluster.runtime import ray_runtime

    with ray_runtime(address):
        reports = [] if num_nodes is None else _missing(num_nodes)
        nodes = []
        for node in _alive():
            report = NodeReport(f"{node['NodeManagerHostname']} ({node['NodeID'][:6]})")
            probe = _on_node(NodeProbe, node["NodeID"])
            nodes.append(_Node(report, node["NodeID"], node["Resources"].get("GPU", 0), probe))
        answering = _answering(nodes, places)
        _compare_versions(answering)
        for node, _ in answering:
            node.report.checks.append(_check_clock(node.probe))
        present = [node for node, _ in answering]
        _check_storage(present, places)
        check_exchanges(present)
        _end([node.probe for node in nodes])
        return [*reports, *(node.report for node in nodes)]


def _missing(num_nodes: int) -> list[NodeReport]:
    """A report about nodes that do not join in time."""
    deadline = time.monotonic() + JOIN_S
    while (found := len(_alive())) < num_nodes:
        if time.monotonic() > deadline:
            remedy = "ray status on the head; Ray's log on the missing hosts: /tmp/ray/session_latest/logs"
            return [NodeReport("cluster", [Check("nodes", "fail", f"{found} of {num_nodes} joined", remedy)])]
        time.sleep(1.0)
    return []


def _alive() -> list[Mapping[str, Any]]:
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    return sorted(nodes, key=lambda node: (node["NodeManagerHostname"], node["NodeID"]))


def _on_node(actor: type, node_id: str, *, num_gpus: int = 0) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(actor).options(num_cpus=0, num_gpus=num_gpus, scheduling_strategy=strategy).remote()


def _get(reference: Any) -> Any:
    """A result of a probe; an error of Ray or of the probe becomes a ClozeError."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    try:
        return ray.get(reference, timeout=ANSWER_S)
    except GetTimeoutError:
        raise ClozeError(f"no answer within {ANSWER_S:.0f} s") from None
    except (RayError, OSError, RuntimeError, ImportError) as error:
        said = str(getattr(error, "cause", None) or error).strip().splitlines() or [type(error).__name__]
        raise ClozeError(said[-1]) from None


def _answering(nodes: Sequence[_Node], places: Places) -> list[tuple[_Node, dict[str, str]]]:
    """The nodes that answer, with their versions; the others get a check that failed."""
    elsewhere = replace(
        places,
        ray_address=None,
        tracking_uri=places.tracking_uri and without_credentials(places.tracking_uri),
    )
    asked = [(node, node.probe.facts.remote(elsewhere)) for node in nodes]
    found: list[tuple[_Node, dict[str, str]]] = []
    for node, reference in asked:
        try:
            own_versions, checks = _get(reference)
        except ClozeError as error:
            remedy = (
                "install the same cloze in the Python of this node, then restart Ray there: pip install cloze"
            )
            node.report.checks.append(Check("answers", "fail", error.problem, remedy))
        else:
            node.report.checks += checks
            found.append((node, own_versions))
    return found


def _compare_versions(nodes: Sequence[tuple[_Node, dict[str, str]]]) -> None:
    """A check for every node: whether its software is the one of most machines, this one included."""
    everywhere = [versions(), *(own for _, own in nodes)]
    usual = {name: Counter(each[name] for each in everywhere).most_common(1)[0][0] for name in everywhere[0]}
    for node, own in nodes:
        wrong = [
            f"{name} is {own[name]}, elsewhere {usual[name]}" for name in usual if own[name] != usual[name]
        ]
        found = "; ".join(wrong) or ", ".join(f"{name} {version}" for name, version in usual.items())
        remedy = (
            "pip install --requirement requirements.lock and the same cloze, then restart Ray on this node"
        )
        node.report.checks.append(verdict("versions", not wrong, found, remedy))


def _check_clock(probe: Any) -> Check:
    """The difference between a node's clock and this machine's, from the fastest of a few answers."""
    readings = []
    for _ in range(_CLOCK_READINGS):
        before = time.time()
        try:
            there = _get(probe.now_s.remote())
        except ClozeError as error:
            return Check("clock", "fail", error.problem, "ray status: the node does not answer any more")
        after = time.time()
        readings.append((after - before, there - (before + after) / 2))
    took, skew = min(readings)
    found = f"{skew:+.3f} s from this machine's, within {took / 2:.3f} s"
    beyond_s, remedy = abs(skew) - took / 2, "timedatectl set-ntp true (or start chrony) on this node"
    otherwise = "fail" if beyond_s > _MAX_SKEW_S["fail"] else "warn"
    return verdict("clock", beyond_s <= _MAX_SKEW_S["warn"], found, remedy, otherwise=otherwise)


def _ring(nodes: Sequence[_Node]) -> list[tuple[_Node, _Node]]:
    """Every node with the next one, and the last with the first; nothing for a single node."""
    return list(pairwise([*nodes, nodes[0]])) if len(nodes) > 1 else []


def _check_storage(nodes: Sequence[_Node], places: Places) -> None:
    """Whether a node sees what another one commits, replaces and locks."""
    if not (pairs := _ring(nodes)):
        return
    directory = places.runs_dir.resolve()
    try:
        scratch = _get(nodes[0].probe.make_scratch.remote(directory, f".cloze-doctor-{uuid.uuid4().hex[:8]}"))
    except ClozeError as error:
        nodes[0].report.checks.append(_not_shared(f"{directory}: {error.problem}", directory))
        return
    try:
        for number, (writer, reader) in enumerate(pairs):
            reader.report.checks.append(_check_shared(writer, reader, scratch, f"probe-{number}", directory))
    finally:
        _get(nodes[0].probe.remove.remote(scratch))


def _check_shared(writer: _Node, reader: _Node, scratch: Any, name: str, directory: Any) -> Check:
    by = writer.report.node
    file = scratch / f"{name}.txt"
    try:
        _get(writer.probe.commit.remote(scratch, name))
        seen_s = _get(reader.probe.reads_artefact.remote(scratch / name, VISIBLE_S))
        if seen_s is None:
            return _not_shared(f"what {by} commits in {directory} is not seen here", directory)
        slowest = seen_s
        for text in ("before", "after"):
            _get(writer.probe.replace.remote(file, text))
            seen_s = _get(reader.probe.reads_text.remote(file, text, VISIBLE_S))
            if seen_s is None:
                return _not_shared(f"a file that {by} replaces keeps its old text here", directory)
            slowest = max(slowest, seen_s)
        _get(writer.probe.hold_lock.remote(file))
        locked = _get(reader.probe.is_locked.remote(file))
        _get(writer.probe.release.remote())
    except ClozeError as error:
        return _not_shared(f"with {by}: {error.problem}", directory)
    if not locked:
        remedy = "mount with locks (NFS 4, not `nolock`); until then start a run from one machine only"
        return Check("shared storage", "warn", f"a lock of {by} is not seen here", remedy)
    found = f"commits, replacements and locks of {by} are seen in {directory}, after {slowest:.1f} s at most"
    remedy = "mount with a shorter attribute cache, such as actimeo=1"
    return verdict("shared storage", slowest <= _SLOW_S, found, remedy, otherwise="warn")


def _not_shared(found: str, directory: Any) -> Check:
    remedy = f"mount one file system at {directory} on all nodes, writable for this user, or name another: --runs-dir"
    return Check("shared storage", "fail", found, remedy)


def check_exchanges(nodes: Sequence[_Node]) -> None:
    """All-reduce between neighbours: by NCCL where both have a free GPU, else by gloo."""
    if not (pairs := _ring(nodes)):
        return
    free = free_resources_by_node()
    on_gpu = {node.id for node in nodes if free.get(node.id, {}).get("GPU", 0) >= 1}
    # One process per node for all its pairs, because importing torch takes longer than the exchanges.
    ranks = {node.id: _on_node(ExchangeRank, node.id, num_gpus=int(node.id in on_gpu)) for node in nodes}
    for one, other in pairs:
        backend = "nccl" if {one.id, other.id} <= on_gpu else "gloo"
        busy = any(node.num_gpus and node.id not in on_gpu for node in (one, other))
        try:
            check = _exchange(ranks[one.id], ranks[other.id], backend)
        except ClozeError as error:
            check = Check("all-reduce", "fail", f"{backend}: {error.problem}", _NETWORK_REMEDY)
            # They may still wait for each other.
            _end([ranks[one.id], ranks[other.id]])
            for node in (one, other):
                ranks[node.id] = _on_node(ExchangeRank, node.id, num_gpus=int(node.id in on_gpu))
        shown = f"with {one.report.node}: {check.found}{' (not NCCL: GPUs are busy)' if busy else ''}"
        other.report.checks.append(replace(check, found=shown))
    _end([*ranks.values()])


def _exchange(one: Any, other: Any, backend: str) -> Check:
    """Let two ranks sum numbers."""
    host, port = _get(one.address.remote())
    done = [rank.exchange.remote(number, host, port, backend) for number, rank in enumerate((one, other))]
    results = [_get(each) for each in done]
    speed = min(gib_per_s for _, gib_per_s in results)
    found = f"{backend}, {speed:.2f} GiB/s"
    if not all(correct for correct, _ in results):
        return Check(
            "all-reduce", "fail", f"{found}, and a wrong sum", "replace the network card or its driver"
        )
    return verdict("all-reduce", speed >= _MIN_GIB_PER_S, found, _NETWORK_REMEDY, otherwise="warn")


def _end(actors: Sequence[Any]) -> None:
    import ray

    for actor in actors:
        ray.kill(actor)
