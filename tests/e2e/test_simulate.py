#!/usr/bin/env python3
"""tessera simulate: predictions obey bounds and grow with what they depend on, cluster files are checked, a machine is measured. No time is compared: tests run
on busy machines.

    test_simulate.py TESSERA
"""
import json
import os
import re
import tempfile

from e2e import check, finish, model, sanitized, tessera

DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "simulate.md")


def clusters():
    """The examples of the documentation."""
    return [json.loads(block) for block in re.findall(r"```json\n(.*?)```", open(DOCS).read(), re.S)]


def simulate(path, cluster, *arguments):
    with tempfile.TemporaryDirectory() as tmp:
        file = os.path.join(tmp, "c.json")
        json.dump(cluster, open(file, "w"))
        p = tessera("simulate", path, *arguments, "--cluster", file, "--json")
        check(p.returncode == 0, "simulate %s: %s" % (arguments, p.stderr))
        return json.loads(p.stdout) if p.returncode == 0 else {}


def bounds(s, cluster, what):
    busy = sum(s["busy_s"].values())
    check(abs(s["step_s"] - (s["micro_per_rank"] * s["micro_s"] + s["update_s"] + s["overhead_s"])) < 1e-9 + 1e-9 * s["step_s"], what + ": a step is its phases")
    check(max(s["busy_s"].values()) <= s["step_s"] + 1e-12 <= busy + s["overhead_s"] + 1e-9 + 1e-6 * busy, what + ": between its busiest queue and all of them in a row")
    check(0 <= s["exposed_s"] <= s["comm_s"] + 1e-12 and s["comm_s"] <= busy + 1e-12, what + ": exposed is a part of communication")
    check(abs(sum(c["exposed_s"] for c in s["communication"]) - s["exposed_s"]) <= 1e-9 * (1 + s["exposed_s"]), what + ": causes add up")
    check(abs(sum(c["sent_bytes"] for c in s["communication"]) - s["sent_bytes"]) < 1, what + ": sent bytes are the ledger's")
    check(0 <= s["mfu"] <= 1, what + ": MFU %g" % s["mfu"])
    check(all(x["start_s"] <= x["end_s"] for x in s["steps"]), what + ": no step ends before it starts")
    if cluster.get("memory_bytes"):
        check(s["fits"] == (s["peak_bytes_per_rank"] <= cluster["memory_bytes"]), what + ": fits")


def growth(tmp):
    gpu, node = clusters()
    small = os.path.join(tmp, "gpt.onnx")
    tessera("synth", "gpt", "--layers", 4, "--d-model", 512, "--heads", 8, "--vocab", 1000, "--seq", 256, "-o", small)
    seen = {}
    for zero in (0, 3):
        for ranks in (1, 8, 64):
            s = seen[zero, ranks] = simulate(small, gpu, "--batch", 4, "--zero", zero, "--ranks", ranks)
            bounds(s, gpu, "gpt stage %d, %d ranks" % (zero, ranks))
    check(seen[0, 1]["comm_s"] == 0 and 0 < seen[0, 8]["comm_s"] < seen[0, 64]["comm_s"], "more ranks, more communication")
    check(seen[3, 64]["comm_s"] > seen[0, 64]["comm_s"], "stage 3 sends more")
    check(seen[3, 64]["peak_bytes_per_rank"] < seen[0, 64]["peak_bytes_per_rank"], "stage 3 holds less")
    check(seen[0, 8]["product_flops"] == seen[0, 64]["product_flops"] > 0, "ranks compute alike")
    slower = dict(gpu, inter={"latency_s": 1e-5, "bytes_per_s": 4e9})
    check(simulate(small, slower, "--batch", 4, "--ranks", 64)["step_s"] > seen[0, 64]["step_s"], "a slower network takes longer")
    check(simulate(small, slower, "--batch", 4, "--ranks", 8)["step_s"] == seen[0, 8]["step_s"], "within a node the network does not matter")
    twice = simulate(small, gpu, "--batch", 8, "--ranks", 8)
    check(1.9 < twice["product_flops"] / seen[0, 8]["product_flops"] < 2.1, "flops grow with the batch")
    four = simulate(small, gpu, "--batch", 4, "--ranks", 8, "--micro-batches", 32)
    check(four["micro_per_rank"] == 4 and abs(four["product_flops"] / seen[0, 8]["product_flops"] - 4) < 1e-6, "and with micro-batches")
    shared = simulate(small, node, "--batch", 4, "--zero", 3)
    bounds(shared, node, "a node of processors")
    check(shared["ranks"] == 16 and shared["nodes"] == 1, "the cluster's ranks are the default")
    apart = simulate(small, dict(node, shares_memory=False), "--batch", 4, "--zero", 3)
    check(apart["comm_s"] > shared["comm_s"] and apart["peak_bytes_per_rank"] > shared["peak_bytes_per_rank"], "views that move cost time and memory")


