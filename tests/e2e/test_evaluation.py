#!/usr/bin/env python3
"""--eval-data: the loss of the parameters of now on other data. It is what onnxruntime computes of the exported model out of training mode, the same for all numbers of
ranks, stages and queues; training does not notice it.

    test_evaluation.py TESSERA
"""
import csv
import json
import math
import os
import tempfile

from e2e import check, finish, inputs, model, need, tessera, train, weights

need("numpy", "onnx", "safetensors", "onnxruntime")
import numpy as np
import onnx
from safetensors.numpy import load_file, save_file


def evaluated(name, *options, **more):
    r = train(name, *options, **more)
    return r, r.get("evaluations", {})


def onnx_loss(exported, batches):
    """Mean over all batches, which are of equal size."""
    import onnxruntime
    session = onnxruntime.InferenceSession(exported, providers=["CPUExecutionProvider"])
    return float(np.mean([session.run(None, b)[0] for b in batches]))


def batches_of(path, n):
    d = load_file(path)
    names = sorted({k.rsplit(".", 1)[0] for k in d})
    return [{k: d["%s.%d" % (k, i)] for k in names} for i in range(n)]


def other_data(tmp, name, n):
    """Batches of the same shapes and other numbers: those of the model in another order, floats scaled."""
    d = batches_of(inputs(name), n)
    path = os.path.join(tmp, name + ".eval.safetensors")
    save_file({"%s.%d" % (k, i): np.ascontiguousarray(v * np.float32(0.5) if v.dtype == np.float32 else v) for i, b in enumerate(reversed(d)) for k, v in b.items()}, path)
    return path


def check_value(tmp):
    data, saved, exported = other_data(tmp, "mlp", 6), os.path.join(tmp, "saved"), os.path.join(tmp, "mlp.onnx")
    r, e = evaluated("mlp", "--steps", 5, "--eval-data", data, "--eval-every", 2, "--save", saved)
    check(e["steps"] == [1, 3, 4] and e["micro_batches"] == 6, "evaluations: %s" % e)
    check(tessera("export", saved, "-o", exported).returncode == 0, "export")
    want = onnx_loss(exported, batches_of(data, 6))
    check(abs(e["losses"][-1] - want) < 2e-6, "evaluation %.9g, onnxruntime %.9g" % (e["losses"][-1], want))
    lines = [s for s in r["stdout"].split("\n") if "eval_loss" in s]
    check([s.split()[1] for s in lines] == ["1", "3", "4"] and abs(float(lines[-1].split()[-1]) - want) < 2e-6, "stdout: %s" % r["stdout"])
    r, part = evaluated("mlp", "--steps", 5, "--eval-data", data, "--eval-steps", 2, "--micro-batches", 2)
    check(part["steps"] == [4] and part["micro_batches"] == 4, "--eval-steps: %s" % part)
    exported2 = os.path.join(tmp, "mlp2.onnx")
    train("mlp", "--steps", 5, "--micro-batches", 2, "--save", saved)
    check(tessera("export", saved, "-o", exported2).returncode == 0, "export")
    want = onnx_loss(exported2, batches_of(data, 4))
    check(abs(part["losses"][0] - want) < 2e-6, "--eval-steps 2: %.9g, onnxruntime %.9g" % (part["losses"][0], want))


def check_same(tmp, name, n, settings, *options):
    """Training bits with and without evaluation, evaluation bits under every setting."""
    data = other_data(tmp, name, n)
    first = None
    for setting in settings:
        plain = train(name, *options, *setting)
        r, e = evaluated(name, *options, *setting, "--eval-data", data, "--eval-every", 1)
        what = "%s %s" % (name, setting)
        for key in ("losses", "grad_norms", "params_hash"):
            check(r[key] == plain[key], "%s: evaluating changes %s" % (what, key))
        check(r["sent_bytes_per_step"] == plain["sent_bytes_per_step"], "%s: evaluating changes what is sent" % what)
        first = first or e
        check(e == first and len(e["losses"]) == len(r["losses"]) and all(map(math.isfinite, e["losses"])), "%s: evaluations %s, of the first setting %s" % (what, e, first))
    check(len(set(first["losses"])) == len(first["losses"]), "%s: evaluations do not change: %s" % (name, first))


