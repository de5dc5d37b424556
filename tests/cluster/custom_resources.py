"""Schemas of the objects that cloze renders, those of KubeRay 1.6 and Kueue 0.15 among them."""

from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema

KUBERNETES = "1.33"
"""The version whose schemas objects must fit."""
ANY: dict[str, Any] = {}
TEXT, SWITCH, NUMBER = ({"type": name} for name in ("string", "boolean", "integer"))


def table(*required: str, **fields: Any) -> dict[str, Any]:
    """A schema of an object that has no other fields; a tuple lists values."""
    properties = {
        name: {"enum": [*each]} if isinstance(each, tuple) else each for name, each in fields.items()
    }
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }


PARAMETERS = {"type": "object", "additionalProperties": TEXT}
SECRET = table(
    "valueFrom", valueFrom=table("secretKeyRef", secretKeyRef=table("name", "key", name=TEXT, key=TEXT))
)
RAY_CLUSTER = table(
    "headGroupSpec",
    rayVersion=TEXT,
    suspend=SWITCH,
    authOptions=table(mode=("disabled", "token"), secretName=TEXT),
    gcsFaultToleranceOptions=table("redisAddress", redisAddress=TEXT, redisPassword=SECRET),
    headGroupSpec=table(
        "template",
        serviceType=("ClusterIP", "NodePort", "LoadBalancer"),
        rayStartParams=PARAMETERS,
        template=ANY,
    ),
    workerGroupSpecs={
        "type": "array",
        "items": table(
            *("groupName", "minReplicas", "maxReplicas", "template"),
            groupName=TEXT,
            replicas=NUMBER,
            minReplicas=NUMBER,
            maxReplicas=NUMBER,
            rayStartParams=PARAMETERS,
            template=ANY,
        ),
    },
)
RAY_JOB = table(
    entrypoint=TEXT,
    backoffLimit=NUMBER,
    runtimeEnvYAML=TEXT,
    shutdownAfterJobFinishes=SWITCH,
    ttlSecondsAfterFinished=NUMBER,
    submissionMode=("K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"),
    submitterConfig=table(backoffLimit=NUMBER),
    submitterPodTemplate=ANY,
    suspend=SWITCH,
    rayClusterSpec=RAY_CLUSTER,
)
SPECS: Mapping[tuple[str, str], dict[str, Any]] = {
    ("ray.io/v1", "RayCluster"): RAY_CLUSTER,
    ("ray.io/v1", "RayJob"): RAY_JOB,
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"): table("clusterQueue", clusterQueue=TEXT),
}


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


def validate_object(each: Mapping[str, Any]) -> None:
    """Check an object, and the pods of a custom one, against their schemas; needs the package kubernetes-validate."""
    from kubernetes_validate import validate

    checked = [each]
    if schema := SPECS.get((each["apiVersion"], each["kind"])):
        jsonschema.validate(each["spec"], schema)
        holder = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}}
        checked = [{**holder, "template": pod} for pod in pod_templates(each)]
    for one in checked:
        validate(one, KUBERNETES, strict=True)