def known_flops(tmp):
    """6 x tokens x weights of products, and attention's scores."""
    gpu, _ = clusters()
    path = os.path.join(tmp, "t.onnx")
    layers, d, vocab, seq, batch = 3, 256, 512, 128, 2
    tessera("synth", "gpt", "--layers", layers, "--d-model", d, "--heads", 4, "--vocab", vocab, "--seq", seq, "-o", path)
    want = 6 * batch * seq * (12 * layers * d * d + vocab * d) + 3 * layers * 2 * 2 * batch * seq * seq * d
    got = simulate(path, gpu, "--batch", batch, "--ranks", 1)["product_flops"]
    check(abs(got - want) < 1e-6 * want, "flops of a gpt: %g, by hand %g" % (got, want))


def a_trillion(tmp):
    gpu, _ = clusters()
    path = os.path.join(tmp, "t.onnx")
    tessera("synth", "gpt", "--layers", 128, "--d-model", 25600, "--heads", 160, "--vocab", 51200, "--seq", 2048, "-o", path)
    s = simulate(path, gpu, "--batch", 1, "--zero", 3, "--ranks", 1024)
    bounds(s, gpu, "10^12 parameters")
    check(s["nodes"] == 128 and s["step_s"] > 1 and not s["fits"], "10^12 parameters on 1,024 ranks: %g s" % s.get("step_s", 0))
    text = tessera("simulate", path, "--batch", 1, "--zero", 3, "--ranks", 2).stdout
    check("exposed communication by cause" in text and "MFU" in text, "as text: " + text[:200])


def refusals(tmp):
    file = os.path.join(tmp, "bad.json")
    cases = (({"memory_bytes_per_z": 1}, 3, "did you mean \"memory_bytes_per_s\""), ({"memory_bytes_per_s": 0}, 3, "above 0"), ({"product_share": [1]}, 3, "list of 64"),
             ({"work_per_s": {"produkt": 1}}, 3, "work_per_s.produkt"), ({"intra": {"bytes_per_s": "fast"}}, 3, "bytes_per_s"), ({"ranks": 2}, 2, "has 2"),
             ([], 3, "one JSON object"))
    for value, code, words in cases:
        json.dump(value, open(file, "w"))
        p = tessera("simulate", model("mlp"), "--ranks", 4, "--cluster", file)
        check(p.returncode == code and words in p.stderr, "%s: exit %d, %s" % (value, p.returncode, p.stderr))
    p = tessera("simulate", model("mlp"), "--cluster", os.path.join(tmp, "none.json"))
    check(p.returncode == 5, "a cluster file that is not there: %s" % p.stderr)
    p = tessera("simulate", "--calibrate")
    check(p.returncode == 2 and "-o machine.json" in p.stderr, "where to: %s" % p.stderr)


def calibrate(tmp):
    if sanitized():
        return                 # minutes
    file = os.path.join(tmp, "m.json")
    p = tessera("simulate", "--calibrate", "-o", file)
    if not check(p.returncode == 0, "calibrate: %s" % p.stderr):
        return
    m = json.load(open(file))
    check(len(m["product_share"]) == 64 and max(m["product_share"]) == 1 and all(0 < x <= 1 for x in m["product_share"]), "shares of the peak")
    check(all(v > 0 for v in m["work_per_s"].values()), "rates")
    bounds(simulate(model("mlp"), m), m, "mlp on the measured machine")


def main():
    with tempfile.TemporaryDirectory() as tmp:
        growth(tmp)
        known_flops(tmp)
        a_trillion(tmp)
        refusals(tmp)
        calibrate(tmp)
    finish()


main()
