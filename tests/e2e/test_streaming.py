#!/usr/bin/env python3
"""Weights larger than memory: nothing holds all of them, or one whole tensor, beside the plan's arenas. Compile, start, save, resume and export are
measured on a model whose tensors are each larger than what is allowed.

    test_streaming.py TESSERA
"""
import json
import os
import subprocess
import tempfile

from e2e import TESSERA, check, finish, sanitized, tessera

TENSOR = 3072 * 3072 * 4                         # bytes of each of 2 hidden layers
EXTRA = 24 << 20                                 # that a run may take beside its arenas: half of it is what is resident of the program
COMMAND = 40 << 20                               # that other commands may take, what is resident of the program and of this one's fork among it


def peak(*arguments):
    """Most that was resident of the command, in bytes."""
    process = subprocess.Popen([TESSERA, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    check(process.returncode == 0, "%s: exit %d %s" % (arguments[0], process.returncode, said))
    return usage.ru_maxrss * 1024


def run(tmp, model, *options):
    report = os.path.join(tmp, "report.json")
    p = tessera("run", model, "--batch", 1, "--data", "random", "--steps", 1, "--ranks", 2, "--zero", 3, "--optimizer", "sgd", "--report", report, *options)
    if not check(p.returncode == 0, "run %s: %s" % (options, p.stderr)):
        finish()
    r = json.load(open(report))
    extra = r["rss_peak_bytes"][0] - r["rss_before_arena_bytes"][0] - r["peak_bytes"]["device"]["planned"]
    check(sanitized() or extra <= EXTRA, "run %s: %d bytes beside the arenas, %d are allowed" % (options, extra, EXTRA))
    return r


def command(what, *arguments):
    bytes_ = peak(*arguments)
    check(sanitized() or bytes_ <= COMMAND, "%s: %d bytes were resident, %d are allowed" % (what, bytes_, COMMAND))


def main():
    with tempfile.TemporaryDirectory() as tmp:
        model, saved, exported, tensors = (os.path.join(tmp, n) for n in ("m.onnx", "saved", "e.onnx", "w.safetensors"))
        check(tessera("synth", "mlp", "--layers", 3, "--d-model", 3072, "--vocab", 16, "--init", "random", "-o", model).returncode == 0, "synth")
        check(min(TENSOR, os.path.getsize(model + ".data") - COMMAND) > max(EXTRA, 0), "the tensors are too small to prove anything")
        command("compile", "compile", model, "--batch", 1, "--ranks", 2, "--zero", 3, "-o", os.path.join(tmp, "p.onnx"))
        first = run(tmp, model, "--save", saved)
        command("export as a model", "export", saved, "-o", exported)
        command("export as tensors", "export", saved, "-o", tensors)
        with open(exported + ".data", "rb") as a, open(model + ".data", "rb") as b:
            check(a.read(1 << 20) != b.read(1 << 20), "the export has the weights from before the training")
        zero = run(tmp, exported, "--lr", 0)
        check(first["params_hash"] == zero["params_hash"], "what was exported is not what was trained")
        resumed = run(tmp, model, "--resume", saved, "--lr", 0)
        check(first["params_hash"] == resumed["params_hash"], "what was resumed is not what was saved")
    finish()


if __name__ == "__main__":
    main()
