"""Evaluation sets, against which pre-training corpora are decontaminated.

A set holds all texts that a model reads when it is evaluated: both sentences of a pair, questions and contexts,
documents and summaries; of development sets and, where they are there, of test sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from cluster.artefacts.errors import ConfigError, ConfigProblem, MissingInputError
from data_prep.decontaminate.config import DecontaminationConfig, EvaluationText
from pipeline.config.problems import nearest
from pipeline.tasks import TASKS
from pipeline.tasks.questions import XQUAD
from pipeline.tasks.task import EvaluationSet

SETS: Mapping[str, EvaluationSet] = MappingProxyType(
    {
        found.name: found
        for found in (
            XQUAD,
            *(each for task in TASKS.values() for each in task.sets()),
        )
    }
)
"""Every evaluation set by name: the sets of the tasks, and further sets that corpora are decontaminated against."""

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "glue": ("cola", "sst2", "mrpc", "stsb", "rte", "wnli", "qnli", "qqp", "mnli", "ax"),
        "superglue": ("boolq", "cb", "copa", "multirc", "record", "superglue_rte", "wic"),
        "squad": ("squad1", "squad2"),
        "conll_ner": ("wnut17",),
        "conllu_pos": ("ud-english-ewt",),
    }
)
"""Names for several sets together."""


def evaluation_texts(config: DecontaminationConfig) -> Iterator[EvaluationText]:
    """The texts of the tasks that a configuration names, in that order, each task once.

    Names and files are checked by the call; texts are read as the iterator is followed.

    Raises:
        ConfigError: a name is unknown, or a file has another format than its name says.
        MissingInputError: there is no folder of evaluation sets, or a file of a set is not in it.
    """
    names, folder = expand(config.tasks), config.located().data
    if not names:
        return iter(())
    if folder is None:
        raise MissingInputError(
            "`decontaminate` names evaluation sets, but neither `decontaminate.data` nor the environment variable"
            " CLOZE_DATA names the folder that holds them.",
            next_step="set one of them, such as decontaminate.data=/path/to/evaluation-sets",
        )
    if not folder.is_dir():
        raise MissingInputError(
            f"There is no folder {folder} of evaluation sets.",
            next_step="correct `decontaminate.data`, or CLOZE_DATA where that is not set",
        )
    located = [(SETS[name], path) for name in names for path in SETS[name].locate(folder)]
    return (
        EvaluationText(found.name, example, text, path)
        for found, path in located
        for example, text in found.read(path)
    )


def expand(names: Sequence[str]) -> list[str]:
    """Names of sets and groups as names of sets, each once.

    Raises:
        ConfigError: names every unknown one, with the nearest and all that are known.
    """
    allowed = [*GROUPS, *SETS]
    problems = []
    for number, name in enumerate(names):
        if name not in allowed:
            near = nearest(name, allowed)
            hint = f"; did you mean {near}?" if near else ""
            message = f"is no evaluation set{hint}; there are {', '.join(allowed)}"
            problems.append(ConfigProblem(f"decontaminate.tasks.{number}", repr(name), message))
    if problems:
        raise ConfigError("Unknown evaluation sets:", problems=tuple(problems))
    return list(dict.fromkeys(single for name in names for single in GROUPS.get(name, (name,))))
