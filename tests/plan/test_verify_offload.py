#!/usr/bin/env python3
"""`tessera verify` on plans whose values lie in several tiers, and on such plans that were broken on purpose.

    test_verify_offload.py TESSERA
"""
import sys
import tempfile

from test_verify import attribute, buffers, by_name, check, compile_plan, counts, drop, expect, failures, meta, nodes, set_attribute, set_buffer, value, verify


def check_valid(tmp):
    for ranks, offload, zero in (("2", "optimizer=host", "0"), ("4", "optimizer=host", "1"), ("2", "optimizer=nvme,grads=nvme", "2"),
                                 ("2", "optimizer=nvme,params=host,grads=host", "3"), ("2", "params=nvme", "3")):
        for extra in ([], ["--prefetch", "2"], ["--precision", "bf16", "--micro-batches", "8"], ["--optimizer", "muon", "--ema", "0.9"], ["--recompute", "all"]):
            plan = compile_plan(tmp, "gpt_merged", "--ranks", ranks, "--zero", zero, "--offload", offload, "--offload-window", "4KiB", "--bucket-bytes", "65536",
                                *extra)
            code, result = verify(tmp, plan)
            check(code == 0 and result["ok"], "%s at stage %s %s: %s" % (offload, zero, extra, result["defects"][:2]))
            counts["valid plans"] = counts.get("valid plans", 0) + 1


def swap_inputs(plan, a, b, i=0):
    x, y = by_name(plan, a), by_name(plan, b)
    x.input[i], y.input[i] = y.input[i], x.input[i]


def check_transfers(tmp, plan):
    update = nodes(plan, "Fetch", phase="update")
    for n in nodes(plan, "Offload"):
        expect(tmp, "drop %s" % n.name, plan, lambda p: drop(p, n), ["graph", "structure", "wrong_state", "wrong_input", "wrong_gradient", "not_carried", "uninitialized", "wrong_load",
                                                                     "norm", "carry", "accumulation", "wrong_parameter"], or_malformed=True)
        other = "nvme" if attribute(n, "tier") == b"host" else "host"
        expect(tmp, "%s into tier %s" % (n.name, other), plan, lambda p: set_attribute(by_name(p, n), "tier", other), ["graph", "tier"], or_malformed=True)
    for n in update:
        expect(tmp, "drop %s" % n.name, plan, lambda p: drop(p, n), ["graph", "structure", "wrong_state", "wrong_input", "wrong_gradient", "norm", "wrong_parameter", "uninitialized"],
               or_malformed=True)
    kinds = {}
    for n in update:
        kinds.setdefault(value(plan, n.input[0]).type.tensor_type.shape.dim[0].dim_value, []).append(n)
    for same in kinds.values():
        for a, b in zip(same, same[1:]):
            norms = [n.name.startswith("SquaredNorm") for n in (a, b)]         # a sum of integers in any order is the same
            if a.input[0] != b.input[0] and not all(norms):
                expect(tmp, "%s and %s swapped" % (a.name, b.name), plan, lambda p: swap_inputs(p, a, b),
                       ["wrong_state", "wrong_input", "wrong_gradient", "norm", "wrong_parameter", "updated_twice", "overwritten", "carry"], or_malformed=any(norms))


def check_places(tmp, plan):
    for index, b in enumerate(buffers(plan)):
        if b["tier"] != "device" and b["bytes"]:
            expect(tmp, "buffer %d of '%s' on the device" % (index, b["name"]), plan, lambda p: set_buffer(p, index, tier="device"), ["tier"])
            expect(tmp, "buffer %d of '%s' over the first" % (index, b["name"]), plan,
                   lambda p: set_buffer(p, index, offset=0 if b["offset"] else max(x["offset"] for x in buffers(plan) if x["tier"] == b["tier"])), ["overwritten", "location", "tier"])
    for n in nodes(plan, "Cut") + nodes(plan, "Join"):
        parts = n.output if n.op_type == "Cut" else n.input
        for part in [x for x in parts if meta(value(plan, x), "tier")]:
            place = meta(value(plan, part), "loc")
            buffer, _, offset = place.partition("+")
            expect(tmp, "'%s' lies elsewhere" % part, plan, lambda p: meta(value(p, part), "loc", "%s+%d" % (buffer, (int(offset or 0)) + 4096)),
                   ["tier", "location", "alias", "overwritten"])
    for n in nodes(plan, "Adam", phase="update"):
        expect(tmp, "%s reads what lies elsewhere" % n.name, plan, lambda p: by_name(p, n).input.__setitem__(5, next(f for f in nodes(p, "Fetch") if f.output[0] == by_name(p, n).input[5]).input[0]),
               ["tier"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        check_valid(folder)
        for model, bucket in (("mlp", "4096"), ("gpt_merged", "131072")):
            broken = compile_plan(folder, model, "--ranks", "2", "--zero", "3", "--offload", "optimizer=nvme,params=host,grads=host", "--offload-window", "16KiB", "--bucket-bytes", bucket)
            check_transfers(folder, broken)
            check_places(folder, broken)
    print(", ".join("%d %s" % (n, what) for what, n in counts.items()), "-", len(failures), "failed")
    sys.exit(1 if failures else 0)
