"""Work of one rank may take longer than collective operations wait."""

from tests.pipeline.process_group import run_group


def test_ranks_outlast_their_groups_timeout_while_one_verifies_a_checkpoint() -> None:
    run_group("tests.pipeline.waiting_ranks", [], 2)
