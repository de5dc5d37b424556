"""A Ray cluster that is looked at again and again: jobs by verb and status, nodes with their load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from cluster.artefacts.errors import ClusterUnreachableError
from cluster.jobs import connect, list_jobs
from cluster.node_load import NodeLoad, read_nodes
from pipeline.run.submission import VERB_KEY

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

Answer = TypeVar("Answer")
Jobs = Mapping[tuple[str, str], int]
"""Number of jobs by (verb, status)."""


class ClusterWatch:
    """A cluster; reached anew after it did not answer. All methods raise ClusterUnreachableError."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client: JobSubmissionClient | None = None

    def jobs(self) -> Jobs:
        """cloze's jobs that the cluster remembers."""
        found = ((job.metadata or {}, job.status.value) for job in self._ask(list_jobs))
        return Counter((metadata[VERB_KEY], status) for metadata, status in found if VERB_KEY in metadata)

    def nodes(self) -> list[NodeLoad]:
        """The nodes by name."""
        return self._ask(read_nodes)

    def _ask(self, question: Callable[[JobSubmissionClient], Answer]) -> Answer:
        try:
            self._client = self._client or connect(self._address)
            return question(self._client)
        except ClusterUnreachableError:
            self._client = None
            raise
