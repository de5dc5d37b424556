"""The verbs of `cloze`. They import what they need when they are called, so that help is instant."""

from __future__ import annotations

import typer

from pipeline.commands import configs, data, places, runs, tokenizer
from pipeline.commands.ask import fill, generate, neighbors, probe, prompt
from pipeline.commands.describe import describe, support_bundle
from pipeline.commands.doctor import doctor
from pipeline.commands.finetune import finetune_app
from pipeline.commands.jobs import jobs, logs, stop, submit
from pipeline.commands.lineage import lineage
from pipeline.commands.models import checkpoints, export, models, publish
from pipeline.commands.plan import plan
from pipeline.commands.road import demo, ladder, road
from pipeline.commands.scores import list_, show, submission
from pipeline.commands.top import metrics_app, top
from pipeline.commands.train import pretrain, resume

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
    "metrics": metrics_app,
    "finetune": finetune_app,
    "runs": runs.runs_app,
}.items():
    app.add_typer(group, name=name)
for name, verb in {"show": show, "list": list_, "submission": submission}.items():
    finetune_app.command(name)(verb)
for verb in (
    *(demo, road, plan, pretrain, resume, ladder),
    *(fill, generate, prompt, neighbors, probe, export),
    *(lineage, top, checkpoints, publish, models, places.push, places.pull),
    *(jobs, logs, stop, describe, support_bundle, doctor, configs.schema, places.keys, places.sign),
):
    app.command()(verb)
# It submits any other verb of the app.
app.command(context_settings={"ignore_unknown_options": True, "obj": app})(submit)
