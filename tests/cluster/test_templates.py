"""Rendered clusters: valid for those who read them, safe against any text in the settings, and without a secret."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.templates import TEMPLATES
from cluster.templates.base import ClusterTemplate, render
from pipeline.config.loading import load_template
from tests.cluster.custom_resources import pod_templates, validate_object

EVERYTHING = (
    *("workers.spot=gke", "workers.node_selector={disk: ssd}", "queue={name: team, cluster_queue: gpus}"),
    *("fault_tolerant_head=true", "image_pull_secret=pull", "env_from_secret=keys", "env={A: '$(B)'}"),
    *("monitoring_namespace=monitoring", "storage.storage_class=shared-nfs"),
    *("workers.rdma_resource=rdma/hca", "workers.cache_directory=/nvme/cloze"),
)
"""All options of KubeRay."""
EVERYTHING_OF_SLURM = (
    *("partition=gpu", "account=a1", "qos=high", "constraint=a100", "gres=gpu:a100:8", "interface=ib0"),
    *("tracking_uri=http://mlflow:5000", "env={A: b}"),
)
GOOGLE = ("cloud=gcp", "zone=europe-west4-a", "project=p", "machine_image=projects/p/global/images/i")
JOB = "job.verb=pretrain run.yaml data.stores.0.path=a/b"
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "kuberay": (),
    "kuberay with everything": EVERYTHING,
    "kuberay with a job": (*EVERYTHING, JOB),
    "kuberay with the MLflow of another": ("tracking.server_of=other",),
    "kuberay on CPUs": ("workers.gpus=0", "tracking.enabled=false", "storage.claim=mine"),
    "slurm": (),
    "slurm with everything": EVERYTHING_OF_SLURM,
    "slurm on CPUs": ("gpus_per_node=0", "verb=data prepare 'a b.yaml'", "hours=0.5"),
    "ray-up": ("env={A: b}",),
    "ray-up on Google Cloud": GOOGLE,
    "ssh": ("env={A: b}", "cpus=4", "gpus=0"),
    "ssh of one host": ("workers=[]",),
}
"""Overrides, by a name that begins with the kind of cluster."""
KUBERAY = [name for name in VARIANTS if name.startswith("kuberay")]
HOSTILE = (
    *("$(touch /tmp/owned)", "`id`", "a'b\"c", "x, {y}", "# no comment", "a\\nb"),
    *("{{ s.name }}", "-rf", "é🙂", "*"),
)
LINES = st.text(
    st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\u2028\u2029\ufeff"), max_size=40
)


def variant(name: str) -> ClusterTemplate:
    return load_template(name.split()[0], VARIANTS[name])


@pytest.fixture(params=VARIANTS)
def template(request: pytest.FixtureRequest) -> ClusterTemplate:
    return variant(request.param)


def objects(files: Mapping[str, str], *kinds: str) -> list[dict[str, Any]]:
    """The Kubernetes objects of rendered files, or those of some kinds."""
    texts = [text for name, text in files.items() if name.endswith(".yaml")]
    found = [each for text in texts for each in yaml.safe_load_all(text)]
    return [each for each in found if not kinds or each["kind"] in kinds]


def pods(files: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    for each in objects(files):
        yield from pod_templates(each)


def rendered(kind: str, *overrides: str) -> dict[str, str]:
    return render(load_template(kind, overrides))


def with_variable(kind: str, text: str) -> ClusterTemplate:
    template = load_template(kind, ("tracking.enabled=false",) if kind == "kuberay" else ())
    return type(template).model_validate({**template.model_dump(), "env": {"TEXT": text}})


def printed(script: str) -> str:
    """The output of a shell."""
    done = subprocess.run(["bash", "-c", script], capture_output=True, env={"LC_ALL": "C.UTF-8"})
    return done.stdout.decode()


def test_the_same_settings_render_the_same_files_and_commands_for_what_comes_next(template: ClusterTemplate):
    files = render(template)
    assert files == render(type(template).model_validate(template.model_dump()))
    assert list(files) == [*template.files(), "NEXT.md"]
    assert "```bash" in files["NEXT.md"]
    assert all(text.endswith("\n") for text in files.values())


def test_shell_scripts_have_no_flaw_that_shellcheck_knows(template: ClusterTemplate):
    if not (shellcheck := shutil.which("shellcheck")):
        pytest.skip("shellcheck is not installed")
    files = render(template)
    blocks = "".join(re.findall(r"```bash\n(.*?)```", files["NEXT.md"], re.DOTALL))
    scripts = [text for text in files.values() if text.startswith("#!")]
    inner = [
        found for text in scripts for found in re.findall(r"<< 'END'\n(set -eu\n.*?)^END$", text, re.M | re.S)
    ]
    for script in [*scripts, *(f"#!/bin/bash\n{text}" for text in (*inner, blocks))]:
        command = [shellcheck, "--exclude=SC2086,SC2154,SC2164,SC2029", "-"]
        done = subprocess.run(command, input=script, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", KUBERAY)
def test_kubernetes_objects_fit_the_schemas_of_their_kinds(name: str):
    pytest.importorskip("kubernetes_validate")
    found = objects(render(variant(name)))
    for each in found:
        validate_object(each)
    places = [(each["kind"], each["metadata"]["name"]) for each in found]
    assert len(set(places)) == len(places)
    assert {each["metadata"]["namespace"] for each in found} == {"cloze"}


@pytest.mark.parametrize("name", KUBERAY)
def test_pods_are_confined_limited_and_given_time_to_save(name: str):
    template = variant(name)
    for pod in pods(render(template)):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        (container,) = spec["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
        assert container["resources"]["limits"].keys() >= {"cpu", "memory"}
        volumes = {each["name"] for each in spec["volumes"]} | {"data"}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        if container["name"].startswith("ray-") and container["name"] != "ray-job-submitter":
            assert spec["terminationGracePeriodSeconds"] > template.grace_s
            command = container["lifecycle"]["preStop"]["exec"]["command"]
            assert command[:3] == ["python", "-m", "cluster.drain"]
            assert container.keys() >= {"startupProbe", "readinessProbe", "livenessProbe"}
            assert "/dev/shm" in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_every_secret_that_pods_read_is_made_by_a_printed_command():
    files = rendered("kuberay", *EVERYTHING)
    text = files["NEXT.md"].replace("\\\n", "")
    made = {
        (name, key)
        for name, rest in re.findall(r"kubectl create secret generic (\S+)(.*)", text)
        for key in re.findall(r"--from-literal=([\w-]+)=\"\$\(openssl rand", rest)
    }
    read = re.findall(r"secretKeyRef: \{name: \"?([\w-]+)\"?, key: \"?([\w-]+)\"?\}", "".join(files.values()))
    assert set(read) == made
    assert len(made) == 4


def test_selectors_of_budgets_policies_and_services_choose_pods_that_exist():
    files = rendered("kuberay", *EVERYTHING, JOB)
    labels = [pod["metadata"]["labels"] for pod in pods(files)]
    specs = [each["spec"] for each in objects(files, "PodDisruptionBudget", "NetworkPolicy", "Service")]
    assert len(specs) == 1 + 4 + 3
    for spec in specs:
        selector = spec.get("selector") or spec["podSelector"]
        wanted = selector.get("matchLabels", selector)
        assert any(wanted.items() <= each.items() for each in labels), wanted


def test_ray_listens_to_its_own_pods_and_the_operator_only():
    policies = {each["metadata"]["name"]: each for each in objects(rendered("kuberay"), "NetworkPolicy")}
    own, operator = policies["cloze-ray"]["spec"]["ingress"]
    assert list(own["from"][0]) == ["podSelector"]
    namespace = operator["from"][0]["namespaceSelector"]["matchLabels"]
    assert namespace == {"kubernetes.io/metadata.name": "kuberay-operator"}
    assert operator["ports"] == [{"port": 8265}, {"port": 52365}]


def test_a_job_is_one_that_can_be_tried_again_and_waits_in_its_queue():
    (job,) = objects(rendered("kuberay", *EVERYTHING, JOB), "RayJob")
    spec = job["spec"]
    assert (spec["backoffLimit"], spec["suspend"]) == (3, True)
    assert spec["entrypoint"] == "cloze pretrain run.yaml data.stores.0.path=a/b"
    variables = {"CLOZE_SUBMISSION_ID": "cloze-cloze", "CLOZE_WORKDIR": "/shared"}
    assert variables.items() <= json.loads(spec["runtimeEnvYAML"])["env_vars"].items()
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("ray-up")])
def test_the_schema_of_ray_accepts_the_configuration_of_ray_up(name: str):
    config = yaml.safe_load(render(variant(name))["cluster.yaml"])
    schema = resources.files("ray.autoscaler") / "ray-schema.json"
    jsonschema.validate(config, json.loads(schema.read_text()))
    assert config["available_node_types"]["worker"]["max_workers"] == 2


@given(LINES)
@example("$(touch /tmp/owned)")
@example("a'b\"c: {# `")
def test_any_line_of_text_reaches_pods_and_scripts_unchanged(text: str):
    head = next(pods(render(with_variable("kuberay", text))))
    values = {each["name"]: each.get("value") for each in head["spec"]["containers"][0]["env"]}
    assert values["TEXT"] == text.replace("$", "$$")
    node = render(with_variable("ssh", text))["node.sh"]
    (line,) = [each for each in node.split("\n") if each.startswith("export TEXT=")]
    assert printed(f'{line}\nprintf %s "$TEXT"') == text
    options = yaml.safe_load(render(with_variable("ray-up", text))["cluster.yaml"])["docker"]["run_options"]
    (option,) = [each for each in options if "TEXT=" in each]
    assert printed(f"printf %s {option}") == f"--env=TEXT={text}"


def test_copies_of_stores_lie_on_the_disk_of_their_node_and_fit_it():
    specs = [
        pod["spec"] for pod in pods(rendered("kuberay", "workers.scratch_gib=100", "head.scratch_gib=7"))
    ]
    named = {pod["containers"][0]["name"]: pod for pod in specs}
    for name, bound, room in (("ray-head", "3584MiB", "7Gi"), ("ray-worker", "51200MiB", "100Gi")):
        pod = named[name]
        values = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
        assert values["CLOZE_CACHE_BYTES"] == bound
        assert {"name": "scratch", "emptyDir": {"sizeLimit": room}} in pod["volumes"]
    for kind in ("ssh", "slurm"):
        for overrides, place in ((("scratch=/nvme",), "/nvme"), (("env={CLOZE_CACHE: /own}",), "/own")):
            assert load_template(kind, overrides).values()["env"]["CLOZE_CACHE"] == place


@pytest.mark.parametrize("text", HOSTILE)
def test_names_that_could_break_out_are_refused_and_paths_are_quoted(text: str):
    def changed(kind: str, key: str, value: str) -> ClusterTemplate:
        return TEMPLATES[kind].model_validate({**load_template(kind).model_dump(), key: value})

    for name in ("kuberay name", "kuberay image", "slurm name", "slurm partition", "ssh head"):
        kind, key = name.split()
        with pytest.raises(ValueError, match=key):
            changed(kind, key, text)
    script = render(changed("slurm", "shared", f"/a b/{text}"))["cloze.sbatch"]
    (line,) = [each for each in script.split("\n") if each.startswith("cd ")]
    assert printed(f"printf '%s|' {line[3:]}") == f"/a b/{text}|"


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\x00b", "a\u2028b", "http://me:secret@host/"])
def test_line_breaks_and_credentials_are_refused(text: str):
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_PASSWORD"):
        load_template("ssh", ("env.MLFLOW_TRACKING_PASSWORD=x",))
    for kind in ("kuberay", "slurm", "ray-up", "ssh"):
        with pytest.raises(ValueError, match="env"):
            with_variable(kind, text)


@pytest.mark.parametrize("word", ["$(id)", "a;b", "'a b'", "x&", "`id`", "*"])
def test_a_job_that_the_shell_of_its_pod_would_read_otherwise_is_refused(word: str):
    with pytest.raises(ConfigError, match=r"job\.verb"):
        load_template("kuberay", (f"job.verb=pretrain run.yaml {word}",))
    script = rendered("slurm", f"verb=pretrain {word}")["cloze.sbatch"]
    assert f"pretrain {word}" in script.replace(f"'{word}'", word)


def test_what_names_no_kind_of_clusters_is_refused(tmp_path: Path):
    own = tmp_path / "own.yaml"
    with pytest.raises(MissingInputError):
        load_template(str(own))
    for text in ("kind: slrm", "kind: [slurm]", "nodes: 3"):
        own.write_text(text)
        with pytest.raises(ConfigError):
            load_template(str(own))
    with pytest.raises(ConfigError):
        load_template("slrum")


def test_what_a_cloud_needs_is_named_together():
    with pytest.raises(ConfigError, match="zone, project, machine_image"):
        load_template("ray-up", ("cloud=gcp",))


def test_nodes_can_be_drained_one_by_one_unless_that_is_forbidden():
    def budgets(*overrides: str) -> dict[str, int]:
        found = objects(rendered("kuberay", *overrides), "PodDisruptionBudget")
        return {each["metadata"]["name"]: each["spec"]["minAvailable"] for each in found}

    assert budgets("workers.replicas=3") == {"cloze-worker": 2}
    assert budgets("workers.replicas=1") == {}
    assert budgets("workers.replicas=3", "drain=never") == {"cloze-head": 1, "cloze-worker": 3}


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("hours=24", "#SBATCH --time=1-00:00:00\n"),
        ("hours=0.5", "#SBATCH --time=0-00:30:00\n"),
        ("hours=100.25", "#SBATCH --time=4-04:15:00\n"),
        ("nodes=2", "\n  --cpus-per-task=64 --gpus-per-task=8 bash "),
        ("gres=gpu:a100:8", "\n  --cpus-per-task=64 --gres=gpu:a100:8 bash "),
        ("gpus_per_node=0", "\n  --cpus-per-task=64 bash "),
    ],
)
def test_slurm_reads_the_time_limit_and_gives_each_step_the_cpus_and_gpus_of_its_node(override, wanted):
    files = rendered("slurm", override)
    assert wanted in files["cloze.sbatch"]
    assert "gpus" in override or "cluster.workers: 16" in files["NEXT.md"]
