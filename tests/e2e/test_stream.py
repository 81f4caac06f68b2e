#!/usr/bin/env python3
"""Streams that end early or carry something else, and places that cannot be written: the run says so, early, and keeps what it has done.

    test_stream.py TESSERA
"""
import json
import os
import subprocess
import tempfile

from e2e import TESSERA, check, finish, inputs, model, need, tessera, train

need("numpy", "safetensors")

from safetensors.numpy import load_file, save


def run(tmp, stream, *arguments, expect=0):
    saved, report = os.path.join(tmp, "saved"), os.path.join(tmp, "report.json")
    p = subprocess.run([TESSERA, "run", model("mlp"), "--data", "-", "--save", saved, "--report", report, *map(str, arguments)], input=stream, capture_output=True, timeout=300)
    said = p.stderr.decode()
    check(p.returncode == expect, "%s: exit %d, wanted %d: %s" % (arguments, p.returncode, expect, said))
    return json.load(open(report)), json.load(open(os.path.join(saved, "meta.json"))), said


def check_streams(tmp):
    d = load_file(inputs("mlp"))
    batches = [{n: d["%s.%d" % (n, i)] for n in ("x", "y")} for i in range(10)]
    whole, short = [save(b) for b in batches], save({n: t[:7].copy() for n, t in batches[0].items()})
    cases = [
        ("a smaller last batch", whole[:9] + [short], [], 0, 4, ["drop_last=True", "float[7,64]"]),
        ("a smaller last batch, too early", whole[:9] + [short], ["--steps", 8], 5, 4, ["drop_last=True", "4 steps too early", "checkpoint"]),
        ("the end within a step", whole[:7], [], 0, 3, []),
        ("the end within a step, too early", whole[:7], ["--steps", 10], 5, 3, ["step 3", "7 steps too early"]),
        ("another shape on the way", whole[:5] + [short] + whole[5:], [], 3, 2, ["drop_last=True", "batch 5"]),
        ("the end within a batch", whole[:5] + [whole[5][:-9]], [], 3, 2, ["9 bytes are missing"]),
        ("no safetensors any more", whole[:4] + [b"x y\n" * 100], [], 3, 2, ["safetensors"]),
    ]
    first = None
    for what, stream, more, code, steps, words in cases:
        report, meta, said = run(tmp, b"".join(stream), "--micro-batches", 2, *more, expect=code)
        first = first or report["losses"]
        check(report["steps"] == steps and meta["step"] == steps and report["losses"] == first[:steps], "%s: %d steps, the checkpoint %d" % (what, report["steps"], meta["step"]))
        for w in words:
            check(w in said, "%s: does not say '%s': %s" % (what, w, said))
    for stream in (b"1.0 2.0 3.0\n" * 50, b"\x80\x04\x95pickled" * 50, b"\x93NUMPY\x01\x00" + b" " * 200):
        p = subprocess.run([TESSERA, "run", model("mlp"), "--data", "-"], input=stream, capture_output=True, timeout=60)
        check(p.returncode == 3 and b"safetensors" in p.stderr, "no safetensors on stdin: exit %d %s" % (p.returncode, p.stderr))


def check_targets(tmp):
    occupied, missing = os.path.join(tmp, "occupied"), os.path.join(tmp, "missing", "x")
    os.makedirs(occupied)
    open(os.path.join(occupied, "mine"), "w").close()
    for option, value, code in (("--save", occupied, 2), ("--save", missing, 5), ("--log", occupied, 2), ("--log", missing, 5), ("--dump-grads", missing, 5),
                                ("--report", missing, 5), ("--report", occupied, 2), ("--save", model("mlp"), 2), ("--save-every", 2, 2)):
        p = tessera("run", model("mlp"), "--data", inputs("mlp"), "--steps", 3, option, value)
        check(p.returncode == code and "step" not in p.stdout and option in p.stderr and p.stderr.count("error:") == 1,
              "%s %s: exit %d, wanted %d: %s%s" % (option, value, p.returncode, code, p.stdout, p.stderr))


def check_save_every(tmp):
    saved = os.path.join(tmp, "every")
    whole = train("mlp", "--steps", 7)
    r = train("mlp", "--steps", 100, "--save", saved, "--save-every", 2, "--fault", "0:5", expect=6)
    check(json.load(open(os.path.join(saved, "meta.json")))["step"] == 4 and r["losses"] == whole["losses"][:5], "--save-every 2 and a fault at step 5: %s" % r["losses"])
    r = train("mlp", "--steps", 3, "--resume", saved, "--save", saved, "--save-every", 2)
    check(r["losses"] == whole["losses"][4:] and r["params_hash"] == whole["params_hash"], "resumed from --save-every: %s" % r["losses"])
    check(json.load(open(os.path.join(saved, "meta.json")))["step"] == 7, "the last step is not saved")


def check_life(tmp):
    """With --log, stdout is no longer silent."""
    r = train("mlp", "--steps", 5, "--log", os.path.join(tmp, "log.txt"))
    check("step 0 (1/5)" in r["stdout"] and "samples/s" in r["stdout"] and "left" in r["stdout"], "with --log stdout says %r" % r["stdout"])
    check(open(os.path.join(tmp, "log.txt")).read().count("\n") == 5, "the log has other lines than steps")


def main():
    with tempfile.TemporaryDirectory() as tmp:
        check_streams(tmp)
        check_targets(tmp)
        check_save_every(tmp)
        check_life(tmp)
    finish()


if __name__ == "__main__":
    main()