def check_statistics(tmp, ranks):
    """Running statistics, in the checkpoint too, and gradients of the first step, whose memory an evaluation uses."""
    dumps, states, evaluations = [], [], []
    for i, more in enumerate(([], ["--eval-every", 1], ["--eval-every", 1, "--zero", 3])):
        saved, dump, report = (os.path.join(tmp, "bn%d.%d%s" % (ranks, i, suffix)) for suffix in ("", ".safetensors", ".json"))
        evaluates = ["--eval-data", "random", "--eval-steps", 2] if more else []
        p = tessera("run", model("resnet_bn"), "--data", "random", "--ranks", ranks, "--steps", 3, "--save", saved, "--dump-grads", dump, "--report", report, *evaluates, *more)
        check(p.returncode == 0, "resnet_bn %s: %s" % (more, p.stderr))
        states.append(weights(saved))
        dumps.append(load_file(dump))
        evaluations.append(json.load(open(report)).get("evaluations"))
    check(evaluations[1] == evaluations[2] and len(set(evaluations[1]["losses"])) == 3, "stage 3 evaluates otherwise: %s" % evaluations)
    for what, (a, *others) in (("parameters and running statistics", states), ("gradients", dumps)):
        check(all(set(a) == set(b) and all(np.array_equal(a[k], b[k]) for k in a) for b in others), "evaluating changes %s" % what)
    check(any("running_mean" in k for k in states[0]), "no running statistics in %s" % sorted(states[0])[:9])


def with_dropout(tmp):
    """The model mlp with a Dropout of half of what its Relu gives, in training mode."""
    m = onnx.load(model("mlp"))
    at = next(i for i, n in enumerate(m.graph.node) if n.op_type == "Relu")
    relu = m.graph.node[at].output[0]
    for n in m.graph.node:
        n.input[:] = ["dropped" if x == relu else x for x in n.input]
    m.graph.initializer.extend([onnx.numpy_helper.from_array(np.float32(0.5), "ratio"), onnx.numpy_helper.from_array(np.bool_(True), "training")])
    m.graph.node.insert(at + 1, onnx.helper.make_node("Dropout", [relu, "ratio", "training"], ["dropped"], "drop"))
    path = os.path.join(tmp, "dropout.onnx")
    onnx.save(m, path)
    return path


def for_inference(path):
    """The model out of training mode, as eval() makes it."""
    m = onnx.load(path)
    for n in m.graph.node:
        if n.op_type == "Dropout":
            del n.input[1:]
        if n.op_type == "BatchNormalization":
            next(a for a in n.attribute if a.name == "training_mode").i = 0
            del n.output[1:]
    onnx.save(m, path)
    return path


def check_inference(tmp):
    """Dropout and BatchNormalization in training mode are evaluated out of it, and train as without an evaluation."""
    dropout = with_dropout(tmp)
    with_statistics = os.path.join(tmp, "bn.safetensors")
    rng = np.random.default_rng(7)
    shapes = {i.name: ([d.dim_value for d in i.type.tensor_type.shape.dim], i.type.tensor_type.elem_type) for i in onnx.load(model("resnet_bn")).graph.input}
    save_file({"%s.%d" % (k, b): rng.standard_normal(s).astype(np.float32) if t == onnx.TensorProto.FLOAT else rng.integers(0, 10, s) for k, (s, t) in shapes.items()
               for b in range(4)}, with_statistics)
    for name, path, data in (("dropout", dropout, inputs("mlp")), ("resnet_bn", model("resnet_bn"), with_statistics)):
        first = None
        for setting in (["--ranks", 1], ["--ranks", 2, "--zero", 3, "--prefetch", 1], ["--ranks", 4, "--zero", 2]):
            saved, exported, report = (os.path.join(tmp, name + suffix) for suffix in (".saved", ".exported.onnx", ".json"))
            common = ["run", path, "--data", data, "--no-shuffle", "--steps", 3, "--micro-batches", 4, *setting, "--report", report]
            check(tessera(*common).returncode == 0, name)
            plain = json.load(open(report))
            p = tessera(*common, "--eval-data", data, "--eval-every", 1, "--eval-steps", 1, "--save", saved)
            check(p.returncode == 0 and tessera("export", saved, "-o", exported).returncode == 0, "%s: %s" % (name, p.stderr))
            r = json.load(open(report))
            check((r["losses"], r["params_hash"]) == (plain["losses"], plain["params_hash"]), "%s %s: evaluating changes training" % (name, setting))
            want = onnx_loss(for_inference(exported), batches_of(data, 4))
            got = r["evaluations"]["losses"]
            check(abs(got[-1] - want) < 2e-6, "%s %s: evaluation %.9g, onnxruntime out of training mode %.9g" % (name, setting, got[-1], want))
            first = first or got
            check(got == first, "%s %s: evaluations %s, on one rank %s" % (name, setting, got, first))


