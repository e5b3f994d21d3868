"""Print a tracker's data as JSON: `read_marks.py TRACKER DATA`. A list of [name, step, value], in the order of writing.

TensorBoard and MLflow read their own. wandb 0.31 has no reader for the file of an offline run: it is LevelDB's log format, with
wandb's own messages.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = tuple[str, int, Any]


def tensorboard(data: Path) -> Iterator[Row]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for folder in (data, data / "spotguard"):
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        for tag in events.Tags()["scalars"]:
            yield from ((tag, each.step, each.value) for each in events.Scalars(tag))
        for tag in events.Tags()["tensors"]:
            for each in events.Tensors(tag):
                yield tag.removesuffix("_summary"), each.step, each.tensor_proto.string_val[0].decode()


def wandb(data: Path) -> Iterator[Row]:
    from wandb.proto.wandb_internal_pb2 import Record

    for path in sorted(data.glob("wandb/offline-run-*/*.wandb")):
        for message in _messages(path.read_bytes()):
            record = Record()
            record.ParseFromString(message)
            kind = record.WhichOneof("record_type")
            if kind == "preempting":
                yield kind, -1, True
            if kind != "history":
                continue
            row = {each.key or "/".join(each.nested_key): each.value_json for each in record.history.item}
            values = {name: json.loads(value) for name, value in row.items()}
            for name, value in values.items():
                kind = name.rpartition("/")[0]
                yield name, values.get(f"{kind}/step", values["_step"]), value


def _messages(file: bytes) -> Iterator[bytes]:
    at, message = 7, b""  # behind the header
    while at + 7 <= len(file):
        left = 32768 - at % 32768
        if left < 7:  # no header fits into the rest of this block
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", file[at : at + 7])
        message += file[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole one, or the last part of one
            yield message
            message = b""


def mlflow(data: Path) -> Iterator[Row]:
    from mlflow import MlflowClient

    client, run_id = MlflowClient(f"sqlite:///{data}/tracking.db"), (data / "run-id").read_text()
    found = client.get_run(run_id).data
    for name in found.metrics:
        yield from ((name, each.step, each.value) for each in client.get_metric_history(run_id, name))
    for name, text in found.tags.items():
        yield name.replace(".", "/"), -1, text


if __name__ == "__main__":
    print(json.dumps(list(globals()[sys.argv[1]](Path(sys.argv[2])))))
