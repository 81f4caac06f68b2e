#!/usr/bin/env python3
"""--tile-bytes: parameters that are cut into tiles train like whole ones, with the same bits on all ranks, stages and buckets, and the outside knows only whole
ones: gradients, checkpoints, exports, what a run resumes from. Peaks of matrices that are too large fall.

    test_tiles.py TESSERA
"""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from e2e import TESSERA, check, finish, need

need("numpy", "safetensors")
import numpy as np
from safetensors.numpy import load_file

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models")
TILE = "4096"


def call(*arguments):
    return subprocess.run([TESSERA, *map(str, arguments)], capture_output=True, text=True, timeout=300)


def run(tmp, name, *options, steps=4):
    report = os.path.join(tmp, "report.json")
    model = os.path.join(MODELS, name)
    p = call("run", os.path.join(model, "model.onnx"), "--data", os.path.join(model, "inputs.safetensors"), "--no-shuffle", "--steps", steps, "--micro-batches", 4,
             "--lr", "0.003", "--report", report, *options)
    if not check(p.returncode == 0, "%s %s: %s" % (name, options, p.stderr)):
        finish()
    return json.load(open(report))


def close(a, b, most, what):
    check(a.keys() == b.keys(), "%s: other names: %s" % (what, sorted(a.keys() ^ b.keys())[:4]))
    for k in a.keys() & b.keys():
        if not check(a[k].shape == b[k].shape and a[k].dtype == b[k].dtype, "%s of '%s': %s and %s" % (what, k, a[k].shape, b[k].shape)):
            continue
        difference = np.linalg.norm((a[k].astype("f8") - b[k]).ravel()) / max(np.linalg.norm(a[k].astype("f8").ravel()), 1e-30)
        check(difference < most, "%s of '%s' differs by %g" % (what, k, difference))


def check_training(tmp, name):
    files = [os.path.join(tmp, f) for f in ("whole", "tiled", "whole.safetensors", "tiled.safetensors")]
    whole = run(tmp, name, "--save", files[0], "--dump-grads", files[2])
    tiled = run(tmp, name, "--tile-bytes", TILE, "--save", files[1], "--dump-grads", files[3])
    check(np.allclose(whole["losses"], tiled["losses"], rtol=1e-5), "%s: losses %s and %s" % (name, whole["losses"], tiled["losses"]))
    close(load_file(files[2]), load_file(files[3]), 1e-4, name + ": the gradient")
    for part, most in (("params", 1e-4), ("state", 1e-3)):
        close(*(load_file(os.path.join(f, part + ".safetensors")) for f in files[:2]), most, "%s: %s" % (name, part))
    buckets = json.loads(shown(tmp, name))["buckets"]
    check(any("[" in p["name"] for b in buckets for p in b["params"]), name + ": nothing is cut")
    for options in (["--ranks", 2, "--zero", 3], ["--ranks", 4, "--zero", 2, "--bucket-bytes", 65536], ["--ranks", 2, "--zero", 1], ["--ranks", 2, "--zero", 3, "--prefetch", 2],
                    ["--ranks", 2, "--zero", 3, "--ranks-per-process", 1]):
        r = run(tmp, name, "--tile-bytes", TILE, *options)
        check((r["params_hash"], r["losses"]) == (tiled["params_hash"], tiled["losses"]), "%s %s: other bits" % (name, options))
        check(r["peak_bytes"]["device"]["planned"] == r["peak_bytes"]["device"]["measured"], "%s %s: peak planned and measured differ" % (name, options))
    return tiled


def shown(tmp, name):
    plan = os.path.join(tmp, "plan.onnx")
    call("compile", os.path.join(MODELS, name, "model.onnx"), "--tile-bytes", TILE, "-o", plan)
    return call("show", plan, "--json").stdout


# Half, saved, and half again; with and without tiles.
def check_resume(tmp, name, tiled):
    saved, exported = os.path.join(tmp, "half"), os.path.join(tmp, "exported.safetensors")
    run(tmp, name, "--tile-bytes", TILE, "--save", saved, steps=2)
    again = run(tmp, name, "--tile-bytes", TILE, "--resume", saved, "--ranks", 2, "--zero", 3, steps=2)
    check(again["params_hash"] == tiled["params_hash"], name + ": other bits after --resume")
    other = run(tmp, name, "--resume", saved, "--tile-bytes", 0, steps=2)
    check(np.allclose(other["losses"], tiled["losses"][2:], rtol=1e-5), name + ": resumed without tiles")
    p = call("export", saved, "-o", exported)
    check(p.returncode == 0 and load_file(exported).keys() == load_file(os.path.join(saved, "params.safetensors")).keys(), name + ": export: " + p.stderr)


def check_refusals(tmp):
    model = os.path.join(MODELS, "gpt_merged", "model.onnx")
    p = call("compile", model, "--tile-bytes", TILE, "--optimizer", "lamb", "-o", os.path.join(tmp, "p.onnx"))
    check(p.returncode == 4 and "--tile-bytes" in p.stderr, "lamb: exit %d: %s" % (p.returncode, p.stderr))


# A head of 768 x 50,257 has a gradient that is never whole: what comes and goes falls to less than an eighth.
def check_peak(tmp):
    model, plan, peaks = os.path.join(tmp, "gpt.onnx"), os.path.join(tmp, "plan.onnx"), []
    call("synth", "gpt", "--layers", 1, "--d-model", 768, "--heads", 12, "--vocab", 50257, "--seq", 16, "--batch", 1, "--untied", "-o", model)
    for tile in (0, "8MiB"):
        p = call("compile", model, "--ranks", 2, "--zero", 3, "--tile-bytes", tile, "-o", plan)
        metrics = dict(line.rsplit(" ", 1) for line in call("show", plan, "--metrics").stdout.splitlines())
        peaks.append(int(metrics["peak.device"]) - sum(int(metrics["peak.device." + c]) for c in ("params", "state", "grads")))
    check(peaks[1] < peaks[0] / 8, "what comes and goes: %d bytes whole, %d in tiles" % tuple(peaks))


def main():
    with tempfile.TemporaryDirectory() as tmp:
        for name in ("mlp", "gpt_merged"):
            tiled = check_training(tmp, name)
            check_resume(tmp, name, tiled)
        check_refusals(tmp)
        check_peak(tmp)
    finish()


main()