def check_metrics(tmp):
    data, table, lines = other_data(tmp, "mlp", 2), os.path.join(tmp, "m.csv"), os.path.join(tmp, "m.jsonl")
    _, e = evaluated("mlp", "--steps", 5, "--eval-data", data, "--eval-every", 3, "--metrics", table)
    rows = {int(r["step"]): r["eval_loss"] for r in csv.DictReader(open(table))}
    check([rows[s] != "" for s in range(5)] == [False, False, True, False, True] and [float(rows[s]) for s in e["steps"]] == e["losses"], "CSV: %s" % rows)
    evaluated("mlp", "--steps", 5, "--eval-data", data, "--eval-every", 3, "--metrics", lines)
    rows = [json.loads(s) for s in open(lines)]
    check([r["eval_loss"] for r in rows if "eval_loss" in r] == e["losses"], "JSONL: %s" % rows)


def check_plan(tmp):
    plan, data = os.path.join(tmp, "p.onnx"), other_data(tmp, "mlp", 3)
    check(tessera("compile", model("mlp"), "--ranks", 2, "--zero", 3, "-o", plan).returncode == 0, "compile")
    _, a = evaluated("mlp", "--steps", 3, "--eval-data", data, source=plan)
    _, b = evaluated("mlp", "--steps", 3, "--eval-data", data, "--micro-batches", 2)
    check(a == b, "a plan evaluates to %s, a model to %s" % (a, b))


def check_tokens(tmp):
    """A text to train on and one to evaluate; random data need --eval-steps."""
    text = os.path.join(tmp, "valid.txt")
    gpt = os.path.join(os.path.dirname(model("mlp")), "..", "..", "..", "examples")
    open(text, "w").write(open(os.path.join(gpt, "text.txt")).read()[:2000])
    report = os.path.join(tmp, "r.json")
    p = tessera("run", os.path.join(gpt, "gpt.onnx"), "--data", os.path.join(gpt, "text.txt"), "--steps", 6, "--eval-data", text, "--eval-every", 3, "--report", report)
    e = json.load(open(report)).get("evaluations", {"losses": []})
    check(p.returncode == 0 and len(e["losses"]) == 2 and e["losses"][1] < e["losses"][0], "tokens: %s %s" % (e, p.stderr))
    for options, code, says in ((["--eval-every", 2], 2, "needs --eval-data"), (["--eval-data", "-"], 2, "passes once"), (["--eval-data", "random"], 2, "--eval-steps"),
                                (["--eval-data", os.path.join(tmp, "none.safetensors")], 5, "none.safetensors"),
                                (["--eval-data", inputs("linreg")], 3, "--eval-data")):
        r = train("mlp", "--steps", 2, *options, expect=code)
        check(says in r["stderr"], "%s: %s" % (options, r["stderr"]))
    _, e = evaluated("mlp", "--steps", 2, "--eval-data", "random", "--eval-steps", 3)
    check(e["micro_batches"] == 3, "random: %s" % e)


with tempfile.TemporaryDirectory() as folder:
    check_value(folder)
    check_same(folder, "mlp", 5, [["--ranks", n, "--zero", z, *more] for n, z, more in
                                  ((1, 0, []), (2, 1, []), (2, 3, ["--prefetch", 2]), (4, 2, []), (4, 3, []), (4, 3, ["--bucket-bytes", "4096", "--prefetch", 4]))],
               "--micro-batches", 4, "--steps", 3)
    check_same(folder, "gpt_merged", 3, [["--ranks", 1], ["--ranks", 2, "--zero", 3, "--prefetch", 1], ["--ranks", 2, "--zero", 2]], "--micro-batches", 2, "--steps", 2)
    check_statistics(folder, 1)        # forward steps carry running statistics on; of several ranks the update does
    check_statistics(folder, 2)
    check_inference(folder)
    check_metrics(folder)
    check_plan(folder)
    check_tokens(folder)
finish()
