"""`cloze`: the command line, which answers signals before it imports anything, and turns errors into exit codes."""

from __future__ import annotations

import io
import os
import shlex
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

from cluster import logs, signals

if TYPE_CHECKING:
    from cluster.artefacts.errors import ClozeError


def main() -> None:
    """Run the command line; a ClozeError ends it with its message and its documented exit code."""
    signals.run(shlex.join(["cloze", *sys.argv[1:]]), run_verb)


def run_verb() -> int:
    """Run a verb; returns the exit code of one that failed as documented."""
    from cluster.artefacts.credentials import message_without_credentials, split_tracking_credentials
    from cluster.artefacts.errors import ClozeError, StorageError
    from cluster.start_directory import enter_start_directory
    from pipeline.commands.verbs import app

    try:
        logs.start()
        enter_start_directory()
        split_tracking_credentials()
        app()
    except ClozeError as error:
        if signals.received():
            raise
        try:
            if _prints_here(error):
                logs.say(f"\n{error}", "error", **error.members)
        except OSError:
            # A file on the disk that is full: the exit code is still to say what happened.
            sys.stderr = io.StringIO()
        return error.exit_code
    except Exception as error:
        if signals.received():
            raise
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            # Whatever no reader and no writer has explained.
            refused = StorageError(
                f"{error.filename}: {error.strerror}.", next_step="correct the path, or give access"
            )
            logs.say(f"\n{refused}", "error", **refused.members)
            return refused.exit_code
        # No error of ours: what is needed to report it, but for the passwords in it.
        with suppress(OSError):
            logs.say(message_without_credentials(traceback.format_exc()), "critical", exit_code=1)
        return 1
    return 0


def _prints_here(error: ClozeError) -> bool:
    """Whether this process prints an error: of several ranks that stop alike, the first one does; where all that a
    machine's ranks were given is wrong, the first one of the machine."""
    from cluster.artefacts.errors import ConfigError, MissingInputError, ReferenceNotFoundError

    if error.everywhere:
        return os.environ.get("RANK", "0") == "0"
    if isinstance(error, (ConfigError, MissingInputError, ReferenceNotFoundError)):
        return os.environ.get("LOCAL_RANK", "0") == "0"
    return True


if __name__ == "__main__":
    main()
