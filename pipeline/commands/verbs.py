"""The verbs of `cloze`. They import what they need when they are called, so that help is instant."""

from __future__ import annotations

import typer

from pipeline.commands import (
    checkpoints,
    cluster,
    configs,
    data,
    demo,
    describe,
    doctor,
    export,
    finetune,
    jobs,
    ladder,
    leaderboard,
    lineage,
    metrics,
    models,
    places,
    plan,
    probe,
    prompt,
    road,
    runs,
    schema,
    scores,
    signing,
    support_bundle,
    tokenizer,
    top,
    train,
)

app = typer.Typer(
    name="cloze",
    cls=places.LocalPaths,
    help="Pre-train language models from raw text to task scores: Ray, DeepSpeed, Arrow and MLflow as one system.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data.data_app, name="data")
app.add_typer(configs.configs_app, name="configs")
app.add_typer(cluster.cluster_app, name="cluster")
app.add_typer(tokenizer.tokenizer_app, name="tokenizer")
app.add_typer(metrics.metrics_app, name="metrics")
scores.register(finetune.finetune_app)
leaderboard.register(finetune.finetune_app)
app.add_typer(finetune.finetune_app, name="finetune")
for module in (
    demo,
    road,
    plan,
    train,
    ladder,
    prompt,
    probe,
    export,
    runs,
    lineage,
    top,
    checkpoints,
    models,
    places,
    jobs,
    describe,
    support_bundle,
    doctor,
    schema,
    signing,
):
    module.register(app)
