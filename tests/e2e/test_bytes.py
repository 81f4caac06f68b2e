#!/usr/bin/env python3
"""Sent bytes: planned = measured = ledger, sent + saved = formula; peak bytes: planned = measured; RSS; what stage 3 holds per rank.

    test_bytes.py TESSERA
"""
import json
import os
import tempfile

from e2e import check, finish, model, sanitized, tessera, train

SANITIZED = sanitized()


def formula(r, ranks, zero, k):
    reductions = k if r["reduce"] == "micro" else 1
    return r["padded_param_bytes"] * (reductions + (2 * k if zero == 3 else 1)) * (ranks - 1) // ranks


def check_run(name, ranks, zero, k, extra):
    tag = "%s ranks %d stage %d k %d %s: " % (name, ranks, zero, k, " ".join(extra))
    r = train(name, "--steps", 2, "--ranks", ranks, "--zero", zero, "--micro-batches", ranks * k, *extra)
    sent, peak = r["sent_bytes_per_step"], r["peak_bytes"]["device"]
    check(sent["planned"] == sent["measured"], tag + "sent %s, planned %s" % (sent["measured"], sent["planned"]))
    check(sum(sent["by_collective"].values()) == sent["planned"], tag + "the collectives sum to %s" % sum(sent["by_collective"].values()))
    moved = sum(v for key, v in sent["by_collective"].items() if key not in ("control", "frozen", "optimizer"))
    check(moved + sent["saved"] == formula(r, ranks, zero, k), tag + "sent %d + saved %d, formula %d" % (moved, sent["saved"], formula(r, ranks, zero, k)))
    check(peak["planned"] == peak["measured"], tag + "peak %s, planned %s" % (peak["measured"], peak["planned"]))
    check(sum(peak["by_category"].values()) == peak["planned"], tag + "the categories sum to %s" % sum(peak["by_category"].values()))
    grown = r["rss_peak_bytes"][0] - r["rss_before_arena_bytes"][0]
    check(0 < grown <= peak["planned"] + (32 << 20) or SANITIZED, tag + "RSS grew by %d, planned %d" % (grown, peak["planned"]))
    return r


# Collectives on a queue of their own send the same bytes; memory is still what the plan says.
def check_overlap(name, ranks):
    for zero in (1, 3):
        alone = check_run(name, ranks, zero, 2, ["--bucket-bytes", "8192"])
        beside = check_run(name, ranks, zero, 2, ["--bucket-bytes", "8192", "--prefetch", "2"])
        check(alone["sent_bytes_per_step"] == beside["sent_bytes_per_step"], "%s on %d ranks, stage %d: --prefetch 2 sends %s, without %s" %
              (name, ranks, zero, beside["sent_bytes_per_step"], alone["sent_bytes_per_step"]))


# Kept from forward to backward: (r + k) of the formula's (r + 2k) but for what backward does not read anyway, and the same losses.
def check_keep(name, ranks):
    for extra in ([], ["--bucket-bytes", "8192", "--prefetch", "1"]):
        again = check_run(name, ranks, 3, 2, extra)
        kept = check_run(name, ranks, 3, 2, ["--keep", "backward", *extra])
        check(kept["losses"] == again["losses"] and kept["params_hash"] == again["params_hash"], "%s on %d ranks: --keep backward has other bits" % (name, ranks))
        most = kept["padded_param_bytes"] * (2 + 2) * (ranks - 1) // ranks
        sent = sum(v for key, v in kept["sent_bytes_per_step"]["by_collective"].items() if key not in ("control", "frozen", "optimizer"))
        check(sent <= most < formula(again, ranks, 3, 2), "%s on %d ranks, kept: %d sent, r + k allow %d" % (name, ranks, sent, most))


def check_ledger(name):
    with tempfile.TemporaryDirectory() as tmp:
        plan = os.path.join(tmp, "plan.onnx")
        p = tessera("compile", model(name), "-o", plan, "--ranks", 4, "--zero", 3, "--micro-batches", 8, "--bucket-bytes", 16384)
        check(p.returncode == 0, "compile: " + p.stderr)
        shown = json.loads(tessera("show", plan, "--json").stdout)
        r = train(name, "--steps", 1, source=plan)
        total = sum(e["bytes"] * e["times"] for e in shown["ledger"])
        check(total == r["sent_bytes_per_step"]["measured"], "the ledger of %s sums to %d, measured %d" % (name, total, r["sent_bytes_per_step"]["measured"]))
        check(shown["peak_bytes"]["device"]["planned"] == r["peak_bytes"]["device"]["measured"], "show and run differ in peak bytes")
        for e in shown["ledger"]:
            named = e["cause"]["param"] or e["cause"]["node"] or e["kind"] == "control"
            check(named and e["cause"]["pass"], "ledger entry without cause: %s" % e)


def main():
    for name in ("mlp", "gpt_merged"):
        for ranks in (2, 4, 8):
            for zero in range(4):
                for k in (1, 2):
                    check_run(name, ranks, zero, k, [])
            check_run(name, ranks, 0, 2, ["--reduce", "micro"])
            check_run(name, ranks, 3, 2, ["--bucket-bytes", "8192"])
            check_keep(name, ranks)
            check_overlap(name, ranks)
        for zero in range(4):
            check_run(name, 2, zero, 1, ["--precision", "bf16"])
            check_run(name, 4, zero, 2, ["--precision", "fp16", "--reduce", "micro", "--bucket-bytes", "8192"])
        check_ledger(name)
    # A rank holds a quarter of parameters, gradients and state; `params` and `state` are counted per process of 4 ranks.
    whole = check_run("gpt_merged", 4, 0, 1, [])["peak_bytes"]["device"]["by_category"]
    parts = check_run("gpt_merged", 4, 3, 1, [])["peak_bytes"]["device"]["by_category"]
    for category in ("params", "state"):
        check(parts[category] * 4 <= whole[category] * 1.2, "%s: stage 3 holds %d, stage 0 %d" % (category, parts[category], whole[category]))
    finish()


if __name__ == "__main__":
    main()
