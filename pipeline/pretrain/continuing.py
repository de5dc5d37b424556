"""The run of a configuration: begun, continued or found finished, so that the same command may be typed again."""

from __future__ import annotations

import sys

from cluster.artefacts.errors import ClozeError, ResumeRefusedError
from pipeline.pretrain.launch import begin, execute, settled
from pipeline.pretrain.resume_checks import check_resume
from pipeline.run.config import PretrainConfig, identity_of
from pipeline.run.directory import RunDirectory, list_runs
from pipeline.run.state import state_of


def train_to_end(config: PretrainConfig, *, submission_id: str | None = None) -> RunDirectory:
    """Train a configuration to its end, and return its run.

    A finished run of the same name, settings and data is returned as it is, and an unfinished one is continued from its
    newest checkpoint, also on another number of workers. Otherwise a new one begins.

    Raises:
        ClozeError: as `begin`, `check_resume` and `execute`.
    """
    found = find_same_run(config)
    if found is None:
        return begin(config, submission_id=submission_id)
    with found.held("its resumption"):
        if not is_finished(found):
            print(f"continuing the run {found.path.name}", file=sys.stderr)
            found.reconfigure(settled(config))
            execute(found, held=True)
    return found


def find_same_run(config: PretrainConfig) -> RunDirectory | None:
    """The newest run with this name, these settings and this data; None without one. Nothing is changed."""
    same = settled(config)
    for run in sorted(list_runs(config.runs_dir), key=_created, reverse=True):
        try:
            # Validating the configurations of many runs takes seconds; names do not.
            if not run.info.name.startswith(f"{same.name}-"):
                continue
            theirs = run.config()
        except ClozeError:
            continue  # damaged: it is not continued without being asked for
        if theirs.name != same.name or identity_of(theirs) != identity_of(same):
            continue
        try:
            check_resume(run, same, look_only=True)
        except ResumeRefusedError:
            continue  # its tokens, tokenizer or teacher were others
        return run
    return None


def is_finished(run: RunDirectory) -> bool:
    """Whether a run made all its updates."""
    return state_of(run).name == "finished"


def _created(run: RunDirectory) -> float:
    return run.info_file.stat().st_mtime
