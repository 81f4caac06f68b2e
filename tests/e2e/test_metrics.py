#!/usr/bin/env python3
"""What --metrics and --tensorboard write: a row for every step, what the report says, TFRecords whose checksums are right; read by TensorBoard's own reader where
it is installed.

    test_metrics.py TESSERA
"""
import csv
import json
import math
import os
import struct
import tempfile

from e2e import check, finish, need, tessera, train

need("numpy", "safetensors")

COLUMNS = ["step", "loss", "eval_loss", "lr", "grad_norm", "clipped_grad_norm", "loss_scale", "skipped", "samples_per_s", "sent_bytes", "peak_bytes", "ms", "micro_ms", "update_ms"]
TAGS = {"loss/train", "lr", "grad_norm/before_clipping", "grad_norm/after_clipping", "loss_scale/scale", "loss_scale/skipped", "speed/samples_per_s", "bytes/sent", "bytes/peak_memory", "ms/step", "ms/micro",
        "ms/update"}


def crc32c(data):
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82f63b78 if n & 1 else 0)
        table.append(n)
    crc = 0xffffffff
    for b in data:
        crc = crc >> 8 ^ table[(crc ^ b) & 255]
    return crc ^ 0xffffffff


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def fields(data):
    """(number, value) of a protobuf message: integers of varints, bytes of all else."""
    def varint(at):
        value = shift = 0
        while True:
            value |= (data[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 128:
                return value, at
    at = 0
    while at < len(data):
        key, at = varint(at)
        kind = key & 7
        if kind == 0:
            value, at = varint(at)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                size, at = varint(at)
            value, at = data[at:at + size], at + size
        yield key >> 3, value


def read_events(path):
    """[(step, {tag: value})] and the version, by no library."""
    data, at, events, version = open(path, "rb").read(), 0, [], None
    while at < len(data):
        n, = struct.unpack("<Q", data[at:at + 8])
        record = data[at + 12:at + 12 + n]
        sums = struct.unpack("<I", data[at + 8:at + 12]) + struct.unpack("<I", data[at + 12 + n:at + 16 + n])
        check(sums == (masked(data[at:at + 8]), masked(record)), "%s: a checksum at byte %d is wrong" % (path, at))
        at += 16 + n
        event = dict(fields(record))
        check(1.6e9 < struct.unpack("<d", event[1])[0] < 1e10, "%s: time %s" % (path, event[1]))
        if 3 in event:
            version = event[3].decode()
        if 5 in event:
            values = [dict(fields(v)) for k, v in fields(event[5]) if k == 1]
            events.append((event.get(2, 0), {v[1].decode(): struct.unpack("<f", v[2])[0] for v in values}))
    return events, version


def near(a, b):
    return math.isclose(a, b, rel_tol=1e-6) or a == b


def check_events(folder, report, tags=TAGS):
    files = os.listdir(folder)
    check(len(files) == 1 and files[0].startswith("events.out.tfevents."), "event files: %s" % files)
    events, version = read_events(os.path.join(folder, files[0]))
    check(version == "brain.Event:2", "version %s" % version)
    check([s for s, _ in events] == list(range(len(report["losses"]))), "steps of events: %s" % [s for s, _ in events])
    for step, scalars in events:
        check(set(scalars) == tags, "scalars of step %d: %s" % (step, sorted(scalars)))
        check(near(scalars["loss/train"], report["losses"][step]) and near(scalars["grad_norm/before_clipping"], report["grad_norms"][step]), "step %d: %s" % (step, scalars))
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        print("TensorBoard is not installed: its own reader is not asked (pip install tensorboard)")
        return
    reader = EventAccumulator(folder)
    reader.Reload()
    check(set(reader.Tags()["scalars"]) == tags, "TensorBoard finds %s" % reader.Tags())
    for tag in tags:
        check([(e.step, e.value) for e in reader.Scalars(tag)] == [(s, v[tag]) for s, v in events], "TensorBoard reads other values of %s" % tag)


def check_rows(rows, report):
    check(len(rows) == len(report["losses"]), "%d rows for %d steps" % (len(rows), len(report["losses"])))
    for i, row in enumerate(rows):
        check(int(row["step"]) == i and float(row["loss"]) == report["losses"][i] and float(row["lr"]) == report["lr"][i], "row %d: %s" % (i, row))
        check(float(row["grad_norm"]) == report["grad_norms"][i] and float(row["clipped_grad_norm"]) == report["clipped_grad_norms"][i], "norms of row %d: %s" % (i, row))
        check(int(row["sent_bytes"]) == report["sent_bytes_per_step"]["measured"] and int(row["peak_bytes"]) <= report["rss_peak_bytes"][0], "bytes of row %d: %s" % (i, row))
        micro, update, ms = float(row["micro_ms"]), float(row["update_ms"]), float(row["ms"])
        check(micro > 0 and update > 0 and micro + update <= ms and near(float(row["samples_per_s"]), 64e3 / ms), "times of row %d: %s" % (i, row))


def check_formats(tmp):
    options = ["--ranks", 2, "--steps", 5, "--clip-norm", 0.5, "--schedule", "cosine"]
    table, lines, events = (os.path.join(tmp, n) for n in ("m.csv", "m.jsonl", "events"))
    report = train("mlp", *options, "--metrics", table, "--tensorboard", events)
    rows = list(csv.DictReader(open(table)))
    check(list(rows[0]) == COLUMNS, "columns %s" % list(rows[0]))
    check_rows(rows, report)
    check_events(events, report)
    report = train("mlp", *options, "--metrics", lines)
    rows = [json.loads(line) for line in open(lines)]
    check(list(rows[0]) == [c for c in COLUMNS if c != "eval_loss"], "keys %s" % list(rows[0]))
    check_rows(rows, report)


def check_errors(tmp):
    occupied = os.path.join(tmp, "file")
    open(occupied, "w").close()
    for option, value, code, says in (("--metrics", "m.txt", 2, ".jsonl"), ("--metrics", os.path.join(tmp, "no", "m.csv"), 5, "cannot be written"),
                                      ("--tensorboard", occupied, 2, "must be a folder"), ("--tensorboard", os.path.join(occupied, "tb"), 5, "cannot make")):
        r = train("mlp", "--steps", 2, option, value, expect=code)
        check(says in r["stderr"] and not r["losses"], "%s %s: %s" % (option, value, r["stderr"]))
    full = os.path.join(tmp, "full.csv")
    os.symlink("/dev/full", full)
    r = train("mlp", "--steps", 2, "--metrics", full, expect=5)
    check("cannot write" in r["stderr"], "a full disk: %s" % r["stderr"])


with tempfile.TemporaryDirectory() as folder:
    check_formats(folder)
    check_errors(folder)
finish()
