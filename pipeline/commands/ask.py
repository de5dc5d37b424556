"""`cloze fill`, `generate`, `prompt`: what a network writes untrained; `neighbors`, `probe`: its hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands import output

if TYPE_CHECKING:
    from pipeline.ask.config import PromptConfig
    from pipeline.ask.prompting.run import PromptResult, Spread


def fill(
    text: Annotated[
        str, typer.Argument(help="A text with \\[MASK], <mask> or \\[z] where words are missing.")
    ],
    reference: output.Reference,
    top: Annotated[int, typer.Option(min=1, help="Predictions for each mask.")] = 5,
    ema: output.Average = False,
    runs_dir: output.RunsDir = Path("runs"),
    as_json: output.Json = False,
) -> None:
    """Fill the masks of a text with a masked language model or an encoder-decoder."""
    from pipeline.ask.prompting.networks import load_language_model
    from pipeline.ask.prompting.writing import fill as fill_masks

    network = load_language_model(reference, runs_dir, "ema" if ema else "model")
    found = fill_masks(network, text, top)
    if as_json:
        output.print_json({"from": network.reference, "text": text, **asdict(found)})
        return
    for number, predictions in enumerate(found.masks, 1):
        title = "the mask" if len(found.masks) == 1 else f"mask {number}"
        output.print_table(title, {"token": "text", "probability": "score"}, predictions)
    kind = "probability" if found.masks else "log-probability of a token"
    output.print_table("filled in", {"text": "text", kind: "score"}, found.texts)


def generate(
    text: Annotated[str, typer.Argument(help="The text; quote it.")],
    reference: output.Reference,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens to write at most; else 50.")
    ] = None,
    num_beams: Annotated[int, typer.Option(min=1, help="Texts that the search follows; 1 is greedy.")] = 1,
    num_texts: Annotated[int, typer.Option(min=1, help="Texts to write.")] = 1,
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw tokens; implied by the three options that follow.")
    ] = False,
    temperature: Annotated[float | None, typer.Option(help="Divides scores before a token is drawn.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the fewest tokens with this probability.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from this many most probable tokens.")] = None,
    seed: Annotated[int, typer.Option(help="Decides all draws.")] = 0,
    language: Annotated[str | None, typer.Option(help="Language tag of an mBART, such as en_XX.")] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="The text is a user's turn: answer it as learned in fine-tuning.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="With --chat: a system turn before it.")] = None,
    ema: output.Average = False,
    runs_dir: output.RunsDir = Path("runs"),
    as_json: output.Json = False,
) -> None:
    """Continue a text with a decoder, or answer it with an encoder-decoder; --chat asks a network that learned
    conversations."""
    from cluster.artefacts.errors import ConfigError
    from pipeline.ask.prompting.networks import load_language_model
    from pipeline.ask.prompting.writing import chat_prompt, search_settings, write

    if system is not None and not chat:
        raise ConfigError("--system has no meaning without --chat.", next_step="add --chat")

    drawn = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    given = {name: value for name, value in drawn.items() if value is not None}
    settings = search_settings(
        max_new_tokens=max_new_tokens,
        num_beams=num_beams,
        num_return_sequences=num_texts,
        do_sample=sample or bool(given),
        seed=seed,
        **given,
    )
    network = load_language_model(reference, runs_dir, "ema" if ema else "model")
    prompt = chat_prompt(network, text, system) if chat else text
    found = write(network, prompt, settings, language=language)
    if as_json:
        texts = [asdict(each) for each in found]
        output.print_json({"from": network.reference, "prompt": text, "texts": texts})
        return
    begins = text if network.kind == "left_to_right" and not chat else ""
    for each in found:
        output.print_line(f"{begins}{each.text}")


def prompt(
    task: Annotated[
        str,
        typer.Option(
            help="YAML file or a name of `cloze configs list`, such as prompt/sst2; or a kind of task, such as sst2."
        ),
    ],
    reference: output.Reference,
    overrides: output.Overrides = None,
    template: Annotated[
        list[str] | None,
        typer.Option(
            help='A text with \\[x], \\[y] and \\[z], such as "\\[x] It was \\[z]."; repeat it for several.'
        ),
    ] = None,
    verbalizer: Annotated[
        str | None, typer.Option(help="Answers and their labels: great=1,terrible=0")
    ] = None,
    shots: Annotated[int | None, typer.Option(min=0, help="Demonstrations before the text.")] = None,
    seeds: Annotated[str | None, typer.Option(help="One draw of demonstrations for each: 1,2,3")] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Correct for what answers are worth without a text.")
    ] = False,
    runs_dir: output.RunsDirOfConfig = None,
    ema: output.Average = False,
    as_json: output.Json = False,
) -> None:
    """Score a network on a task by prompts, without training it."""
    from pipeline.ask.prompting.networks import load_language_model
    from pipeline.ask.prompting.run import prompt_task

    given: dict[str, Any] = {
        "templates": template or None,
        "verbalizers": None if verbalizer is None else _verbalizers(verbalizer),
        "shots": shots,
        "seeds": None if seeds is None else [each.strip() for each in seeds.split(",")],
        "calibrate": calibrate or None,
    }
    config = prompt_config(task, overrides or [], given)
    network = load_language_model(reference, runs_dir or config.runs_dir, "ema" if ema else "model")
    found = prompt_task(config, network)
    if as_json:
        output.print_json({**asdict(found), "overall": asdict(found.overall)})
        return
    _show_prompts(found)


def _verbalizers(text: str) -> dict[str, str]:
    """`great=1,terrible=0` as answers by label."""
    from cluster.artefacts.errors import ConfigError

    pairs = [pair.rpartition("=") for pair in text.split(",")]
    if wrong := [
        "".join(pair) for pair in pairs if not pair[1] or not pair[0].strip() or not pair[2].strip()
    ]:
        raise ConfigError(
            f"{wrong[0]!r} in --verbalizer is not ANSWER=LABEL.",
            next_step="write --verbalizer great=1,terrible=0",
        )
    labels = [label.strip() for _, _, label in pairs]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise ConfigError(
            f"The label {twice[0]} has two answers in --verbalizer.",
            next_step="give one answer for each label",
        )
    return {label.strip(): answer.strip() for answer, _, label in pairs}


def prompt_config(task: str, overrides: list[str], given: dict[str, Any]) -> PromptConfig:
    """The settings of a file, or of a kind of task, and those of the command line, which win."""
    from pipeline.ask.config import PROMPTED, PromptConfig
    from pipeline.config.loading import load_plain, validate, with_overrides
    from pipeline.config.shipped import find_shipped

    if task not in PROMPTED and (task.endswith((".yaml", ".yml")) or find_shipped(task)):
        plain = load_plain(PromptConfig, Path(task), overrides)
    else:
        plain = with_overrides(PromptConfig, {"task": {"kind": task}}, overrides, f"--task {task}")
    named = {name: value for name, value in given.items() if value is not None}
    return validate(PromptConfig, {**plain, **named}, task)


def _show_prompts(found: PromptResult) -> None:
    """Print template x seed, mean and spread, and the majority baseline."""
    seeds = list(dict.fromkeys(each.seed for each in found.scores))
    columns = ["score" if seed is None else f"seed {seed}" for seed in seeds]
    rows: list[list[str]] = []

    def percent(metrics: Mapping[str, float]) -> str:
        return f"{100 * metrics[found.main_metric]:.1f}"

    for template in dict.fromkeys(each.template for each in found.scores):
        own = [each for each in found.scores if each.template == template]
        rows.append(
            [template, *(percent(each.metrics) for each in own), _spread(found.of_template(template))]
        )
        if before := [percent(each.uncalibrated) for each in own if each.uncalibrated is not None]:
            rows.append(["  uncalibrated", *before, ""])
    rows.append(["all templates", *[""] * len(seeds), _spread(found.overall)])
    rows.append(["majority label", *[""] * len(seeds), percent(found.majority)])
    about = f"{found.num_examples} examples, {found.shots} shots, {found.reference}"
    title = f"{found.task}: {found.main_metric} in percent of {about}"
    output.print_table(title, ("template", *columns, "mean ± deviation (lowest to highest)"), rows)


def _spread(spread: Spread) -> str:
    shown = f"{100 * spread.mean:.1f}"
    if spread.std is None:
        return shown
    return f"{shown} ± {100 * spread.std:.1f} ({100 * spread.lowest:.1f} to {100 * spread.highest:.1f})"


def neighbors(
    word: Annotated[str, typer.Option(help="The word; upper and lower case are the same.")],
    text: Annotated[Path, typer.Option(help="Text file with a sentence or a paragraph in each line.")],
    reference: output.Reference,
    layer: Annotated[int, typer.Option(help="Number of a layer; 0 are the embeddings, -1 is the last.")] = -1,
    top: Annotated[int, typer.Option(min=1, help="Neighbors to print.")] = 10,
    occurrence: Annotated[int, typer.Option(help="The occurrence to compare with, from 1.")] = 1,
    ema: output.Average = False,
    runs_dir: output.RunsDir = Path("runs"),
    as_json: output.Json = False,
) -> None:
    """Print the occurrences of a word that a network sees as most alike, by the cosine of their hidden states."""
    from pipeline.ask.probing.features import load_features
    from pipeline.ask.probing.neighbors import find_neighbors, find_occurrences

    occurrences = find_occurrences(text, word)
    network = load_features(reference, runs_dir, "ema" if ema else "model")
    found = find_neighbors(network, occurrences, occurrence, layer, top)
    if as_json:
        output.print_json({"word": word, "text": str(text), **asdict(found)})
        return
    output.print_line(f"occurrence {found.chosen.number} of {found.num_occurrences}: {found.chosen.marked}\n")
    columns: dict[str, output.Column] = {
        "cosine": lambda each: round(each.cosine, 4),
        "occurrence": lambda each: each.occurrence.number,
        "line": lambda each: each.occurrence.place,
        "sentence": lambda each: each.occurrence.marked,
    }
    output.print_table(f"nearest at layer {found.layer}", columns, found.nearest)


def probe(
    config: output.ConfigPath,
    reference: output.Reference,
    overrides: output.Overrides = None,
    replace: output.Replace = False,
    html: output.Html = None,
    runs_dir: output.RunsDirOfConfig = None,
    ema: output.Average = False,
    as_json: output.Json = False,
    log_format: output.LogFormat = None,
) -> None:
    """Fit linear or small non-linear classifiers on every layer of a network, and on a control task."""
    from pipeline.ask.config import ProbeConfig
    from pipeline.ask.probing.features import load_features
    from pipeline.ask.probing.run import COLUMNS, facts, page, rows
    from pipeline.ask.probing.run import probe as probe_layers
    from pipeline.config.loading import load_config

    settings = load_config(ProbeConfig, config, overrides or ())
    output.require_place(html)
    network = load_features(reference, runs_dir or settings.runs_dir, "ema" if ema else "model")
    directory, found = probe_layers(settings, network, replace=replace)
    if as_json:
        output.print_json(
            {"directory": str(directory), "from": network.reference, **found.model_dump(mode="json")}
        )
    else:
        output.print_table(f"{found.task} in {network.reference}, in percent", COLUMNS, rows(found))
        typer.echo(f"{facts(found)}\nresult: {directory}\nNext: cloze lineage {directory}")
    # The result is finished and shown: a page that cannot be written costs nothing but itself.
    if html is not None:
        output.write_page(html, page(network.reference, found))
