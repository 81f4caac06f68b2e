#!/usr/bin/env python3
"""The way out: exported models, plans as ONNX files, whole weights.

    test_export.py TESSERA
"""
import hashlib
import os
import tempfile

from e2e import check, finish, inputs, model, need, tessera, train, weights

need("numpy", "safetensors", "onnx", "onnxruntime")
import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import load_file


def digest(path):
    return hashlib.sha256(open(path, "rb").read()).hexdigest()


def runtime_loss(path, name, batch):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    tensors = load_file(inputs(name))
    return float(session.run(None, {i.name: tensors["%s.%d" % (i.name, batch)] for i in session.get_inputs()})[0])


def check_export(name, tmp):
    saved, out = os.path.join(tmp, "saved"), os.path.join(tmp, "out.onnx")
    train(name, "--steps", 0, "--save", saved)
    p = tessera("export", saved, "-o", out)
    check(p.returncode == 0 and digest(out) == digest(model(name)), "%s: --steps 0 does not export the same bytes: %s" % (name, p.stderr))
    # The loss that step 4 reports is that of the parameters after steps 0..3 on batch 4.
    train(name, "--steps", 4, "--ranks", 1, "--save", saved, "--lr", "0.01")
    r = train(name, "--steps", 5, "--ranks", 1, "--lr", "0.01")
    p = tessera("export", saved, "-o", out)
    check(p.returncode == 0, "%s: export: %s" % (name, p.stderr))
    onnx.checker.check_model(out, full_check=True)
    loss = runtime_loss(out, name, 4)
    check(abs(loss - r["losses"][4]) <= 2e-6 * abs(loss), "%s: ONNX Runtime says %r, tessera %r" % (name, loss, r["losses"][4]))
    check(digest(out) != digest(model(name)), "%s: training changed nothing" % name)
    trained = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(out).graph.initializer}
    for key, w in weights(saved).items():
        check(np.array_equal(trained[key].ravel(), w.ravel()), "%s: '%s' differs between the two exports" % (name, key))


def check_wrong_source(tmp):
    saved = os.path.join(tmp, "saved_mlp")
    train("mlp", "--steps", 1, "--save", saved)
    p = tessera("export", saved, "-o", os.path.join(tmp, "x.onnx"), "--model", model("linreg"))
    check(p.returncode == 1 and "fingerprint" in p.stderr, "another model is accepted: exit %d %s" % (p.returncode, p.stderr))
    for arguments, code in ((["-o", os.path.join(tmp, "x.bin")], 2), ([], 2), (["-o", os.path.join(model("mlp"), "x.onnx")], 5)):
        p = tessera("export", saved, *arguments)
        check(p.returncode == code and p.stderr.startswith("tessera: error: "), "export %s: exit %d %s" % (arguments, p.returncode, p.stderr))


def check_external(tmp):
    """As torch.onnx.export(dynamo=True) writes it: the weights in NAME.onnx.data. Exports beside it and beside each other leave all data alone."""
    folder = os.path.join(tmp, "external")
    os.makedirs(folder)
    source, one, two = (os.path.join(folder, n) for n in ("model.onnx", "trained.onnx", "other.onnx"))
    onnx.save(onnx.load(model("mlp")), source, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    before = digest(source), digest(source + ".data")
    saved, first = os.path.join(folder, "ck"), os.path.join(folder, "ck1")
    train("mlp", "--steps", 1, "--save", first, source=source)
    train("mlp", "--steps", 4, "--save", saved, source=source)
    r = train("mlp", "--steps", 5)
    for checkpoint, out in ((first, one), (saved, two), (saved, os.path.join(folder, "new", "folder", "model.onnx"))):
        p = tessera("export", checkpoint, "-o", out)
        check(p.returncode == 0 and os.path.exists(out + ".data"), "export of external data: exit %d %s" % (p.returncode, p.stderr))
    check((digest(source), digest(source + ".data")) == before, "the export changed its source")
    check(sorted(os.listdir(folder)) == ["ck", "ck1", "model.onnx", "model.onnx.data", "new", "other.onnx", "other.onnx.data", "trained.onnx", "trained.onnx.data"],
          "the folder holds %s" % os.listdir(folder))
    for out, step in ((one, 1), (two, 4), (os.path.join(folder, "new", "folder", "model.onnx"), 4)):
        onnx.checker.check_model(out, full_check=True)
        loss = runtime_loss(out, "mlp", step)
        check(abs(loss - r["losses"][step]) <= 2e-6 * abs(loss), "%s: ONNX Runtime says %r, tessera %r" % (out, loss, r["losses"][step]))
    p = tessera("export", saved, "-o", source)
    check(p.returncode == 2 and "would overwrite" in p.stderr and digest(source + ".data") == before[1], "onto the source: exit %d %s" % (p.returncode, p.stderr))
    several = os.path.join(folder, "several.onnx")
    onnx.save(onnx.load(source), several, save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=0)
    train("mlp", "--steps", 4, "--save", saved, source=several)
    p = tessera("export", saved, "-o", os.path.join(folder, "parts.onnx"))
    loss = runtime_loss(os.path.join(folder, "parts.onnx"), "mlp", 4)
    check(p.returncode == 0 and abs(loss - r["losses"][4]) <= 2e-6 * abs(loss), "several files: exit %d %s, loss %r" % (p.returncode, p.stderr, loss))


def check_plan(name, tmp):
    plan = os.path.join(tmp, "plan.onnx")
    options = ["--ranks", 2, "--zero", 3, "--micro-batches", 4, "--lr", "0.01"]
    p = tessera("compile", model(name), "-o", plan, *options)
    check(p.returncode == 0, "compile: " + p.stderr)
    onnx.checker.check_model(plan)
    first = digest(plan)
    tessera("compile", model(name), "-o", plan, *options)
    check(digest(plan) == first, "%s: compiling twice gives different plans" % name)
    a, b = train(name, "--steps", 3, *options), train(name, "--steps", 3, source=plan)
    check(a["losses"] == b["losses"] and a["params_hash"] == b["params_hash"], "%s: the plan and the model train differently" % name)
    check(tessera("verify", plan).returncode == 0, "%s: the plan is not proved" % name)
    r = train(name, "--steps", 1, "--ranks", 4, source=plan, expect=2)
    check("fixed in a plan" in r["stderr"], "an option that the plan fixes is accepted: " + r["stderr"])
    copy = os.path.join(tmp, "copy.onnx")
    os.replace(plan, copy)
    r = train(name, "--steps", 3, "--weights", model(name), source=copy)
    check(r["params_hash"] == a["params_hash"], "%s: --weights gives other parameters" % name)
    other = "linreg" if name != "linreg" else "mlp"
    r = train(name, "--steps", 3, "--weights", model(other), source=copy, expect=2)
    check("fingerprint" in r["stderr"], "weights of another model are accepted: " + r["stderr"])


def main():
    with tempfile.TemporaryDirectory() as tmp:
        for name in ("mlp", "linreg", "gpt_merged"):
            check_export(name, tmp)
            check_plan(name, tmp)
        check_wrong_source(tmp)
        check_external(tmp)
    finish()


if __name__ == "__main__":
    main()
