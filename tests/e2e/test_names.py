#!/usr/bin/env python3
"""Names of the plan's own ("bucket.0.param", "tessera.lr", ...) in a model change nothing: the same training as under other names.

    test_names.py TESSERA
"""
import json
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save
    from safetensors.numpy import load_file, save_file
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

TESSERA = os.path.abspath(sys.argv[1])
OURS = {"w": "bucket.0.param", "b": "bucket.0.exp_avg", "h": "bucket.0.grad", "s": "tessera.micro", "q": "tessera.step", "loss": "tessera.loss"}
passed = failed = 0


def expect(ok, what):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print("FAIL", what)


def model(path, name, x="x"):
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(size=(3, 4)).astype(np.float32), name("w")), numpy_helper.from_array(np.zeros(4, np.float32), name("b"))]
    nodes = [helper.make_node("MatMul", [x, name("w")], [name("h")]), helper.make_node("Add", [name("h"), name("b")], [name("s")]),
             helper.make_node("Mul", [name("s"), name("s")], [name("q")]), helper.make_node("ReduceMean", [name("q")], [name("loss")], keepdims=0)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(x, TensorProto.FLOAT, [2, 3])],
                              [helper.make_tensor_value_info(name("loss"), TensorProto.FLOAT, [])], weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def train(folder, path, zero):
    report, saved = os.path.join(folder, "r.json"), os.path.join(folder, "ck")
    p = subprocess.run([TESSERA, "run", path, "--data", os.path.join(folder, "d.safetensors"), "--no-shuffle", "--ranks", "2", "--zero", str(zero),
                        "--micro-batches", "4", "--steps", "3", "--save", saved, "--report", report], capture_output=True, text=True)
    if p.returncode:
        print(p.stderr)
        return None
    return json.load(open(report)), load_file(saved + "/params.safetensors"), load_file(saved + "/state.safetensors")


with tempfile.TemporaryDirectory() as folder:
    rng = np.random.default_rng(1)
    save_file({"x.%d" % i: rng.normal(size=(2, 3)).astype(np.float32) for i in range(4)}, os.path.join(folder, "d.safetensors"))
    plain, hostile, refused = (os.path.join(folder, n) for n in ("plain.onnx", "hostile.onnx", "refused.onnx"))
    model(plain, lambda n: n)
    model(hostile, lambda n: OURS[n])
    model(refused, lambda n: n, "tessera.lr")
    for zero in (0, 1, 3):
        a, b = train(folder, plain, zero), train(folder, hostile, zero)
        expect(a and b and a[0]["losses"] == b[0]["losses"], "losses at stage %d" % zero)
        expect(a and b and all(np.array_equal(a[1][n], b[1][OURS[n]]) for n in ("w", "b")), "parameters at stage %d" % zero)
        expect(a and b and all(np.array_equal(a[2][n + s], b[2][OURS[n] + s]) for n in ("w", "b") for s in (".exp_avg", ".exp_avg_sq")), "states at stage %d" % zero)
    p = subprocess.run([TESSERA, "compile", refused, "-o", os.path.join(folder, "p.onnx")], capture_output=True, text=True)
    expect(p.returncode == 4 and "tessera.lr" in p.stderr, "an input of that name is refused: " + p.stderr)

print("%d passed, %d failed" % (passed, failed))
sys.exit(1 if failed else 0)
