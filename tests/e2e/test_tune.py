#!/usr/bin/env python3
"""tessera tune: what it predicts of memory is what runs measure, budgets are kept, fixed options stay, the same input gives the same table, candidates do not
depend on who else is tried. No time is compared: tests run on busy machines.

    test_tune.py TESSERA
"""
import json
import os
import shlex
import tempfile

from e2e import check, finish, inputs, model, sanitized, tessera, train

HERE = os.path.dirname(os.path.abspath(__file__))
CLUSTER = os.path.join(HERE, "..", "tools", "cluster.json")


def tune(path, *arguments, expect=0):
    p = tessera("tune", path, "--json", *arguments)
    check(p.returncode == expect, "tune %s: exit %d, %s" % (arguments, p.returncode, p.stderr))
    out = json.loads(p.stdout) if p.stdout else {}
    out["stderr"] = p.stderr
    return out


def settings(c):
    return ["--zero", c["zero"], "--keep", c["keep"], "--bucket-bytes", c["bucket-bytes"], "--prefetch", c["prefetch"]]


# Every kind of candidate, run: peak and bytes sent are as the table says.
def measured():
    data = ["--data", inputs("gpt_merged"), "--ranks", 2, "--micro-batches", 4]
    t = tune(model("gpt_merged"), *data)
    check(t["fit"] == sum(c["fits"] for c in t["candidates"]) and t["compiled"] == len(t["candidates"]), "the counts are the list's")
    check(t["candidates"][0]["chosen"] and sum(c["chosen"] for c in t["candidates"]) == 1, "the first is the chosen one")
    seen = set()
    for c in t["candidates"]:
        key = (c["zero"], c["keep"], c["prefetch"])
        if not c["fits"] or key in seen:
            continue
        seen.add(key)
        r = train("gpt_merged", "--steps", 1, "--ranks", 2, "--micro-batches", 4, *settings(c))
        check(r["peak_bytes"]["device"]["measured"] == c["peak_bytes"]["device"], "%s: peak %d, tune said %d" % (key, r["peak_bytes"]["device"]["measured"], c["peak_bytes"]["device"]))
        check(r["sent_bytes_per_step"]["measured"] == c["sent_bytes"], "%s: sent %d, tune said %d" % (key, r["sent_bytes_per_step"]["measured"], c["sent_bytes"]))
    check(len({k[0] for k in seen}) == 4 and len(seen) > 8, "stages and prefetch were tried: %s" % sorted(seen))
    again = tune(model("gpt_merged"), *data)
    check(again == t, "the same input gives another table")


# The line to copy runs.
def copied():
    p = tessera("tune", model("gpt_merged"), "--data", inputs("gpt_merged"), "--ranks", 2, "--lr", "0.003")
    line = p.stdout.strip().split("\n")[-1].split()
    check(line[:2] == ["tessera", "run"], "the last line is a command: %s" % line)
    r = tessera(*shlex.split(" ".join(line[1:])), "--steps", 2)
    check(r.returncode == 0, "%s: %s" % (line, r.stderr))


