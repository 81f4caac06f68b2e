#!/usr/bin/env python3
"""--tie on the way out: every tied name of an export holds the trained values of what it is tied to, also transposed, tied in a chain, tied to a
constant, or trained from a plan. ONNX Runtime's loss of the exported model is Tessera's; a state_dict has them, too.

    test_tied_export.py TESSERA
"""
import json
import os
import tempfile

from e2e import check, finish, need, tessera

need("numpy", "safetensors", "onnx", "onnxruntime")
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file

STEPS = 5


def write(path, nodes, inputs, weights):
    infos = [helper.make_tensor_value_info(n, TensorProto.INT64 if a.dtype == np.int64 else TensorProto.FLOAT, a.shape) for n, a in inputs.items()]
    graph = helper.make_graph(nodes, "g", infos, [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
                              [numpy_helper.from_array(w, n) for n, w in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def language_model(rng):
    """An embedding and a head that is its transposed copy."""
    wte = rng.normal(size=(7, 4)).astype(np.float32)
    nodes = [helper.make_node("Gather", ["wte", "tokens"], ["h"]), helper.make_node("MatMul", ["h", "head"], ["logits"]),
             helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"])]
    batches = [{n: rng.integers(0, 7, 6) for n in ("tokens", "labels")} for _ in range(STEPS + 1)]
    return nodes, batches, {"wte": wte, "head": np.ascontiguousarray(wte.T)}


def layers(rng):
    """Three layers of equal contents."""
    w = rng.normal(size=(5, 5)).astype(np.float32) * 0.3
    nodes = [helper.make_node("MatMul", ["x" if i == 0 else "h%d" % i, "w%d" % i], ["h%d" % (i + 1)]) for i in range(3)]
    nodes += [helper.make_node("Mul", ["h3", "h3"], ["q"]), helper.make_node("ReduceMean", ["q"], ["loss"], keepdims=0)]
    return nodes, [{"x": rng.normal(size=(3, 5)).astype(np.float32)} for _ in range(STEPS + 1)], {"w%d" % i: w.copy() for i in range(3)}


def case(tmp, name, make, options, ties, plan=False, differ=False):
    nodes, batches, weights = make(np.random.default_rng(7))
    if differ:
        weights["w1"] = weights["w1"] + 1
    source, data, saved, out = (os.path.join(tmp, name + end) for end in (".onnx", ".safetensors", ".ck", ".out.onnx"))
    write(source, nodes, batches[0], weights)
    save_file({"%s.%d" % (n, i): a for i, b in enumerate(batches) for n, a in b.items()}, data)
    fixed = ["--lr", "0.05", *options]
    run = source
    if plan:
        run = os.path.join(tmp, name + ".plan.onnx")
        p = tessera("compile", source, *fixed, "-o", run)
        check(p.returncode == 0, "%s: compile: %s" % (name, p.stderr))
    report = os.path.join(tmp, "report.json")
    common = ["run", run, "--data", data, "--no-shuffle", *([] if plan else fixed)]
    for more in (["--steps", STEPS, "--save", saved], ["--steps", STEPS + 1, "--report", report]):
        p = tessera(*common, *more)
        check(p.returncode == 0, "%s: %s" % (name, p.stderr))
    want = json.load(open(report))["losses"][STEPS]
    meta = json.load(open(os.path.join(saved, "meta.json")))
    check(meta["ties"] == [dict(zip(("kept", "tied", "transposed"), t)) for t in ties], "%s: meta.json says %s" % (name, meta.get("ties")))
    p = tessera("export", saved, "-o", out)
    check(p.returncode == 0, "%s: export: %s" % (name, p.stderr))
    trained = {t.name: numpy_helper.to_array(t) for t in onnx.load(out).graph.initializer}
    flat, torch = os.path.join(tmp, "flat.safetensors"), os.path.join(tmp, "torch.safetensors")
    check(tessera("export", saved, "-o", flat).returncode == 0, name)
    save_file({n: w for n, w in weights.items()}, os.path.join(tmp, "state.safetensors"))
    p = tessera("export", saved, "--torch", os.path.join(tmp, "state.safetensors"), "-o", torch)
    check(p.returncode == 0, "%s: --torch: %s" % (name, p.stderr))
    flat, torch = load_file(flat), load_file(torch)
    for kept, tied, transposed in ties:
        values = trained[kept].T if transposed else trained[kept]
        check(np.array_equal(trained[tied], values), "%s: '%s' is not '%s' in the exported model" % (name, tied, kept))
        if kept in flat:
            check(not np.array_equal(values, weights[tied]), "%s: '%s' has not trained" % (name, tied))
            check(tied in flat and np.array_equal(flat[tied], values), "%s: '%s' is not '%s' in the .safetensors export" % (name, tied, kept))
            check(tied in torch and np.array_equal(torch[tied], values), "%s: '%s' is not '%s' in the state_dict" % (name, tied, kept))
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    micro = 2 if "--micro-batches" in options else 1
    loss = sum(float(session.run(None, batches[(STEPS * micro + i) % len(batches)])[0]) for i in range(micro)) / micro
    check(abs(loss - want) <= 2e-6 * abs(want), "%s: ONNX Runtime says %r, tessera %r" % (name, loss, want))
    p = tessera("run", source, *common[2:], "--resume", saved, "--steps", 1, "--report", report)
    check(p.returncode == 0 and json.load(open(report))["losses"] == [want], "%s: --resume: %s" % (name, p.stderr))


def check_state_without_copies(tmp):
    """A state_dict that lists a tied parameter once, as safetensors.torch.save_model writes it."""
    for name in ("wte", "head"):
        state, out = os.path.join(tmp, "once.safetensors"), os.path.join(tmp, "once.out.safetensors")
        save_file({name: language_model(np.random.default_rng(7))[2][name]}, state)
        p = tessera("export", os.path.join(tmp, "transposed.ck"), "--torch", state, "-o", out)
        check(p.returncode == 0, "a state_dict with '%s' only: %s" % (name, p.stderr))


def check_refused(tmp):
    for ties in (["w0=w1", "w2=w1"], ["w0=w1", "w1=w0"], ["w0=w0"]):
        p = tessera("compile", os.path.join(tmp, "equal.onnx"), *["--tie=" + t for t in ties], "-o", os.path.join(tmp, "x.onnx"))
        check(p.returncode == 2 and "is tied to" in p.stderr, "--tie %s: exit %d %s" % (ties, p.returncode, p.stderr))


def main():
    with tempfile.TemporaryDirectory() as tmp:
        case(tmp, "equal", layers, ["--tie", "w0=w1"], [("w0", "w1", False)])
        case(tmp, "sharded", layers, ["--tie", "w0=w1", "--ranks", "2", "--zero", "3", "--micro-batches", "2"], [("w0", "w1", False)])
        case(tmp, "transposed", language_model, ["--tie", "wte=head"], [("wte", "head", True)])
        case(tmp, "turned", language_model, ["--tie", "head=wte"], [("head", "wte", True)])
        case(tmp, "plan", language_model, ["--tie", "wte=head"], [("wte", "head", True)], plan=True)
        case(tmp, "chain", layers, ["--tie", "w1=w2", "--tie", "w0=w1"], [("w0", "w2", False), ("w0", "w1", False)])
        case(tmp, "star", layers, ["--tie", "w0=w1", "--tie", "w1=w2"], [("w0", "w1", False), ("w0", "w2", False)])
        case(tmp, "constant", layers, ["--tie", "w0=w1", "--params", "w2"], [("w0", "w1", False)], differ=True)
        check_state_without_copies(tmp)
        check_refused(tmp)
    finish()


if __name__ == "__main__":
    main()
