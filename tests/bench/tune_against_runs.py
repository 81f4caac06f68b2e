#!/usr/bin/env python3
"""Is the first choice of `tessera tune` the one that is fastest when run? Calibrates this machine, tunes a model under budgets of memory, and runs the choice and the
best of the other ways, in rounds that take turns. Prints predicted and measured steps, and how far the choice is from the fastest measured. Not a test: times of a busy
machine say little; the least step of all rounds counts.

    tune_against_runs.py TESSERA [--model gpt=MODEL.onnx ...] [--ranks 2] [--global-batch 8] [--rounds 5] [--seconds 1] [--others 8] [--tune OPTIONS] [--machine FILE.json]
                         [--prefix COMMAND] [--pause SECONDS] [--json FILE]

Without --model: a GPT of 14 million parameters and a CNN, made by `tessera synth`. Budgets: everything, 60 % and 35 % of the largest way's peak, and the smallest peak of
all ways.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time

DIMS = ("zero", "batch", "micro-batches", "recompute", "offload", "keep", "bucket-bytes", "prefetch")


def call(*arguments):
    return subprocess.run([str(a) for a in arguments], capture_output=True, text=True)


def options(candidate):
    out = []
    for d in DIMS:
        if candidate.get(d):
            out += ["--" + d, candidate[d]]
    return out


def label(candidate):
    return " ".join("%s=%s" % (d, candidate[d]) for d in DIMS if candidate.get(d) and candidate[d] != "none")


def tune(a, path, machine, *more):
    p = call(a.tessera, "tune", path, "--ranks", a.ranks, "--global-batch", a.global_batch, "--cluster", machine, "--json", *a.tune.split(), *more)
    return json.loads(p.stdout) if p.stdout else sys.exit("tune: " + p.stderr)


def contenders(t, others):
    """The choice, the best of every stage, micro-batch, recomputation and offload, then the best of what is left."""
    fit = [c for c in t["candidates"] if c["fits"]]
    first, rest, seen = [], [], set()
    for c in fit:
        key = tuple(c.get(d) for d in ("zero", "batch", "recompute", "offload"))
        (rest if key in seen else first).append(c)
        seen.add(key)
    return (first[:others] + rest)[:others + 1]


def run_once(a, path, candidate, steps, folder):
    report = os.path.join(folder, "report.json")
    p = call(*a.prefix, a.tessera, "run", path, "--data", "random", "--ranks", a.ranks, *options(candidate), "--steps", steps, "--report", report, "--log", os.devnull)
    if p.returncode:
        sys.exit("%s: %s" % (label(candidate), p.stderr))
    r = json.load(open(report))
    time.sleep(a.pause)
    return r["step_ms"]["min"], r["peak_bytes"]["device"]


def budget_case(a, name, path, machine, budget, title, folder):
    more = ["--memory", budget] if budget else []
    t = tune(a, path, machine, *more)
    if not t["candidates"][0]["chosen"]:
        print("%s, %s: nothing fits" % (name, title))
        return None
    list_ = contenders(t, a.others)
    best = [float("inf")] * len(list_)
    steps = max(3, math.ceil(a.seconds / list_[0]["step_s"]))
    for _ in range(a.rounds):
        for i, c in enumerate(list_):
            ms, peak = run_once(a, path, c, steps, folder)
            best[i] = min(best[i], ms)
            if peak["measured"] != c["peak_bytes"]["device"] or (budget and peak["measured"] > budget):
                print("  %s: peak %d, predicted %d, budget %s" % (label(c), peak["measured"], c["peak_bytes"]["device"], budget))
    fastest = min(best)
    print("%s, %s: %d ways compiled, %d fit; the choice takes %.1f ms, the fastest %.1f ms: %+.1f %%" %
          (name, title, t["compiled"], t["fit"], best[0], fastest, 100 * (best[0] / fastest - 1)), flush=True)
    for ms, c in sorted(zip(best, list_), key=lambda x: x[0]):
        print("  %8.1f ms measured %8.1f predicted %8.1f MiB  %s%s" % (ms, 1e3 * c["step_s"], c["peak_bytes"]["device"] / 2**20, label(c), "   <- chosen" if c["chosen"] else ""))
    sys.stdout.flush()
    return {"model": name, "budget": title, "bytes": budget, "chosen_ms": best[0], "fastest_ms": fastest, "excess": best[0] / fastest - 1,
            "ways": [{"measured_ms": m, "predicted_ms": 1e3 * c["step_s"], "options": label(c), "chosen": c["chosen"]} for m, c in zip(best, list_)]}


def made_models(a, folder):
    gpt, cnn = os.path.join(folder, "gpt.onnx"), os.path.join(folder, "cnn.onnx")
    call(a.tessera, "synth", "gpt", "--layers", 6, "--d-model", 384, "--heads", 6, "--vocab", 8192, "--seq", 64, "--init", "random", "-o", gpt)
    call(a.tessera, "synth", "cnn", "--layers", 8, "--d-model", 32, "--image", 32, "--vocab", 100, "--init", "random", "-o", cnn)
    return {"gpt": gpt, "cnn": cnn}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("tessera")
    p.add_argument("--model", action="append", default=[])
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--global-batch", type=int, default=8)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=1, help="about so long a run, at least three steps")
    p.add_argument("--tune", default="", help="further options of tune, such as '--host-memory 1GiB'")
    p.add_argument("--others", type=int, default=8)
    p.add_argument("--machine")
    p.add_argument("--prefix", default="", help="put before every run, such as 'chrt -r 1' on a machine that does other things")
    p.add_argument("--pause", type=float, default=0, help="seconds after every run")
    p.add_argument("--json")
    a = p.parse_args()
    a.prefix = a.prefix.split()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        machine = a.machine or os.path.join(folder, "machine.json")
        if not a.machine:
            p = call(*a.prefix, a.tessera, "simulate", "--calibrate", "--ranks", a.ranks, "-o", machine)
            print(p.stderr + p.stdout, flush=True)
        models = dict(m.split("=", 1) for m in a.model) or made_models(a, folder)
        for name, path in models.items():
            peaks = [c["peak_bytes"]["device"] for c in tune(a, path, machine)["candidates"] if "peak_bytes" in c]
            least = [c["peak_bytes"]["device"] for c in tune(a, path, machine, "--memory", 4096)["candidates"] if "peak_bytes" in c]
            cases = ((None, "all the memory"), (int(0.6 * max(peaks)), "60 % of the largest"), (int(0.35 * max(peaks)), "35 %"), (min(least), "the least"))
            for budget, title in cases:
                results.append(budget_case(a, name, path, machine, budget, title if not budget else "%s, %.0f MiB" % (title, budget / 2**20), folder))
    results = [r for r in results if r]
    print("the worst choice is %.1f %% from the fastest, of %d budgets" % (100 * max(r["excess"] for r in results), len(results)))
    if a.json:
        json.dump(results, open(a.json, "w"), indent=1)


main()