def budgets():
    data = ["--data", inputs("gpt_merged"), "--ranks", 4]
    free = tune(model("gpt_merged"), *data)
    peaks = sorted({c["peak_bytes"]["device"] for c in free["candidates"] if "peak_bytes" in c})
    for budget in (peaks[-1], peaks[len(peaks) // 2], peaks[0]):
        t = tune(model("gpt_merged"), *data, "--memory", budget)
        chosen = t["candidates"][0]
        check(chosen["peak_bytes"]["device"] <= budget, "budget %d: chosen %s" % (budget, chosen["peak_bytes"]))
        check(all(c["fits"] == (c["peak_bytes"]["device"] <= budget) for c in t["candidates"] if "peak_bytes" in c), "budget %d: what fits fits" % budget)
        for c in t["candidates"]:
            check(c["fits"] or "peak_bytes" not in c or "more than the" in c["why"], "a loser without numbers: %s" % c["why"])
    t = tune(model("gpt_merged"), *data, "--memory", peaks[0] // 2, expect=7)
    check("nothing fits" in t["stderr"] and "What would do: --memory" in t["stderr"], "says by how much: %s" % t["stderr"])
    fixed = tune(model("gpt_merged"), *data, "--zero", 1, "--prefetch", 2, "--bucket-bytes", "64KiB")
    check(fixed["compiled"] == 1 or all(c["zero"] == "1" and c["prefetch"] == "2" for c in fixed["candidates"]), "fixed options stay")


# `compile` and `run` under a budget: kept, measured as planned, said in the plan; what is given stays; refused with numbers.
def fitted(tmp):
    plan, path = os.path.join(tmp, "p.onnx"), os.path.join(tmp, "deep.onnx")
    tessera("synth", "gpt", "--layers", 3, "--d-model", 64, "--heads", 2, "--vocab", 100, "--seq", 32, "--init", "random", "-o", path)
    free = [path, "--data", "random", "--ranks", 2, "--zero", 3, "--global-batch", 16]
    common = [*free, "--recompute", "none"]
    t = tune(*common)
    peaks = sorted(c["peak_bytes"]["device"] for c in t["candidates"])
    for budget in (2 * peaks[-1], (peaks[0] + peaks[-1]) // 2, peaks[0]):
        report = os.path.join(tmp, "r.json")
        p = tessera("run", *common, "--steps", 2, "--memory", budget, "--report", report)
        check(p.returncode == 0 and "within the budget" in p.stderr, "run with %d bytes: %s" % (budget, p.stderr))
        peak = json.load(open(report))["peak_bytes"]["device"]
        check(peak["measured"] == peak["planned"] <= budget, "budget %d: planned %d, measured %d" % (budget, peak["planned"], peak["measured"]))
        p = tessera("compile", *common, "--memory", budget, "-o", plan)
        shown = json.loads(tessera("show", plan, "--json").stdout)
        check(shown["budget_bytes"]["device"] == budget and shown["chosen"] and shown["peak_bytes"]["device"]["planned"] <= budget, "the plan records budget and choice: %s" % shown["chosen"])
        check(tessera("verify", plan).returncode == 0, "the plan within %d bytes is proved" % budget)
    p = tessera("run", *common, "--steps", 2, "--memory", peaks[0] - 1)
    check(p.returncode == 7 and "nothing fits" in p.stderr and "What would do" in p.stderr, "a byte less than the least: %d %s" % (p.returncode, p.stderr))
    p = tessera("run", *free, "--steps", 2, "--memory", peaks[0] - 1)
    check(p.returncode == 0 and "--recompute" in p.stderr, "a byte less than the least without recomputation: %d %s" % (p.returncode, p.stderr))
    p = tessera("run", *common, "--steps", 1, "--memory", peaks[0], "--micro-batches", 16, "--prefetch", 2)
    check(p.returncode in (0, 7) and "--prefetch" not in p.stderr.replace("--prefetch 2", ""), "what is given stays: %s" % p.stderr)
    p = tessera("run", plan, "--data", "random", "--steps", 1, "--memory", shown["peak_bytes"]["device"]["planned"] - 1)
    check(p.returncode == 7 and "more than --memory allows" in p.stderr, "a plan that is larger: %s" % p.stderr)
    text = os.path.join(tmp, "p.onnxtxt")
    tessera("opt", plan, "--passes=none", "-o", text)
    words = open(text).read().replace('recipe.memory_bytes="%d"' % budget, 'recipe.memory_bytes="%d"' % (shown["peak_bytes"]["device"]["planned"] - 1))
    open(text, "w").write(words)
    p = tessera("verify", text)
    check(p.returncode == 1 and "budget" in p.stdout, "verify of a plan over its budget: %d %s" % (p.returncode, p.stdout))
    r = tessera("run", model("mlp"), "--data", inputs("mlp"), "--no-shuffle", "--steps", 2)
    check("budget" not in r.stderr, "without budgets nothing is chosen: %s" % r.stderr)


# What is recomputed or offloaded to keep a budget changes no bit, and every tier holds what was planned.
def same_bits(tmp):
    path, report = os.path.join(tmp, "wide.onnx"), os.path.join(tmp, "r.json")
    tessera("synth", "gpt", "--layers", 4, "--d-model", 64, "--heads", 4, "--vocab", 200, "--seq", 64, "--init", "random", "-o", path)
    common = [path, "--data", "random", "--ranks", 2, "--zero", 3, "--batch", 8]

    def run(*more):
        p = tessera("run", *common, "--steps", 2, "--report", report, *more)
        check(p.returncode == 0, "run %s: %s" % (more, p.stderr))
        r = json.load(open(report))
        for tier, peak in r["peak_bytes"].items():
            check(peak.get("planned") == peak.get("measured"), "%s %s: planned %s, measured %s" % (more, tier, peak.get("planned"), peak.get("measured")))
        return r, p.stderr

    free, _ = run()
    whole = free["peak_bytes"]["device"]["planned"]
    r, said = run("--memory", 7 * whole // 10)
    check("--recompute" in said and "without --recompute it needs" in said, "70 %% of the memory, by recomputation: %s" % said)
    check(r["peak_bytes"]["device"]["measured"] <= 7 * whole // 10, "70 %% of %d: %s" % (whole, r["peak_bytes"]["device"]))
    check((r["losses"], r["params_hash"]) == (free["losses"], free["params_hash"]), "recomputation chosen for a budget has other bits")
    host = ["--host-memory", "1GiB", "--offload-window", "64KiB"]
    t = tune(*common, *host)
    least = min(c["peak_bytes"]["device"] for c in tune(*common, *host, "--memory", 4096, expect=7)["candidates"] if "peak_bytes" in c)
    check(t["candidates"][0]["offload"] in ("", None), "with memory for all nothing is offloaded: %s" % t["candidates"][0])
    r, said = run("--memory", least, *host)
    check("--offload" in said and r["peak_bytes"]["host"].get("measured"), "the least memory takes offload: %s" % said)
    check((r["losses"], r["params_hash"]) == (free["losses"], free["params_hash"]), "offload chosen for a budget has other bits")


# Micro-batches that make a step of so many samples; their number falls as their size grows.
def batches(tmp):
    path = os.path.join(tmp, "gpt.onnx")
    tessera("synth", "gpt", "--layers", 2, "--d-model", 128, "--heads", 4, "--vocab", 500, "--seq", 64, "-o", path)
    t = tune(path, "--ranks", 4, "--global-batch", 32, "--cluster", CLUSTER)
    sizes = {(c["batch"], c["micro-batches"]) for c in t["candidates"]}
    check(sizes == {("1", "32"), ("2", "16"), ("4", "8"), ("8", "4")}, "micro-batches of 32 samples on 4 ranks: %s" % sorted(sizes))
    check(all(c["samples"] == 32 for c in t["candidates"]), "all candidates compute the same samples")
    check(tessera("tune", path, "--ranks", 3, "--global-batch", 32).returncode == 2, "32 samples on 3 ranks")
    grown = tune(path, "--ranks", 2, "--cluster", CLUSTER, "--memory", "40MB")
    most = max(int(c["batch"]) for c in grown["candidates"] if c["fits"])
    check(1 < most and any(not c["fits"] for c in grown["candidates"]), "micro-batches grow until they do not fit: %d" % most)
    many = tune(path, "--ranks", 1024, "--batch", 1, "--cluster", os.path.join(tmp, "many.json"))
    check(many["candidates"][0]["fits"] and "--ranks-per-process=1" in many["options"], "1,024 ranks: %s" % many.get("options"))


def refusals():
    plan = os.path.join(tempfile.mkdtemp(), "p.onnx")
    tessera("compile", model("mlp"), "-o", plan)
    p = tessera("tune", plan)
    check(p.returncode == 2 and "is a plan" in p.stderr, "a plan: %s" % p.stderr)
    p = tessera("tune", model("mlp"), "--ranks", 2, "--zero", 2, "--reduce", "step")
    check(p.returncode == 2 and "--reduce step" in p.stderr, "options that exclude each other: %s" % p.stderr)
    t = tune(model("mlp"), "--ranks", 2, "--reduce", "step")
    check({c["zero"] for c in t["candidates"] if c["fits"]} == {"0", "1"}, "stages that --reduce step excludes are refused")
    check(any("--reduce step" in c["why"] for c in t["candidates"] if not c["fits"]), "and the table says why")


def main():
    with tempfile.TemporaryDirectory() as tmp:
        cluster = json.load(open(CLUSTER))
        json.dump(dict(cluster, ranks=1024), open(os.path.join(tmp, "many.json"), "w"))
        if not sanitized():
            measured()
        copied()
        budgets()
        batches(tmp)
        fitted(tmp)
        same_bits(tmp)
    refusals()
    finish()


main()
