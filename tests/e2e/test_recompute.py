#!/usr/bin/env python3
"""--recompute: the same bits as without, no bucket gathered a third time, less memory, planned = measured; random operators, running statistics, budgets.

    test_recompute.py TESSERA
"""
import json
import os
import tempfile

from e2e import check, finish, inputs, model, need, tessera, train, weights

need("numpy", "onnx", "safetensors")
import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

WAYS = [["--ranks", 1], ["--ranks", 2, "--zero", 0, "--reduce", "micro"], ["--ranks", 2, "--zero", 1, "--prefetch", 1], ["--ranks", 4, "--zero", 2],
        ["--ranks", 2, "--zero", 3, "--prefetch", 2], ["--ranks", 4, "--zero", 3, "--keep", "backward"]]


def peak(report, category=None):
    device = report["peak_bytes"]["device"]
    return device["by_category"].get(category, 0) if category else device["planned"]


def run(tmp, path, *arguments, expect=0):
    report = os.path.join(tmp, "report.json")
    if os.path.exists(report):
        os.remove(report)
    p = tessera("run", path, "--data", "random", "--report", report, "--steps", 3, *arguments)
    check(p.returncode == expect, "run %s: exit %d: %s" % (arguments, p.returncode, p.stderr.strip()[-300:]))
    r = json.load(open(report)) if os.path.exists(report) else {}
    r["stderr"] = p.stderr
    return r


def same(r, base, what):
    check([r.get(k) for k in ("losses", "grad_norms", "params_hash")] == [base[k] for k in ("losses", "grad_norms", "params_hash")] and base["params_hash"],
          "%s: other bits" % what)
    device = r["peak_bytes"]["device"]
    check(device["planned"] == device["measured"], "%s: peak %s" % (what, device))
    sent = r["sent_bytes_per_step"]
    check(sent["planned"] == sent["measured"], "%s: sent %s" % (what, sent))


def check_bits():
    for precision in ("f32", "bf16"):
        common = ["--steps", 3, "--micro-batches", 4, "--precision", precision, "--bucket-bytes", 8192]
        base = train("gpt_merged", *common)
        for way in WAYS:
            plain = train("gpt_merged", *common, *way)
            for mode in ("blocks", "all"):
                r = train("gpt_merged", *common, *way, "--recompute", mode)
                same(r, base, "%s %s %s" % (precision, way, mode))
                sent, before = r["sent_bytes_per_step"], plain["sent_bytes_per_step"]
                check(sent["formula"] == before["formula"] and sent["planned"] >= before["planned"], "%s: sent %s, without recomputation %s" % (way, sent, before))


