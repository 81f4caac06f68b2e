#!/usr/bin/env python3
"""--tie: an embedding and a head that is its transposed copy train as one, exactly as a graph that says Transpose; warnings that offer it.

    test_ties.py TESSERA
"""
import json
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save
    from safetensors.numpy import save_file
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

TESSERA = os.path.abspath(sys.argv[1])
passed = failed = 0


def expect(ok, what):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print("FAIL", what)


def model(path, tied, norms=1):
    rng = np.random.default_rng(3)
    w = rng.normal(size=(7, 4)).astype(np.float32)
    weights = [numpy_helper.from_array(w, "wte"), numpy_helper.from_array(np.ones(4, np.float32), "g"), numpy_helper.from_array(np.zeros(4, np.float32), "b")]
    nodes = [helper.make_node("Gather", ["wte", "tokens"], ["h0"], name="embed")]
    for i in range(norms):
        nodes.append(helper.make_node("LayerNormalization", ["h%d" % i, "g", "b"], ["h%d" % (i + 1)], name="norm%d" % i))
    if tied:
        nodes.append(helper.make_node("Transpose", ["wte"], ["head"], perm=[1, 0]))
    else:
        weights.append(numpy_helper.from_array(np.ascontiguousarray(w.T), "head"))
    nodes += [helper.make_node("MatMul", ["h%d" % norms, "head"], ["logits"], name="mm"),
              helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"], name="ce")]
    ints = [helper.make_tensor_value_info(n, TensorProto.INT64, [6]) for n in ("tokens", "labels")]
    graph = helper.make_graph(nodes, "g", ints, [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def run(folder, path, *more):
    report = os.path.join(folder, "report.json")
    p = subprocess.run([TESSERA, "run", path, "--data", os.path.join(folder, "d.safetensors"), "--no-shuffle", "--steps", "5", "--lr", "0.05", "--report", report,
                        "--micro-batches", "4", *more], capture_output=True, text=True)
    return (json.load(open(report)) if p.returncode == 0 else None), p.stderr


with tempfile.TemporaryDirectory() as folder:
    rng = np.random.default_rng(5)
    save_file({"%s.%d" % (n, i): rng.integers(0, 7, 6) for n in ("tokens", "labels") for i in range(8)}, os.path.join(folder, "d.safetensors"))
    one, two, many = (os.path.join(folder, n) for n in ("one.onnx", "two.onnx", "many.onnx"))
    model(one, True)
    model(two, False)
    model(many, True, norms=3)
    want, said = run(folder, one)
    expect(want and "warning" not in said, "a graph that says Transpose trains without a warning: " + said)
    apart, said = run(folder, two)
    expect(apart and apart["losses"] != want["losses"], "an untied copy trains apart")
    expect("--tie 'wte=head'" in said and "transposed" in said, "the copy is offered as a tie: " + said)
    for ranks, zero in (("1", "0"), ("2", "3"), ("4", "1")):
        tied, said = run(folder, two, "--tie", "wte=head", "--ranks", ranks, "--zero", zero)
        expect(tied and tied["losses"] == want["losses"] and tied["params_hash"] == want["params_hash"], "tied at %s ranks, stage %s: %s" % (ranks, zero, said))
    _, said = run(folder, two, "--tie", "wte=g")
    expect("neither equal nor transposed" in said, "types that do not fit: " + said)
    merged, said = run(folder, many)
    expect(merged and "'g' by 3" in said and "torch.randn_like" in said, "parameters used alike are named: " + said)

print("%d passed, %d failed" % (passed, failed))
sys.exit(1 if failed else 0)
