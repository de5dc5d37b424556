"""An extension is one file and one line: each is added to a copy of the packages as CONTRIBUTING says, and used."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("cluster", "models", "data_prep", "pipeline")
EXTENSIONS = {
    "source": (
        "data_prep/sources/notes.py",
        """
        from typing import Literal
        from data_prep.document import Document
        from data_prep.sources.base import SourceConfig

        class Notes(SourceConfig):
            kind: Literal["notes"] = "notes"
            paths: tuple[str, ...]

            def read(self, part):
                text = open(part.path).read()
                yield Document("notes:1", self.name, part.name, "", self.lang, text, {})
        """,
        "data_prep/sources/__init__.py",
        "AnySource = Annotated[\n",
        "Notes |",
    ),
    "filter": (
        "data_prep/filters/shout.py",
        """
        from typing import Literal
        from data_prep.filters.base import FilterConfig, Passed

        class Shout(FilterConfig):
            kind: Literal["shout"] = "shout"

            def build(self):
                return lambda document: Passed.with_text(document, document.text.upper())
        """,
        "data_prep/filters/__init__.py",
        "_FILTERS: tuple[type[FilterConfig], ...] = (\n",
        "Shout,",
    ),
    "tokenizer": (
        "data_prep/tokenizers/letters.py",
        """
        from typing import Literal
        from data_prep.tokenizers.training import TrainedTokenizer

        class Letters(TrainedTokenizer):
            kind: Literal["letters"] = "letters"

            def train(self, texts):
                return "".join(sorted(set("".join(texts)))), {}
        """,
        "data_prep/tokenizers/__init__.py",
        "_TRAINED: tuple[type[TrainedTokenizer], ...] = (\n",
        "Letters,",
    ),
    "format": (
        "pipeline/samples/formats/longest.py",
        """
        class Longest:
            def __init__(self, given):
                self.num_rows = int((given.lengths >= given.length).sum())
        """,
        "pipeline/samples/formats/__init__.py",
        "_SINGLE: Mapping[str, Callable[[FormatInput], RowFormat]] = {\n",
        '"longest": Longest,',
    ),
    "objective": (
        "pipeline/objectives/echo.py",
        """
        from typing import Literal
        from pipeline.objectives.base import Batch
        from pipeline.objectives.clm import DecoderObjective

        class Echo(DecoderObjective):
            kind: Literal["echo"] = "echo"

            def corrupt(self, packed, noise, vocabulary):
                return Batch({"targets": packed}, {"clm": len(packed)})
        """,
        "pipeline/objectives/__init__.py",
        "_OBJECTIVES: tuple[type[Objective], ...] = (\n",
        "Echo,",
    ),
    "optimizer": (
        "pipeline/optimizers/sgd.py",
        """
        from typing import Literal
        from pipeline.optimizers.base import Optimizer

        class Sgd(Optimizer):
            STATE = ()
            kind: Literal["sgd"] = "sgd"

            @staticmethod
            def update(parameter, gradient, state, group):
                parameter -= group["lr"] * gradient
        """,
        "pipeline/optimizers/__init__.py",
        "    for one in (\n",
        "Sgd,",
    ),
    "task": (
        "pipeline/tasks/parity.py",
        """
        from typing import Literal
        from pipeline.tasks.forms import ClassificationTaskConfig, Example
        from pipeline.tasks.task import TaskData

        class Parity(ClassificationTaskConfig):
            kind: Literal["parity"] = "parity"
            metrics = ("accuracy",)

            def load(self):
                examples = [Example(str(n), str(n), None, n % 2) for n in range(10)]
                return TaskData.of_files(examples[:8], examples[8:], [], ("even", "odd"))
        """,
        "pipeline/tasks/__init__.py",
        "TaskChoice = Annotated[\n",
        "Parity |",
    ),
    "task of GLUE": (
        "pipeline/tasks/mood.py",
        """
        from typing import Literal
        from pipeline.tasks.glue import GlueConfig

        class Mood(GlueConfig):
            kind: Literal["mood"] = "mood"
            folder = "Mood"
            texts = ("sentence",)
            names = ("sad", "glad")
            metrics = ("accuracy",)
        """,
        "pipeline/tasks/__init__.py",
        "TaskChoice = Annotated[\n",
        "Mood |",
    ),
    "evaluation set": (
        "pipeline/tasks/proverbs.py",
        """
        from pipeline.tasks.task import EvaluationSet

        def read(path):
            yield from (("proverb", line) for line in path.read_text().splitlines())

        PROVERBS = EvaluationSet("proverbs", "a list of proverbs", read, ("proverbs/*.txt",))
        """,
        "pipeline/tasks/evaluation_sets.py",
        "        for found in (\n",
        "PROVERBS,",
    ),
    "kind of cluster": (
        "cluster/templates/one_host/settings.py",
        """
        from typing import Literal
        from cluster.templates.base import ClusterTemplate, Text

        class OneHost(ClusterTemplate):
            kind: Literal["one-host"] = "one-host"
            greeting: Text

            def files(self):
                return ("start.sh",)
        """,
        "cluster/templates/__init__.py",
        "    {",
        '"one-host": OneHost,',
    ),
}
"""By kind: the file and its text, the module that names it, the text before its line, and the line."""
USES = {
    "source, filter and tokenizer": """
        from data_prep.config import PreparationConfig

        Path("note.txt").write_text("banana")
        Path("data.yaml").write_text(
            "{name: n, out: out, sources: [{kind: notes, name: n, paths: [note.txt]}], filters: [{kind: shout}],"
            " tokenizer: {kind: letters}}"
        )
        config = load_config(PreparationConfig, Path("data.yaml"))
        (document,) = config.sources[0].read(config.sources[0].list_files()[0])
        text = config.filters[0].build()(document).document.text
        assert config.tokenizer.train([text]) == ("ABN", {})
        """,
    "objective, format and optimizer": """
        import numpy as np
        from pipeline.run.config import PretrainConfig
        from pipeline.samples.formats import FORMATS
        from pipeline.samples.packed import FormatInput

        chosen = ["objective={kind: echo}", "batch.format=longest", "optimizer={kind: sgd, lr: 0.5}"]
        config = load_config(PretrainConfig, Path("configs/pretrain/gpt-tiny.yaml"), chosen)
        assert config.objective.corrupt([1, 2], None, None).counts == {"clm": 2}
        given = FormatInput(np.array([3, 9]), None, np.arange(2), 8, None, "")
        assert config.format == "longest" and FORMATS[config.format](given).num_rows == 1
        weights = np.ones(2)
        config.optimizer.update(weights, np.array([1.0, 2.0]), {}, {"lr": config.optimizer.lr})
        assert weights.tolist() == [0.5, 0.0]
        """,
    "task": """
        from pipeline.tune.config import FinetuneConfig

        config = load_config(FinetuneConfig, Path("configs/finetune/rows.yaml"), ["tasks.parity={kind: parity}"])
        data = config.tasks["parity"].load()
        assert data.labels == ("even", "odd") and len(data.evaluation) == 2
        """,
    "task of GLUE, and evaluation set": """
        import numpy as np
        from data_prep.decontaminate.config import DecontaminationConfig
        from pipeline.ask.config import PromptConfig
        from pipeline.tasks.evaluation_sets import evaluation_texts
        from pipeline.tune.config import FinetuneConfig

        for name, text in {
            "glue/Mood/train.tsv": "sentence\\tlabel\\nfine\\t1\\n",
            "glue/Mood/dev.tsv": "sentence\\tlabel\\nodd\\t0\\n",
            "glue/Mood/test.tsv": "index\\tsentence\\n7\\tbad\\n",
            "proverbs/german.txt": "Ende gut",
        }.items():
            Path("sets", name).parent.mkdir(parents=True, exist_ok=True)
            Path("sets", name).write_text(text)
        task = {"kind": "mood", "path": "sets/glue/Mood", "submit": True}
        config = FinetuneConfig.model_validate({"tasks": {"mood": task}}).tasks["mood"]
        data = config.load()
        assert (data.labels, data.evaluation[0].text_a) == (("sad", "glad"), "odd")
        assert config.submission(data.test, np.eye(2)[:1]) == {"Mood.tsv": b"index\\tprediction\\n7\\t0\\n"}
        PromptConfig(task=task, templates=("[x] It was [z].",), verbalizers={"sad": "bad", "glad": "good"})
        texts = evaluation_texts(DecontaminationConfig(tasks=("mood", "proverbs"), data=Path("sets")))
        assert [each.text for each in texts] == ["odd", "bad", "Ende gut"]
        """,
    "kind of cluster": """
        from cluster.templates.base import render
        from pipeline.config.loading import load_template
        from pipeline.config.reference import reference

        for name, text in {"start.sh": "echo {{ s.greeting }}", "NEXT.md": "./start.sh"}.items():
            Path(f"cluster/templates/one_host/{name}.j2").write_text(text)
        Path("cluster.yaml").write_text("{kind: one-host, greeting: good morning}")
        assert render(load_template("cluster.yaml"))["start.sh"] == "echo 'good morning'"
        assert "greeting" in {setting.name for setting in reference("one-host")[0].settings}
        """,
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """The packages with all extensions."""
    tree = tmp_path_factory.mktemp("tree")
    for package in (*PACKAGES, "configs"):
        shutil.copytree(ROOT / package, tree / package)
    for file, text, init, after, line in EXTENSIONS.values():
        (tree / file).parent.mkdir(exist_ok=True)
        (tree / file).write_text(dedent(text))
        named = (tree / init).read_text()
        assert named.count(after) == 1
        named = named.replace(after, f"{after}    {line}\n")
        future = "from __future__ import annotations\n"
        module, name = file.removesuffix(".py").replace("/", "."), re.findall(r"\w+", line)[-1]
        (tree / init).write_text(named.replace(future, f"{future}from {module} import {name}\n", 1))
    return tree


@pytest.mark.parametrize("kind", USES)
def test_one_file_and_one_line_make_an_extension(tree: Path, kind: str):
    program = "from pathlib import Path\nfrom pipeline.config.loading import load_config\n" + dedent(
        USES[kind]
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tree, env={"PYTHONPATH": "."}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
