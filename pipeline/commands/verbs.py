"""The verbs of `cloze`. They import what they need when they are called, so that help is instant."""

from __future__ import annotations

import typer

from pipeline.commands import (
    ask,
    configs,
    data,
    doctor,
    finetune,
    inspect,
    jobs,
    places,
    plan,
    road,
    runs,
    tokenizer,
    top,
    train,
)  # fmt: skip

app = typer.Typer(
    name="cloze",
    cls=places.LocalPaths,
    help="Pre-train language models from raw text to task scores: Ray, DeepSpeed, Arrow and MLflow as one system.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, group in {
    "data": data.data_app,
    "configs": configs.configs_app,
    "cluster": configs.cluster_app,
    "tokenizer": tokenizer.tokenizer_app,
    "metrics": top.metrics_app,
    "finetune": finetune.finetune_app,
    "runs": runs.runs_app,
}.items():
    app.add_typer(group, name=name)
for verb in (
    *(road.demo, road.road, plan.plan, train.pretrain, train.resume, road.ladder),
    *(ask.fill, ask.generate, ask.prompt, ask.neighbors, ask.probe, runs.export),
    *(inspect.lineage, top.top, runs.checkpoints, runs.publish, runs.models, places.push, places.pull),
    *(jobs.jobs, jobs.logs, jobs.stop, jobs.describe, jobs.support_bundle, doctor.doctor),
    *(configs.schema, places.keys, places.sign),
):
    app.command()(verb)
# It submits any other verb of the app.
app.command(context_settings={"ignore_unknown_options": True, "obj": app})(jobs.submit)
