#!/usr/bin/env python3
"""Offload changes where things live and nothing else: the same bits over ranks, stages and tiers, memory and moved bytes as planned, state that survives
saving, resuming, exporting and evaluating; and what cannot be moved is refused.

    test_offload.py TESSERA
"""
import json
import os
import tempfile

from e2e import check, finish, model, need, tessera, train, weights

need("numpy", "safetensors")

COMMON = ["--steps", 4, "--micro-batches", 4, "--optimizer", "adamw", "--lr", "0.003", "--clip-norm", "0.5", "--bucket-bytes", 65536, "--offload-window", "16KiB"]


def ways(ranks, zero):
    yield "optimizer=host"
    yield "optimizer=nvme"
    if ranks > 1 and zero >= 2:
        yield "optimizer=nvme,grads=host"
    if ranks > 1 and zero == 3:
        yield "params=host"
        yield "optimizer=nvme,params=nvme,grads=nvme"


def as_planned(r, what):
    for tier in ("device", "host", "nvme"):
        peak = r["peak_bytes"][tier]
        check(peak["planned"] == peak["measured"], "%s: tier %s holds %s" % (what, tier, peak))
        check(sum(peak["by_category"].values()) == peak["planned"], "%s: categories of tier %s: %s" % (what, tier, peak))
    moved = r["moved_bytes_per_step"]["nvme"]
    check(moved["fetched"] == moved["fetched_measured"] and moved["offloaded"] == moved["offloaded_measured"], "%s moves %s" % (what, moved))
    check(r["sent_bytes_per_step"]["planned"] == r["sent_bytes_per_step"]["measured"], "%s sends %s" % (what, r["sent_bytes_per_step"]))


def check_bits(tmp):
    for extra, settings in (([], [(n, z) for n in (1, 2, 4) for z in range(4)]), (["--precision", "bf16", "--ema", "0.9"], [(1, 0), (2, 1), (2, 3)]),
                            (["--optimizer", "lamb"], [(2, 3)]), (["--optimizer", "muon"], [(2, 3)]), (["--optimizer", "adafactor"], [(2, 2)]),
                            (["--optimizer", "adamw8", "--clip-value", "0.01"], [(2, 3)]), (["--recompute", "all", "--prefetch", 2], [(2, 3)])):
        first = None
        for ranks, zero in settings:
            for way in (None, *ways(ranks, zero)):
                where = ["--offload", way, "--swap-dir", tmp] if way else []
                r = train("gpt_merged", *COMMON, *extra, "--ranks", ranks, "--zero", zero, *where)
                what = "%s on %d ranks, stage %d, %s" % (extra, ranks, zero, way)
                if not r.get("params_hash"):
                    continue
                result = (r["losses"], r["grad_norms"], r["params_hash"])
                first = first or result
                check(result == first, "%s: other bits: %s" % (what, result[2]))
                as_planned(r, what)
                held = {t: r["peak_bytes"][t]["planned"] for t in ("device", "host", "nvme")}
                check(not way or all((held[t] > 0) == ("=" + t in way) for t in ("host", "nvme")), "%s holds %s" % (what, held))


def check_checkpoints(tmp):
    """Steps in one go, and saved and resumed through a disk; the export is the same file."""
    everything = ["--offload", "optimizer=nvme,params=nvme,grads=nvme", "--swap-dir", tmp, "--ranks", 2, "--zero", 3, "--bucket-bytes", 65536, "--offload-window", "16KiB"]
    part = ["--optimizer", "adamw", "--lr", "0.003", "--micro-batches", 2]
    plain, moved = os.path.join(tmp, "plain"), os.path.join(tmp, "moved")
    whole = train("gpt_merged", *part, "--steps", 4, "--ranks", 2, "--zero", 3, "--save", plain)
    train("gpt_merged", *part, "--steps", 2, *everything, "--save", moved)
    rest = train("gpt_merged", *part, "--steps", 2, *everything, "--resume", moved, "--save", moved)
    check(rest.get("params_hash") == whole.get("params_hash"), "resumed through disk: other bits")
    a, b = weights(plain), weights(moved)
    check(sorted(a) == sorted(b) and all((a[k] == b[k]).all() for k in a), "exports differ")
    dumps = [os.path.join(tmp, n) for n in ("a.safetensors", "b.safetensors")]
    train("gpt_merged", *part, "--steps", 1, "--ranks", 2, "--zero", 3, "--dump-grads", dumps[0])
    train("gpt_merged", *part, "--steps", 1, *everything, "--dump-grads", dumps[1])
    check(open(dumps[0], "rb").read() == open(dumps[1], "rb").read(), "dumped gradients differ")
    check(not [f for f in os.listdir(tmp) if "swap" in f], "a swap file is left behind")


def check_plans(tmp):
    plan = os.path.join(tmp, "plan.onnx")
    p = tessera("compile", model("gpt_merged"), "-o", plan, "--ranks", 2, "--zero", 3, "--offload", "optimizer=nvme,params=host", "--bucket-bytes", 65536)
    check(p.returncode == 0 and tessera("verify", plan).returncode == 0, "a plan with three tiers: " + p.stderr)
    shown = json.loads(tessera("show", plan, "--json").stdout)
    steps = {(t["op"], t["kind"], t["tier"]) for t in shown["transfers"]}
    check(steps == {(op, kind, tier) for op in ("Fetch", "Offload") for kind, tier in (("optimizer", "nvme"), ("param", "host"))}, "transfers: %s" % steps)
    check(all(t["cause"]["param"] and t["cause"]["pass"] == "offload" for t in shown["transfers"]), "a transfer without a cause")
    check("between tiers" in tessera("show", plan).stdout, "show is silent about tiers")
    for offload, code, says in (("params=host", 4, "--zero 3"), ("grads=nvme", 4, "--zero 2 or 3"), ("optimizer=disk", 2, "host or nvme"), ("weights=host", 2, "optimizer, params"),
                                ("optimizer=host,optimizer=nvme", 2, "twice"), ("optimizer", 2, "WHAT=WHERE")):
        p = tessera("compile", model("mlp"), "-o", plan, "--offload", offload)
        check(p.returncode == code and says in p.stderr, "--offload %s: exit %d: %s" % (offload, p.returncode, p.stderr))
    r = train("mlp", "--steps", 1, "--offload", "optimizer=nvme", "--swap-dir", os.path.join(tmp, "nowhere"), expect=5)
    check("nowhere" in r["stderr"], "a folder that is not there: %s" % r["stderr"])


with tempfile.TemporaryDirectory() as folder:
    check_bits(folder)
    check_checkpoints(folder)
    check_plans(folder)
finish()
