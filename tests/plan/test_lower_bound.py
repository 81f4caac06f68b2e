#!/usr/bin/env python3
"""Arenas end at the lower bound or little above it: the most that lives at once, counted here once more from the buffers that a plan shows.

    test_lower_bound.py TESSERA
"""
import json
import os
import subprocess
import sys
import tempfile
import time

TESSERA = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "build/tessera"
MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models")
MOST = 1.01
failures, passes = 0, 0


def check(ok, what):
    global failures, passes
    passes += bool(ok)
    failures += not ok
    if not ok:
        print("FAIL", what, flush=True)


def tessera(*arguments):
    p = subprocess.run([TESSERA, *map(str, arguments)], capture_output=True, text=True)
    if p.returncode:
        raise RuntimeError("tessera %s: %s" % (" ".join(map(str, arguments)), p.stderr))
    return p.stdout


def pages(n):
    return (n + 4095) // 4096 * 4096


def bound(buffers, n_steps, scope):
    live, always = [0] * (n_steps + 1), 0
    for b in buffers:
        size = (b["bytes"] + 63) // 64 * 64
        if b["tier"] != "device" or b["scope"] != scope:
            continue
        if b["persistent"]:
            always += size
        else:
            live[b["first"]] += size
            live[b["last"] + 1] -= size
    most = now = 0
    for change in live:
        now += change
        most = max(most, now)
    return pages(always + most)


def check_plan(name, path):
    shown = json.loads(tessera("show", path, "--json"))
    memory = [m for m in shown["memory"] if m["tier"] == "device"][0]
    metrics = dict(line.rsplit(" ", 1) for line in tessera("show", path, "--metrics").splitlines())
    ranks = shown["ranks"]
    expected = ranks * bound(shown["buffers"], len(shown["steps"]), "rank") + bound(shown["buffers"], len(shown["steps"]), "process")
    check(memory["lower_bound_bytes"] == expected, "%s: the bound is %d, shown is %d" % (name, expected, memory["lower_bound_bytes"]))
    check(int(metrics["peak.device.lower_bound"]) == expected, name + ": the metric is another bound")
    check(int(metrics["peak.device.fragmentation"]) == memory["arena_bytes"] - expected, name + ": fragmentation is not what is above the bound")
    ratio = memory["arena_bytes"] / expected
    check(1 <= ratio <= MOST, "%s: %.4f of the lower bound" % (name, ratio))
    return ratio


def main():
    with tempfile.TemporaryDirectory() as tmp:
        path, big = os.path.join(tmp, "plan.onnx"), os.path.join(tmp, "gpt.onnx")
        for model in sorted(os.listdir(MODELS)):
            for ranks in (1, 2):
                for stage in (0, 3):
                    for more in ([], ["--prefetch", 2]) if stage == 3 else ([], ["--precision", "bf16"]):
                        tessera("compile", os.path.join(MODELS, model, "model.onnx"), "--ranks", ranks, "--zero", stage, "-o", path, *more)
                        check_plan("%s, %d ranks, stage %d %s" % (model, ranks, stage, more), path)
        tessera("synth", "gpt", "--layers", 96, "--d-model", 768, "--heads", 12, "--vocab", 1000, "--seq", 256, "--batch", 1, "-o", big)
        for options in (["--ranks", 2, "--zero", 3], ["--ranks", 2, "--zero", 2, "--prefetch", 2]):
            begin = time.monotonic()
            tessera("compile", big, "-o", path, "--no-verify-each", *options)
            print("96 layers, %s: %.4f of the lower bound, compiled in %.1f s" % (" ".join(map(str, options)), check_plan("96 layers %s" % options, path),
                                                                                    time.monotonic() - begin))
    print("%d checks passed, %d failed" % (passes, failures))
    sys.exit(1 if failures else 0)


main()
