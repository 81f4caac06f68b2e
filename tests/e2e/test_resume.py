#!/usr/bin/env python3
"""A checkpoint carries every option that decides results: --resume goes on as it was, says what it took up and what is other than before; another
model's checkpoint is refused; --save-every keeps checkpoints on the way.

    test_resume.py TESSERA
"""
import json
import os
import tempfile

from e2e import check, finish, inputs, model, tessera, train

OPTIMIZERS = [
    ["--optimizer", "adamw", "--lr", "0.01", "--betas", "0.8,0.99", "--eps", "1e-6", "--weight-decay", "0.1", "--clip-norm", "0.3"],
    ["--optimizer", "sgd", "--lr-list", "0.1,0.05,0.02,0.01", "--momentum", "0.9", "--nesterov"],
    ["--optimizer", "rmsprop", "--alpha", "0.9", "--lr", "0.002", "--freeze", "layers.0.*"],
    ["--optimizer", "adagrad", "--lr-decay", "0.1", "--initial-accumulator", "0.2", "--precision", "fp64"],
]


def check_same(tmp, options):
    saved = os.path.join(tmp, "saved")
    whole = train("mlp", *options, "--steps", 5, "--micro-batches", 4)
    train("mlp", *options, "--steps", 3, "--ranks", 4, "--zero", 2, "--save", saved)       # 4 micro-batches follow from 4 ranks
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "r.json")
        p = tessera("run", model("mlp"), "--data", inputs("mlp"), "--resume", saved, "--steps", 2, "--ranks", 2, "--report", report)
        check(p.returncode == 0, "--resume after %s: %s" % (options, p.stderr))
        rest = json.load(open(report))
    check(rest["losses"] == whole["losses"][3:] and rest["params_hash"] == whole["params_hash"], "%s: --resume gives %s, wanted %s" % (options, rest["losses"], whole["losses"][3:]))
    said = [line for line in p.stderr.split("\n") if "as in the checkpoint" in line]
    check(len(said) == 1 and "--micro-batches=4" in said[0] and "--no-shuffle" in said[0], "--resume says %s" % p.stderr)


def check_other(tmp):
    saved, again = os.path.join(tmp, "saved"), os.path.join(tmp, "again")
    train("mlp", "--lr", "0.01", "--steps", 1, "--save", saved)
    r = train("mlp", "--resume", saved, "--steps", 1, "--lr", "0.02", "--weight-decay", "0.5", "--save", again)
    said = [line for line in r["stderr"].split("\n") if "other than in the checkpoint" in line]
    check(len(said) == 1 and "--lr=0.02 (was --lr=0.01)" in said[0] and "--weight-decay=0.5 (was not given)" in said[0], "another --lr: %s" % r["stderr"])
    meta = json.load(open(os.path.join(again, "meta.json")))
    check("--lr=0.02" in meta["options"] and "--clip-norm=0" in meta["defaults"], "meta.json says %s, %s" % (meta["options"], meta["defaults"]))
    train("mlp", "--resume", saved, "--optimizer", "sgd", "--steps", 1, expect=2)
    r = train("linreg", "--resume", saved, "--steps", 1, expect=2)
    check(meta["model"]["fingerprint"] in r["stderr"] and "not of" in r["stderr"] and "linreg" in r["stderr"] and r["compile_ms"] < 1e3,
          "another model's checkpoint: %s" % r["stderr"])
    meta["options"].append("--ranks=2")
    json.dump(meta, open(os.path.join(again, "meta.json"), "w"))
    r = train("mlp", "--resume", again, "--steps", 1, expect=4)
    check("--ranks=2" in r["stderr"], "an option that is not recorded: %s" % r["stderr"])


def check_plan(tmp):
    plan, saved = os.path.join(tmp, "plan.onnx"), os.path.join(tmp, "from_plan")
    options = ["--optimizer", "adamw", "--lr", "0.01", "--clip-norm", "0.3"]
    whole = train("mlp", *options, "--steps", 4, "--micro-batches", 2)
    p = tessera("compile", model("mlp"), *options, "--ranks", 2, "-o", plan)
    check(p.returncode == 0, p.stderr)
    train("mlp", "--steps", 2, "--save", saved, source=plan)
    rest = train("mlp", "--resume", saved, "--steps", 2)
    check(rest["losses"] == whole["losses"][2:] and rest["params_hash"] == whole["params_hash"], "a plan's checkpoint, resumed with the model: %s, wanted %s" %
          (rest["losses"], whole["losses"][2:]))


def check_own_optimizer(tmp):
    """A model that brings its optimizer goes on with it, and with no other."""
    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "training_graphs", "ti_linreg_momentum")
    saved, report = os.path.join(tmp, "own"), os.path.join(tmp, "own.json")
    common = ["run", os.path.join(folder, "model.onnx"), "--data", os.path.join(folder, "inputs.safetensors"), "--no-shuffle", "--report", report]

    def run(*arguments):
        p = tessera(*common, *arguments)
        return p, json.load(open(report))

    _, whole = run("--steps", 6)
    p, _ = run("--steps", 3, "--save", saved)
    check(p.returncode == 0, p.stderr)
    p, rest = run("--steps", 3, "--resume", saved)
    check(p.returncode == 0 and rest["losses"] == whole["losses"][3:] and rest["params_hash"] == whole["params_hash"], "a model's own optimizer: %s" % p.stderr)
    p, _ = run("--steps", 1, "--resume", saved, "--optimizer", "sgd", "--momentum", "0.9")
    check(p.returncode == 2 and "model_momentum" in p.stderr, "another optimizer than the model's: exit %d %s" % (p.returncode, p.stderr))
    p, _ = run("--steps", 2, "--optimizer", "adamw", "--save", saved)
    check(p.returncode == 0, p.stderr)
    p, _ = run("--steps", 1, "--resume", saved)
    check(p.returncode == 0 and " adamw, " in p.stderr, "a named optimizer is taken up: exit %d %s" % (p.returncode, p.stderr))


def check_missing(tmp):
    """What trains now and has no state in the checkpoint is an error that names it."""
    saved = os.path.join(tmp, "part")
    train("mlp", "--optimizer", "sgd", "--momentum", "0.9", "--freeze", "layers.0.*", "--steps", 2, "--save", saved)
    r = train("mlp", "--resume", saved, "--freeze", "layers.1.bias", "--steps", 1, expect=2)
    check("layers.0." in r["stderr"] and "momentum_buffer" in r["stderr"] and "does not hold it" in r["stderr"], r["stderr"])


def main():
    with tempfile.TemporaryDirectory() as tmp:
        for options in OPTIMIZERS:
            check_same(tmp, options)
        check_other(tmp)
        check_plan(tmp)
        check_own_optimizer(tmp)
        check_missing(tmp)
    finish()


if __name__ == "__main__":
    main()
