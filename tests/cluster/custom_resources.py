"""The fields of custom resources that cloze renders, as tables: those of KubeRay 1.6 and Kueue 0.15."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Table = Mapping[str, Any]
"""Fields by name: a type, a tuple of allowed values, a list with the table of its elements, or a table.
A name ends with `!` where the field is required."""

KUBERNETES = "1.33"
"""The version whose schemas objects must fit."""
POD_TEMPLATE: Table = {}
"""Checked by the schemas of Kubernetes."""
SECRET_VALUE: Table = {"valueFrom!": {"secretKeyRef!": {"name!": str, "key!": str}}}
RAY_CLUSTER: Table = {
    "rayVersion": str,
    "suspend": bool,
    "authOptions": {"mode": ("disabled", "token"), "secretName": str},
    "gcsFaultToleranceOptions": {"redisAddress!": str, "redisPassword": SECRET_VALUE},
    "headGroupSpec!": {
        "serviceType": ("ClusterIP", "NodePort", "LoadBalancer"),
        "rayStartParams": {str: str},
        "template!": POD_TEMPLATE,
    },
    "workerGroupSpecs": [
        {
            "groupName!": str,
            "replicas": int,
            "minReplicas!": int,
            "maxReplicas!": int,
            "rayStartParams": {str: str},
            "template!": POD_TEMPLATE,
        }
    ],
}
RAY_JOB: Table = {
    "entrypoint": str,
    "backoffLimit": int,
    "runtimeEnvYAML": str,
    "shutdownAfterJobFinishes": bool,
    "ttlSecondsAfterFinished": int,
    "submissionMode": ("K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"),
    "submitterConfig": {"backoffLimit": int},
    "submitterPodTemplate": POD_TEMPLATE,
    "suspend": bool,
    "rayClusterSpec": RAY_CLUSTER,
}
SPECS: Mapping[tuple[str, str], Table] = {
    ("ray.io/v1", "RayCluster"): RAY_CLUSTER,
    ("ray.io/v1", "RayJob"): RAY_JOB,
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"): {"clusterQueue!": str},
}


def misfits(value: Any, table: Any, path: str) -> Iterator[str]:
    """Everything in `value` that `table` does not allow."""
    if table is POD_TEMPLATE:
        return
    if isinstance(table, tuple):
        if value not in table:
            yield f"{path}: {value!r} is none of {table}"
    elif isinstance(table, type):
        if not isinstance(value, table) or (table is int and isinstance(value, bool)):
            yield f"{path}: {value!r} is no {table.__name__}"
    elif isinstance(table, list):
        for number, each in enumerate(value):
            yield from misfits(each, table[0], f"{path}[{number}]")
    elif str in table:
        for name, each in value.items():
            yield from misfits(name, str, f"{path} key")
            yield from misfits(each, table[str], f"{path}.{name}")
    else:
        fields = {name.rstrip("!"): each for name, each in table.items()}
        yield from (f"{path}.{name}: unknown" for name in value.keys() - fields.keys())
        yield from (
            f"{path}.{name[:-1]}: missing" for name in table if name[-1] == "!" and name[:-1] not in value
        )
        for name in value.keys() & fields.keys():
            yield from misfits(value[name], fields[name], f"{path}.{name}")


def pod_templates(spec: Any) -> Iterator[Mapping[str, Any]]:
    """The pod templates anywhere in an object."""
    if isinstance(spec, Mapping):
        if "containers" in spec.get("spec", {}):
            yield spec
        for each in spec.values():
            yield from pod_templates(each)
    elif isinstance(spec, list):
        for each in spec:
            yield from pod_templates(each)


def object_misfits(each: Mapping[str, Any]) -> list[str]:
    """Everything in a Kubernetes object that its schema does not allow; needs the package kubernetes-validate."""
    from kubernetes_validate import ValidationError, validate

    wrong: list[str] = []
    checked = [each]
    if table := SPECS.get((each["apiVersion"], each["kind"])):
        wrong += misfits(each["spec"], table, each["kind"])
        holder = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}}
        checked = [{**holder, "template": pod} for pod in pod_templates(each)]
    for one in checked:
        try:
            validate(one, KUBERNETES, strict=True)
        except ValidationError as error:
            wrong.append(f"{each['kind']}: {error}")
    return wrong
