"""The directory that relative paths of a job start from: the one it was submitted from, on every machine."""

from __future__ import annotations

import os

from cluster.artefacts.errors import MissingInputError

START_DIRECTORY_VARIABLE = "CLOZE_WORKDIR"
"""Set for submitted jobs: in the command itself and in all workers that it starts."""


def enter_start_directory() -> None:
    """Go to the directory that the job was submitted from; nothing to do outside a job.

    Ray calls it in every worker process of a job, because those begin in the directory of the shipped code.

    Raises:
        MissingInputError: this machine does not have the directory, or the present one is gone.
    """
    try:
        os.getcwd()
    except OSError as error:
        raise MissingInputError(
            f"The working directory cannot be entered: {error.strerror}.", next_step="cd to another one"
        ) from None
    if directory := os.environ.get(START_DIRECTORY_VARIABLE):
        try:
            os.chdir(directory)
        except OSError as error:
            raise MissingInputError(
                f"The job was submitted from {directory}, which this machine cannot enter: {error}",
                next_step="submit from a directory that all machines of the cluster share",
            ) from None
