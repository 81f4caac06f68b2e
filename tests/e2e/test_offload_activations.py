#!/usr/bin/env python3
"""--offload activations=host|nvme: the same bits as without, with and without recomputation; less on the device, planned = measured in every tier.

    test_offload_activations.py TESSERA
"""
import json
import os
import tempfile

from e2e import check, finish, inputs, model, need, tessera, train

need("numpy")
WAYS = [["--ranks", 1], ["--ranks", 2, "--zero", 2], ["--ranks", 2, "--zero", 3, "--prefetch", 2]]


def result(r):
    return [r.get(k) for k in ("losses", "grad_norms", "params_hash")]


def check_run(r, base, what):
    check(result(r) == result(base) and r.get("params_hash"), "%s: other bits" % what)
    for tier, bytes_ in r.get("peak_bytes", {}).items():
        check(not bytes_ or bytes_["planned"] == bytes_["measured"], "%s: %s %s" % (what, tier, bytes_))


def main():
    with tempfile.TemporaryDirectory() as tmp:
        path, data = os.path.join(tmp, "gpt.onnx"), os.path.join(tmp, "report.json")
        tessera("synth", "gpt", "--layers", 4, "--d-model", 64, "--heads", 4, "--vocab", 101, "--seq", 64, "--init", "random", "-o", path)

        def run(*arguments):
            p = tessera("run", path, "--data", "random", "--batch", 2, "--steps", 3, "--micro-batches", 4, "--swap-dir", tmp, "--report", data, *arguments)
            check(p.returncode == 0, "run %s: exit %d: %s" % (arguments, p.returncode, p.stderr.strip()[-300:]))
            return json.load(open(data)) if p.returncode == 0 else {}

        base = run()
        for way in WAYS:
            plain = run(*way)
            for recompute in ("none", "blocks"):
                alone = run(*way, "--recompute", recompute)
                for tier in ("host", "nvme"):
                    what = "%s, %s, recompute %s" % (tier, way, recompute)
                    r = run(*way, "--recompute", recompute, "--offload", "activations=" + tier)
                    if not r:
                        continue
                    check_run(r, base, what)
                    device = r["peak_bytes"]["device"]["planned"]
                    without = alone["peak_bytes"]["device"]["planned"]
                    less = device < without if recompute == "none" else device <= without      # what blocks keep is little: gradients may make the peak
                    check(less and without <= plain["peak_bytes"]["device"]["planned"], "%s: %d bytes on the device, %d without" % (what, device, without))
                    check(r["peak_bytes"][tier]["planned"] > 0, "%s: nothing lies there" % what)
                    check(r["sent_bytes_per_step"] == alone["sent_bytes_per_step"], "%s: sends something else" % what)
        both = run("--ranks", 2, "--zero", 3, "--offload", "activations=nvme,optimizer=host,params=nvme", "--recompute", "all", "--precision", "f32")
        check_run(both, base, "everything elsewhere")
        for precision in ("bf16", "fp16"):
            check_run(run("--precision", precision, "--offload", "activations=host", "--recompute", "blocks"), run("--precision", precision), precision)
    finish()


if __name__ == "__main__":
    main()
