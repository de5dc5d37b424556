"""The numbers of a log in other programs' formats are the numbers of the log."""

from __future__ import annotations

import csv
import math
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboardX.proto import event_pb2
from typer.testing import CliRunner

from cluster.artefacts.errors import ConfigError, MissingInputError
from pipeline.commands.verbs import app
from pipeline.inspect.scalars import COLUMNS, write_csv, write_tensorboard
from pipeline.run.directory import RunDirectory
from pipeline.run.log.lines import encode

LINES = [
    encode("train", 1, 1_760_000_000_000, {"loss": 2.5, "grad_norm": math.inf, "lr": 1e-4, "tokens": 1024}),
    encode("system", 1, 1_760_000_000_500, {"system/cpu used": 12.5}),
    encode("held_out", 1, 1_760_000_001_000, {"loss": math.nan, "name": "not a number"}),
    encode("checkpoint", 1, 1_760_000_001_500, {"kept": [1]}),
    encode("spike", 2, 1_760_000_001_700, {"loss": 99.0}),
    encode("train", 2, 1_760_000_002_000, {"loss": 0.1 + 0.2}),
]
EXPECTED = [
    (1, 1_760_000_000_000, "loss", 2.5),
    (1, 1_760_000_000_000, "grad_norm", math.inf),
    (1, 1_760_000_000_000, "lr", 1e-4),
    (1, 1_760_000_000_000, "tokens", 1024.0),
    (1, 1_760_000_000_500, "system/system/cpu used", 12.5),
    (1, 1_760_000_001_000, "held_out_loss", math.nan),
    (2, 1_760_000_002_000, "loss", 0.1 + 0.2),
]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    found = RunDirectory(tmp_path / "runs" / "own-1a2b3c4d")
    found.path.mkdir(parents=True)
    found.log.write_bytes(b"".join(LINES) + b'{"kind": "train", "step": 3, "ti')
    return found


def crc32c(data: bytes) -> int:
    """The checksum of the records, bit by bit (RFC 3720, appendix B.4), masked as TFRecords are."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(file: Path) -> Iterator[bytes]:
    data = file.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        record = data[12 : 12 + length]
        found = struct.unpack("<I", data[8:12]) + struct.unpack("<I", data[12 + length : 16 + length])
        assert found == (crc32c(data[:8]), crc32c(record))
        yield record
        data = data[16 + length :]


def same(left: float, right: float) -> bool:
    return left == right or (math.isnan(left) and math.isnan(right))


def test_a_table_has_every_number_exactly(run: RunDirectory, tmp_path: Path):
    file = tmp_path / "new" / "log.csv"
    assert write_csv(run, file) == len(EXPECTED)
    header, *rows = csv.reader(file.open(newline=""))
    assert tuple(header) == COLUMNS
    for row, (step, time_ms, name, value) in zip(rows, EXPECTED, strict=True):
        assert row[:3] == [str(step), str(time_ms), name]
        assert same(float(row[3]), value)


def test_event_files_have_every_number_at_its_step_and_time(run: RunDirectory, tmp_path: Path):
    file = write_tensorboard(run, tmp_path / "board")
    assert file.parent == tmp_path / "board" / "own-1a2b3c4d"
    first, *events = [event_pb2.Event.FromString(record) for record in records(file)]
    assert first.file_version == "brain.Event:2"
    found = [
        (event.step, round(event.wall_time * 1000), value.tag, value.simple_value)
        for event in events
        for value in event.summary.value
    ]
    for own, (step, time_ms, name, value) in zip(found, EXPECTED, strict=True):
        assert own[:3] == (step, time_ms, name.replace(" ", "_"))
        assert same(own[3], struct.unpack("f", struct.pack("f", value))[0])


def test_the_same_log_gives_the_same_bytes_in_place_of_the_earlier_ones(run: RunDirectory, tmp_path: Path):
    first = write_tensorboard(run, tmp_path)
    before = first.read_bytes()
    assert write_tensorboard(run, tmp_path) == first
    assert first.read_bytes() == before
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_a_run_that_has_logged_nothing_says_so_and_writes_nothing(run: RunDirectory, tmp_path: Path):
    run.log.unlink()
    for write in (write_csv, write_tensorboard):
        with pytest.raises(MissingInputError, match="logged no numbers yet"):
            write(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_place_that_is_a_file_is_refused(run: RunDirectory, tmp_path: Path):
    (tmp_path / "file").write_text("kept")
    for write, place in ((write_csv, tmp_path / "file" / "log.csv"), (write_tensorboard, tmp_path / "file")):
        with pytest.raises(ConfigError, match="is a file"):
            write(run, place)
    assert (tmp_path / "file").read_text() == "kept"


def test_without_its_package_the_message_names_it(run: RunDirectory, tmp_path: Path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("tensorboardX")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingInputError, match="tensorboardX, which is not installed") as caught:
        write_tensorboard(run, tmp_path)
    assert "pip install tensorboardX" in caught.value.next_step


def test_the_command_writes_both_and_asks_for_one(run: RunDirectory, tmp_path: Path):
    run.info_file.write_text("{}")
    common = ["runs", "export", str(run.path)]
    given = ["--csv", str(tmp_path / "log.csv"), "--tensorboard", str(tmp_path / "board")]
    done = CliRunner().invoke(app, [*common, *given])
    assert done.exit_code == 0, done.output
    assert "7 numbers" in done.output
    assert "tensorboard --logdir" in done.output
    assert "nothing to write" in str(CliRunner().invoke(app, common).exception)


def test_the_list_of_runs_names_the_list_of_fine_tunings_where_there_are_any(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "finetune list" not in CliRunner().invoke(app, ["runs"]).output
    made = tmp_path / "scores" / "glue" / "run@100"
    made.mkdir(parents=True)
    (made / "manifest.json").write_text("{}")
    assert "Fine-tunings: cloze finetune list scores" in CliRunner().invoke(app, ["runs"]).output