def check_memory(tmp):
    """A transformer of six blocks: what is kept falls, a tighter budget costs more operations, and none of it sends more."""
    path = os.path.join(tmp, "gpt.onnx")
    p = tessera("synth", "gpt", "--layers", 6, "--d-model", 64, "--heads", 4, "--vocab", 101, "--seq", 64, "--init", "random", "-o", path)
    check(p.returncode == 0, "synth: %s" % p.stderr)
    common = ["--batch", 4, "--ranks", 2, "--zero", 3, "--bucket-bytes", 65536]
    base = run(tmp, path, *common)
    kept = peak(base, "activations") // 2
    flops, peaks = [], []
    for mode in ("none", "budget=%d" % (kept * 7 // 10), "budget=%d" % (kept // 2), "budget=%d" % (kept * 3 // 10), "blocks", "all"):
        r = run(tmp, path, *common, "--recompute", mode)
        same(r, base, mode)
        sent = r["sent_bytes_per_step"]
        check(sent["planned"] <= sent["formula"] + sent["by_collective"]["control"], "%s sends more than a gather for each direction: %s" % (mode, sent))
        if mode.startswith("budget"):
            check(peak(r, "activations") <= 2 * int(mode[7:]), "%s: %d bytes of activations on two ranks" % (mode, peak(r, "activations")))
        plan = os.path.join(tmp, "plan.onnx")
        p = tessera("compile", path, *common, "--recompute", mode, "-o", plan)
        check(p.returncode == 0 and ("run again for backward" in p.stdout) == (mode != "none"), "compile: %s" % p.stdout)
        said = json.loads(tessera("simulate", plan, "--json").stdout)
        flops.append(said["recomputed_flops"] / said["product_flops"])
        peaks.append(peak(r))
        again = [s for s in json.loads(tessera("show", plan, "--json").stdout)["steps"] if s["recomputes"]]
        check(bool(again) == (mode != "none") and all(s["backward"] for s in again), "%s: %d steps run again" % (mode, len(again)))
    check(flops[:4] == sorted(flops[:4]) and flops[0] == 0 and 0.15 < flops[4] < 0.3, "share of operations that run again: %s" % flops)
    check(peaks[0] > peaks[1] > peaks[2] and max(peaks[4:]) < 0.6 * peaks[0], "peaks %s" % peaks)
    r = run(tmp, path, *common, "--recompute", "budget=1000", expect=7)
    check("at least with it" in r["stderr"], "a budget out of reach: %s" % r["stderr"])


def residual(path, middle, outputs=(), initializers=(), shape=(4, 16), width=16):
    """Three blocks s + W middle(s)."""
    rng = np.random.default_rng(0)
    nodes, tensors, at = [], [numpy_helper.from_array(np.asarray(v), n) for n, v in initializers], "x"
    for i in range(4):
        w = rng.standard_normal((width, width) + (1,) * (len(shape) - 2)).astype(np.float32) * 0.2
        tensors.append(numpy_helper.from_array(w, "w%d" % i))
        before = at if i == 0 else middle(i, at, nodes, tensors)
        op = "Conv" if len(shape) > 2 else "MatMul"
        nodes.append(helper.make_node(op, [before, "w%d" % i], ["c%d" % i], name="product%d" % i))
        if i:
            nodes.append(helper.make_node("Add", [at, "c%d" % i], ["s%d" % i], name="add%d" % i))
        at = "s%d" % i if i else "c0"
    nodes += [helper.make_node("Mul", [at, at], ["squares"], name="squares"), helper.make_node("ReduceMean", ["squares"], ["loss"], name="mean", keepdims=0)]
    graph = helper.make_graph(nodes, "residual", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], tensors)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def check_random(tmp):
    def drop(i, at, nodes, tensors):
        nodes.append(helper.make_node("Dropout", [at, "ratio", "training"], ["d%d" % i], name="drop%d" % i))
        nodes.append(helper.make_node("Tanh", ["d%d" % i], ["e%d" % i], name="tanh%d" % i))
        return "e%d" % i
    path = os.path.join(tmp, "drop.onnx")
    residual(path, drop, initializers=[("ratio", np.float32(0.3)), ("training", np.array(True))])
    common = ["--micro-batches", 4, "--params", "w*"]
    base = run(tmp, path, *common)
    check(base["losses"] != run(tmp, path, *common, "--seed", 5)["losses"], "the seed decides what is dropped")
    for mode in ("blocks", "all"):
        for way in WAYS:
            same(run(tmp, path, *common, *way, "--recompute", mode), base, "dropout %s %s" % (way, mode))
    plan = os.path.join(tmp, "plan.onnx")
    tessera("compile", path, *common, "--recompute", "blocks", "-o", plan)
    again = [s["op"] for s in json.loads(tessera("show", plan, "--json").stdout)["steps"] if s["recomputes"]]
    check("Dropout" in again, "steps that run again: %s" % again)


def check_statistics(tmp):
    """Running statistics move once a micro-batch, also where the normalization runs again."""
    def norm(i, at, nodes, tensors):
        for n, v in (("scale", 1), ("bias", 0), ("mean", 0), ("var", 1)):
            tensors.append(numpy_helper.from_array(np.full(4, v, np.float32), "%s%d" % (n, i)))
        nodes.append(helper.make_node("BatchNormalization", [at] + ["%s%d" % (n, i) for n in ("scale", "bias", "mean", "var")], ["n%d" % i, "nm%d" % i, "nv%d" % i],
                                      name="norm%d" % i, training_mode=1))
        return "n%d" % i
    path = os.path.join(tmp, "norm.onnx")
    residual(path, norm, shape=(2, 4, 6, 6), width=4)
    common = ["--params", "w*,scale*,bias*"]
    for micro in (1, 4):
        kept = {}
        for mode in ("none", "blocks", "all"):
            for way in WAYS[:1] if micro == 1 else WAYS:
                saved = os.path.join(tmp, "saved-%d-%s-%s" % (micro, mode, "".join(map(str, way))))
                r = run(tmp, path, *common, "--micro-batches", micro, *way, "--recompute", mode, "--save", saved)
                result = (r["losses"], r["params_hash"], {k: v.tobytes() for k, v in weights(saved).items()})
                check(any("mean" in k for k in result[2]), "the checkpoint has running statistics: %s" % sorted(result[2]))
                kept.setdefault("first", result)
                check(result == kept["first"], "%d micro-batches, %s, %s: losses, parameters or running statistics differ" % (micro, way, mode))
    plan = os.path.join(tmp, "plan.onnx")
    tessera("compile", path, *common, "--recompute", "blocks", "-o", plan)
    again = [s["op"] for s in json.loads(tessera("show", plan, "--json").stdout)["steps"] if s["recomputes"]]
    check("BatchNormalization" in again, "steps that run again: %s" % again)


def check_usage():
    for mode, code, says in (("some", 2, "none of none, blocks, all"), ("budget", 2, "none of none"), ("budget=x", 2, "is not a size"), ("budget=0", 2, "outside"),
                             ("blocks", 4, "there are no blocks")):
        p = tessera("run", model("mlp"), "--data", inputs("mlp"), "--recompute", mode)
        check(p.returncode == code and says in p.stderr, "--recompute %s: exit %d: %s" % (mode, p.returncode, p.stderr))


def main():
    with tempfile.TemporaryDirectory() as tmp:
        check_bits()
        check_memory(tmp)
        check_random(tmp)
        check_statistics(tmp)
    check_usage()
    finish()


if __name__ == "__main__":
    main()
