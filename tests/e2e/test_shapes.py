#!/usr/bin/env python3
"""Batches of different shapes: a program per shape, the same bits for any ranks and stages, what is planned is what is measured, from a file and
from a stream; a plan file keeps one shape and says so.

    test_shapes.py TESSERA
"""
import json
import os
import tempfile

from e2e import TESSERA, check, finish, inputs, model, need, tessera

need("numpy", "onnx", "safetensors")

import subprocess

import numpy as np
import onnx
from onnx import helper, numpy_helper
from safetensors.numpy import load_file, save, save_file

SIZES = [32, 8, 17, 1, 32, 5, 64, 3]


def dynamic_model(path):
    m = onnx.load(model("mlp"))
    for v in list(m.graph.input) + list(m.graph.output):
        if v.type.tensor_type.shape.dim and v.type.tensor_type.shape.dim[0].dim_value == 32:
            v.type.tensor_type.shape.dim[0].Clear()
            v.type.tensor_type.shape.dim[0].dim_param = "batch"
    del m.graph.value_info[:]
    # x + 0.01 x (its row's number): a constant that is folded from the shape, another one in each program.
    first = [
        helper.make_node("Shape", ["x"], ["rows.shape"], start=0, end=1),
        helper.make_node("Squeeze", ["rows.shape"], ["rows"]),
        helper.make_node("Range", ["zero", "rows", "one"], ["row"]),
        helper.make_node("Cast", ["row"], ["row.float"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["row.float", "hundredth"], ["row.scaled"]),
        helper.make_node("Unsqueeze", ["row.scaled", "one.axis"], ["row.column"]),
        helper.make_node("Add", ["x", "row.column"], ["x.moved"]),
    ]
    for n in m.graph.node:
        n.input[:] = ["x.moved" if i == "x" else i for i in n.input]
    for i, n in enumerate(first):
        m.graph.node.insert(i, n)
    for name, value in (("zero", np.int64(0)), ("one", np.int64(1)), ("hundredth", np.float32(0.01)), ("one.axis", np.array([1], np.int64))):
        m.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    onnx.checker.check_model(m)
    onnx.save(m, path)


def batches():
    d = load_file(inputs("mlp"))
    x = np.concatenate([d["x.%d" % i] for i in range(10)])
    y = np.concatenate([d["y.%d" % i] for i in range(10)])
    starts = np.cumsum([0] + SIZES)
    return [{"x": x[a:b].copy(), "y": y[a:b].copy()} for a, b in zip(starts, starts[1:])]


def run(tmp, source, data, *arguments, stdin=None, expect=0):
    report = os.path.join(tmp, "report.json")
    if os.path.exists(report):
        os.remove(report)
    p = subprocess.run([TESSERA, "run", source, "--data", data, "--no-shuffle", "--optimizer", "adamw", "--report", report, *map(str, arguments)],
                       input=stdin, capture_output=True, timeout=300)
    check(p.returncode == expect, "%s: exit %d, wanted %d: %s" % (arguments, p.returncode, expect, p.stderr.decode().strip()[-300:]))
    r = json.load(open(report)) if os.path.exists(report) else {}
    r["stderr"] = p.stderr.decode()
    return r


def result(r):
    return r.get("losses"), r.get("grad_norms"), r.get("params_hash")


def first_loss(tmp, source, batch):
    """The loss of the untrained model on one batch, run as the only shape."""
    alone = os.path.join(tmp, "alone.safetensors")
    save_file({"x.0": batch["x"], "y.0": batch["y"]}, alone)
    return run(tmp, source, alone, "--steps", 1)["losses"][0]


def main():
    with tempfile.TemporaryDirectory() as tmp:
        source, data = os.path.join(tmp, "m.onnx"), os.path.join(tmp, "d.safetensors")
        dynamic_model(source)
        all_batches = batches()
        save_file({"%s.%d" % (k, i): v for i, b in enumerate(all_batches) for k, v in b.items()}, data)

        # A step over all batches: the loss is the mean over all samples, whatever micro-batch they came in.
        r = run(tmp, source, data, "--steps", 1, "--micro-batches", 8)
        want = sum(first_loss(tmp, source, b) * len(b["y"]) for b in all_batches) / sum(SIZES)
        check(abs(r["losses"][0] - want) < 1e-6, "loss %r, the weighted mean of the batches is %r" % (r["losses"], want))
        check("7 shapes" in r["stderr"], "says: " + r["stderr"])

        # One shape more or less changes no bit; neither do ranks, stage, reduction; memory and bytes are as planned.
        first = None
        for ranks in (1, 2, 4):
            for zero in range(4):
                for more in ([], ["--bucket-bytes", 4096]):
                    r = run(tmp, source, data, "--steps", 6, "--micro-batches", 4, "--ranks", ranks, "--zero", zero, *more)
                    first = first or result(r)
                    check(result(r) == first and r["params_hash"], "ranks %d stage %d %s: %s, wanted %s" % (ranks, zero, more, result(r), first))
                    peak, sent = r["peak_bytes"]["device"], r["sent_bytes_per_step"]
                    check(peak["planned"] == peak["measured"] > 0, "ranks %d stage %d: peak %s" % (ranks, zero, peak))
                    check(sent["planned"] == sent["measured"], "ranks %d stage %d: sent %s" % (ranks, zero, sent))

        # The same from a stream, whose shapes nobody knows beforehand: programs are added and arenas grow between steps.
        stream = b"".join(save(all_batches[i % len(SIZES)]) for i in range(24))
        for arguments in (["--ranks", 2, "--zero", 3], ["--zero", 1, "--steps", 6]):
            r = run(tmp, source, "-", "--micro-batches", 4, *arguments, stdin=stream)
            check(result(r) == first, "stream %s: %s, wanted %s" % (arguments, result(r), first))
            peak = r["peak_bytes"]["device"]
            check(peak["planned"] == peak["measured"] > 0, "stream: peak %s" % peak)
        r = run(tmp, source, "-", "--micro-batches", 4, "--steps", 7, stdin=stream, expect=5)
        check("ended" in r["stderr"] and len(r["losses"]) == 6, "a stream that is too short: " + r["stderr"])
        bad = stream + save({"x": np.zeros((2, 63), np.float32), "y": np.zeros(2, np.int64)})
        r = run(tmp, source, "-", "--micro-batches", 1, stdin=bad, expect=3)
        check("batch 24" in r["stderr"] and "[2,63]" in r["stderr"], "a batch that no program can take: " + r["stderr"])
        check(len(r.get("losses", [])) == 24, "steps before it: %s" % r.get("losses"))
        torn = save_file({"x.0": all_batches[0]["x"], "y.0": all_batches[0]["y"], "x.1": all_batches[1]["x"], "y.1": all_batches[0]["y"]},
                         os.path.join(tmp, "torn.safetensors"))
        r = run(tmp, source, os.path.join(tmp, "torn.safetensors"), expect=2)
        check("batch" in r["stderr"], "inputs that contradict each other: " + r["stderr"])

        # A plan file is for one shape.
        plan = os.path.join(tmp, "p.onnx")
        p = tessera("compile", source, "--data", data, "-o", plan)
        check(p.returncode == 0 and "keeps one" in p.stderr, "compile: %d %s" % (p.returncode, p.stderr))
        r = run(tmp, plan, data, expect=3)
        check("plan was made for" in r["stderr"], "run PLAN: " + r["stderr"])
    finish()


if __name__ == "__main__":
    main()
