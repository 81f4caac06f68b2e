#!/usr/bin/env python3
"""`tessera verify` on plans that are right, and on plans that were broken on purpose: every mutation must be caught with the defect named.

    test_verify.py TESSERA
"""
import copy
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    import onnx
except ImportError:
    print("needs the onnx package (tools/setup)")
    sys.exit(77)

TESSERA = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "build/tessera"
MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models")
failures = []
counts = {}


def check(ok, what):
    if not ok:
        failures.append(what)
        print("FAIL", what)


def compile_plan(tmp, model, *options):
    out = os.path.join(tmp, "plan.onnx")
    p = subprocess.run([TESSERA, "compile", os.path.join(MODELS, model, "model.onnx"), "-o", out, *options], capture_output=True, text=True)
    if p.returncode:
        raise RuntimeError("compile %s %s: %s" % (model, options, p.stderr))
    return onnx.load(out)


def save(plan, path):
    """As onnx.save, which looks for external data in each attribute first. A new file each time: one that is cut to nothing is waited for on some disks."""
    if os.path.exists(path):
        os.remove(path)
    with open(path, "wb") as f:
        f.write(plan.SerializeToString())


def verify(tmp, plan):
    path = os.path.join(tmp, "mutated.onnx")
    save(plan, path)
    p = subprocess.run([TESSERA, "verify", path, "--json"], capture_output=True, text=True, timeout=60)
    if p.returncode not in (0, 1):
        return p.returncode, {"ok": False, "defects": [], "said": p.stderr}
    return p.returncode, json.loads(p.stdout)


def meta(holder, key, value=None):
    """Reads, or with a value sets, one metadata property ('tessera.' is added). Setting '' removes it."""
    for i, m in enumerate(holder.metadata_props):
        if m.key == "tessera." + key:
            if value is None:
                return m.value
            if value == "":
                del holder.metadata_props[i]
            else:
                m.value = value
            return value
    if value:
        m = holder.metadata_props.add()
        m.key, m.value = "tessera." + key, value
    return value


def attribute(node, name):
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


def set_attribute(node, name, value):
    for a in list(node.attribute):
        if a.name == name:
            node.attribute.remove(a)
    node.attribute.append(onnx.helper.make_attribute(name, value))


def nodes(plan, kind, **wanted):
    return [n for n in plan.graph.node if n.op_type == kind and all(meta(n, k) == v for k, v in wanted.items())]


def value(plan, name):
    return next(v for group in (plan.graph.value_info, plan.graph.input, plan.graph.output) for v in group if v.name == name)


def buffers(plan):
    return [json.loads(m.value) for m in plan.metadata_props if m.key.startswith("tessera.buffer.")]


def set_buffer(plan, index, **fields):
    b = json.loads(meta(plan, "buffer.%d" % index))
    b.update(fields)
    meta(plan, "buffer.%d" % index, json.dumps(b))


def expect(tmp, title, plan, mutate, codes, or_malformed=False):
    """Applies `mutate` to a copy; one of the defects must have one of `codes`. or_malformed: reading may refuse it already."""
    broken = copy.deepcopy(plan)
    mutate(broken)
    code, result = verify(tmp, broken)
    counts["mutations"] = counts.get("mutations", 0) + 1
    if or_malformed and code == 3:
        return
    found = sorted({d["code"] for d in result["defects"]})
    check(code == 1 and set(found) & set(codes), "%s: exit %d, found %s, wanted one of %s %s" % (title, code, found, codes, result.get("said", "")))
    for d in result["defects"]:
        check(set(d) - {"program"} == {"code", "step", "op", "param", "what"} and d["what"], "%s: a defect has the keys %s" % (title, sorted(d)))


def check_valid(tmp):
    for model in ("mlp", "linreg", "gpt_merged"):
        for ranks in (1, 2, 4, 8):
            for zero in (0, 1, 2, 3):
                for k in (1, 2, 4):
                    for extra in ([], ["--reduce", "micro"], ["--bucket-bytes", "8192", "--recompute", "all"]):
                        plan = compile_plan(tmp, model, "--ranks", str(ranks), "--zero", str(zero), "--micro-batches", str(ranks * k), *extra)
                        code, result = verify(tmp, plan)
                        check(code == 0 and result["ok"], "%s ranks %d stage %d k %d %s: %s" % (model, ranks, zero, k, extra, result["defects"][:2]))
                        counts["valid plans"] = counts.get("valid plans", 0) + 1


def check_valid_nodes(tmp):
    """Plans for several processes: a gather copies, into one buffer of its process where that has several ranks."""
    for model in ("mlp", "gpt_merged"):
        for ranks, each in ((2, 1), (4, 2), (6, 3)):
            for zero in (0, 1, 2, 3):
                for extra in ([], ["--prefetch", "2", "--bucket-bytes", "8192", "--micro-batches", str(2 * ranks)], ["--precision", "bf16"]):
                    plan = compile_plan(tmp, model, "--ranks", str(ranks), "--ranks-per-process", str(each), "--zero", str(zero), *extra)
                    code, result = verify(tmp, plan)
                    check(code == 0 and result["ok"], "%s %d ranks, %d a process, stage %d %s: %s" % (model, ranks, each, zero, extra, result["defects"][:2]))
                    copies = [b for b in buffers(plan) if b["category"] == "gathered"]
                    check(bool(copies) == (zero == 3) and all((b["scope"] == "process") == (each > 1) for b in copies), "gathered copies: %s" % copies)
                    counts["valid plans"] = counts.get("valid plans", 0) + 1


def check_nodes(tmp):
    """What only plans for several processes can do wrong."""
    plan = compile_plan(tmp, "mlp", "--ranks", "4", "--ranks-per-process", "2", "--zero", "3", "--bucket-bytes", "8192")
    check_gathers(tmp, plan)
    check_memory(tmp, plan)
    ahead = compile_plan(tmp, "mlp", "--ranks", "4", "--ranks-per-process", "2", "--zero", "3", "--bucket-bytes", "4096", "--prefetch", "2")
    for p in (plan, ahead):
        for n in nodes(p, "AllGather", phase="micro"):
            place = meta(value(p, n.output[0]), "loc")
            buffer = int(place.split("+")[0])
            shard = int(meta(value(p, n.input[0]), "loc").split("+")[0])
            expect(tmp, "%s is a view" % n.name, p, lambda q: (meta(by_name(q, n), "guard", "read_begin"), meta(by_name(q, n), "region", str(buffer))), ["structure"])
            expect(tmp, "%s into a place by rank" % n.name, p, lambda q: meta(value(q, n.output[0]), "loc", place + "+64*rank"), ["location", "shared_write"])
            expect(tmp, "the shards of %s shared" % n.name, p, lambda q: set_buffer(q, shard, scope="process"), ["shared_write", "use_before_gather"])
    caught = 0
    for n in [n for n in ahead.graph.node if n.op_type == "AllGather" and meta(n, "waits")]:      # some only keep their distance
        broken = copy.deepcopy(ahead)
        meta(by_name(broken, n), "waits", "")
        caught += bool({"race", "missing_wait"} & {d["code"] for d in verify(tmp, broken)[1]["defects"]})
    check(caught, "a gather that does not wait until the bytes that it writes are released")


def drop(plan, node):
    plan.graph.node.remove(next(n for n in plan.graph.node if n.name == node.name))
    for v in [v for v in plan.graph.value_info if v.name in node.output]:
        plan.graph.value_info.remove(v)


def by_name(plan, node):
    return next(n for n in plan.graph.node if n.name == node.name)


def check_gathers(tmp, plan):
    for n in nodes(plan, "Release"):
        expect(tmp, "drop %s" % n.name, plan, lambda p: drop(p, n), ["never_released", "double_gather"])
        expect(tmp, "release %s twice" % n.name, plan, lambda p: repeat(p, n), ["release_without_gather"])

        def early(p):
            mine = by_name(p, n)
            gather = next(i for i, g in enumerate(p.graph.node) if g.op_type == "AllGather" and mine.input[0] in g.output)
            moved = copy.deepcopy(mine)
            p.graph.node.remove(mine)
            p.graph.node.insert(gather + 2, moved)
        expect(tmp, "%s too early" % n.name, plan, early, ["use_after_release"])
    for n in nodes(plan, "AllGather", guard="read_begin"):
        expect(tmp, "no guard at %s" % n.name, plan, lambda p: meta(by_name(p, n), "guard", ""), ["shared_write", "release_without_gather"])
    for n in nodes(plan, "Adam"):
        if meta(n, "guard"):
            expect(tmp, "no guard at %s" % n.name, plan, lambda p: meta(by_name(p, n), "guard", ""), ["unguarded_write"])
        expect(tmp, "drop %s" % n.name, plan, lambda p: drop(p, n), ["never_updated"])
        expect(tmp, "%s takes the loss for its gradient" % n.name, plan,
               lambda p: by_name(p, n).input.__setitem__(1, by_name(p, n).input[0]), ["never_reduced", "wrong_gradient"])


def repeat(plan, node):
    at = next(i for i, n in enumerate(plan.graph.node) if n.name == node.name)
    again = copy.deepcopy(plan.graph.node[at])
    again.name = node.name + "_again"
    for i, name in enumerate(again.output):
        info = copy.deepcopy(value(plan, name))
        info.name = again.output[i] = name + "_again"
        plan.graph.value_info.append(info)
    plan.graph.node.insert(at + 1, again)


def check_reductions(tmp, plan, kind):
    for n in nodes(plan, kind):
        if attribute(n, "kind") != b"grad":
            continue
        expect(tmp, "%s twice" % n.name, plan, lambda p: repeat(p, n), ["reduced_twice"])

        def skip(p):
            mine = by_name(p, n)
            for m in p.graph.node:
                for i, x in enumerate(m.input):
                    if x == mine.output[0]:
                        m.input[i] = mine.input[0]
        if kind == "AllReduce":
            expect(tmp, "%s skipped" % n.name, plan, skip, ["never_reduced"])
    for n in nodes(plan, kind) + nodes(plan, "AllGather"):
        expect(tmp, "%s of other parts" % n.name, plan, lambda p: set_attribute(by_name(p, n), "parts", attribute(n, "parts") + 1), ["agreement"])
        expect(tmp, "%s on another axis" % n.name, plan, lambda p: set_attribute(by_name(p, n), "axis", 1), ["agreement"])
        if attribute(n, "bucket") is not None:
            expect(tmp, "%s of another bucket" % n.name, plan, lambda p: set_attribute(by_name(p, n), "bucket", 1000), ["agreement"])


def check_buckets(tmp, plan):
    keys = [m.key[len("tessera."):] for m in plan.metadata_props if m.key.startswith("tessera.bucket.")]
    for key in keys:
        bucket = json.loads(meta(plan, key))

        def change(p, edit):
            b = json.loads(meta(p, key))
            edit(b)
            meta(p, key, json.dumps(b))
        if len(bucket["params"]) > 1:
            expect(tmp, key + ": two parameters at one place", plan,
                   lambda p: change(p, lambda b: b["params"][1].__setitem__("start", b["params"][0]["start"])), ["bucket"])
            expect(tmp, key + ": one parameter twice", plan,
                   lambda p: change(p, lambda b: b["params"][1].__setitem__("name", b["params"][0]["name"])), ["bucket"])
            expect(tmp, key + ": parameters exchanged", plan,
                   lambda p: change(p, lambda b: b.__setitem__("params", list(reversed(b["params"])))), ["bucket", "wrong_gradient"])
        expect(tmp, key + ": shorter", plan, lambda p: change(p, lambda b: b.__setitem__("elems", b["elems"] - 1024)), ["bucket", "agreement"], or_malformed=True)


def check_memory(tmp, plan):
    """Shrinks every buffer; moves each onto every other that is live at the same time (by what the planner recorded, which verify never reads)."""
    all_buffers = buffers(plan)
    for i, b in enumerate(all_buffers):
        if b["bytes"]:
            expect(tmp, "buffer %d '%s' shrunk" % (i, b["name"]), plan, lambda p: set_buffer(p, i, bytes=b["bytes"] - 1), ["location", "workspace"])
    last_step = len(plan.graph.node)
    span = lambda b: (0, last_step) if b.get("persistent") else (b["first"], b["last"])
    for i, a in enumerate(all_buffers):
        for j, b in enumerate(all_buffers):
            (a0, a1), (b0, b1) = span(a), span(b)
            # Where one begins as the other ends, an operator may work in place; a temporary is never in place.
            apart = min(a1, b1) - max(a0, b0) < (0 if "workspace" in (a["category"], b["category"]) else 1)
            never_read = a0 == a1 and a["category"] == "activations" or b0 == b1 and b["category"] == "activations"
            if i == j or apart or never_read or a["scope"] != b["scope"] or not a["bytes"] or not b["bytes"]:
                continue
            if not a.get("persistent") and b.get("persistent") or a["category"] == b["category"] == "control":
                continue        # the reverse pair moves the persistent one; control scalars are all written at once
            expect(tmp, "buffer %d '%s' onto %d '%s'" % (i, a["name"], j, b["name"]), plan, lambda p: set_buffer(p, i, offset=b["offset"]),
                   ["overwritten", "overlap", "uninitialized"])


def check_locations(tmp, plan):
    for v in list(plan.graph.value_info) + list(plan.graph.input):
        loc = meta(v, "loc")
        if not loc:
            continue
        expect(tmp, "'%s' far outside" % v.name, plan, lambda p: meta(value(p, v.name), "loc", loc.replace("+", "+999999", 1)), ["location"])


def check_workspaces(tmp, plan):
    used = [(n, int(meta(n, "workspace"))) for n in plan.graph.node if meta(n, "workspace")]
    for n, b in used:
        expect(tmp, "the workspace of %s shared by ranks" % n.name, plan, lambda p: set_buffer(p, b, scope="process"), ["workspace"])
    check(used, "a plan with workspaces")
    muon = compile_plan(tmp, "mlp", "--ranks", "2", "--optimizer", "muon")
    for n in nodes(muon, "MuonApply"):
        work, scratch = int(meta(n, "workspace")), int(meta(n, "scratch"))
        at = buffers(muon)[scratch]["offset"]
        expect(tmp, "workspace and scratchpad of %s at one place" % n.name, muon, lambda p: set_buffer(p, work, offset=at), ["overlap"])


def check_parts_between(tmp, plan):
    """A value over the part of a rank that is neither the first two nor the last: only that rank overwrites what it needs."""
    found = 0
    for v in plan.graph.value_info:
        loc = meta(v, "loc") or ""
        if not v.name.endswith(".grad") or "*rank" not in loc:
            continue
        place, stride = loc.split("*")[0].rsplit("+", 1)
        buffer, offset = place.split("+")
        middle = "%s+%d" % (buffer, int(offset) + 5 * int(stride))
        expect(tmp, "the norm over rank 5's part of %s" % v.name, plan, lambda p: meta(value(p, "tessera.grad_norm"), "loc", middle), ["overwritten"])
        found += 1
    check(found, "a plan with gradients that lie in parts of a whole")


def rewire(plan, old, new, kinds=()):
    for n in plan.graph.node:
        if n.op_type in kinds or not kinds:
            n.input[:] = [new if x == old else x for x in n.input]


def skip(plan, node):
    """Takes the node out; who read its output reads its input."""
    drop(plan, node)
    rewire(plan, node.output[0], node.input[0])


def take(plan, node, i, name):
    by_name(plan, node).input[i] = name


def alike(plan, name, of, reader=None):
    """Another of the values `of` with the type of `name`, there before `reader` runs, or None."""
    at = next((i for i, n in enumerate(plan.graph.node) if reader is not None and n.name == reader.name), 0)
    late = {x for n in plan.graph.node[at:] for x in n.output} if reader is not None else set()
    of = [x for x in of if x not in late]
    types = {v.name: v.type.SerializeToString() for group in (plan.graph.value_info, plan.graph.input, plan.graph.output) for v in group}
    return next((x for x in of if x != name and types.get(x) == types.get(name)), None)


def check_sums(tmp, plan):
    """Loss, norm, counters: a sum that is left out, a value in the place of another."""
    summed = ["never_reduced"]
    for n in nodes(plan, "AllReduce"):
        if attribute(n, "kind") == b"control":
            expect(tmp, "%s taken out" % n.name, plan, lambda p: skip(p, n), summed)
            expect(tmp, "%s not read" % n.name, plan, lambda p: rewire(p, n.output[0], n.input[0]), summed)
    for n in nodes(plan, "AllReduce") + nodes(plan, "ReduceScatter") + nodes(plan, "AllGather"):
        other = b"param" if attribute(n, "kind") != b"param" else b"control"
        expect(tmp, "%s counted as another kind" % n.name, plan, lambda p: set_attribute(by_name(p, n), "kind", other), ["agreement"])
    states = [n.input[5] for n in nodes(plan, "Adam")]
    for n in nodes(plan, "SquaredNorm"):
        expect(tmp, "norm without a bucket", plan, lambda p: by_name(p, n).input.pop(), ["norm"])
        expect(tmp, "norm of one bucket twice", plan, lambda p: by_name(p, n).input.append(n.input[1]), ["norm"])
        expect(tmp, "norm of a momentum", plan, lambda p: take(p, n, 1, states[0]), ["wrong_input"])
    for n in nodes(plan, "TreeAccumulate"):
        expect(tmp, "%s counts steps" % n.name, plan, lambda p: take(p, n, 1, "tessera.step"), ["wrong_input"])
        expect(tmp, "%s of twice as many" % n.name, plan, lambda p: set_attribute(by_name(p, n), "count", 2 * attribute(n, "count")), ["graph", "accumulation"])
        expect(tmp, "%s adds in another order" % n.name, plan, lambda p: by_name(p, n).attribute.append(onnx.helper.make_attribute("running", 1)), ["graph", "accumulation"])
        expect(tmp, "%s taken out" % n.name, plan, lambda p: skip(p, n), ["accumulation"])
        param = alike(plan, n.input[2], [x.output[0] for x in nodes(plan, "Load")], n)
        if param:
            expect(tmp, "%s with a parameter for its partial sum" % n.name, plan, lambda p: take(p, n, 2, param), ["accumulation"])
    for n in nodes(plan, "Adam"):
        for i, other in ((2, "tessera.lr"), (3, "tessera.grad_norm"), (3, "tessera.grad_scale"), (4, "tessera.micro")):
            expect(tmp, "%s takes %s for input %d" % (n.name, other, i), plan, lambda p: take(p, n, i, other), ["wrong_input"])
        expect(tmp, "%s in phase micro" % n.name, plan, lambda p: meta(by_name(p, n), "phase", "micro"), ["structure", "graph"])
        expect(tmp, "%s: states exchanged" % n.name, plan, lambda p: by_name(p, n).input.__setitem__(slice(5, 7), [n.input[6], n.input[5]]), ["wrong_state"])
    for report, other in (("loss_report", "norm_report"), ("norm_report", "loss_report"), ("inverse_count", "norm_report")):
        expect(tmp, "%s is %s" % (report, other), plan, lambda p: meta(p, report, meta(plan, other)), ["report"])
        expect(tmp, "no %s" % report, plan, lambda p: meta(p, report, ""), ["report"])


def check_recomputed(tmp, plan):
    """Steps that compute a forward step again: another operand, attribute, origin or step in its place."""
    copies = [n for n in plan.graph.node if meta(n, "recomputes")]
    check(copies, "a plan with recomputed steps")
    for n in copies:
        of = next(m for m in plan.graph.node if m.name == meta(n, "recomputes"))
        expect(tmp, "%s computes nothing again" % n.name, plan, lambda p: meta(by_name(p, n), "recomputes", "no such step"), ["recompute"])
        expect(tmp, "%s computes itself again" % n.name, plan, lambda p: meta(by_name(p, n), "recomputes", n.name), ["recompute"])
        expect(tmp, "%s of forward" % n.name, plan, lambda p: meta(by_name(p, n), "backward", ""), ["recompute"])
        expect(tmp, "%s for another node of the model" % n.name, plan, lambda p: meta(by_name(p, n), "origin", "another"), ["recompute"])
        other = next((m for m in copies if m.op_type != n.op_type), None)
        if other is not None:
            expect(tmp, "%s in place of %s" % (n.name, other.name), plan, lambda p: meta(by_name(p, n), "recomputes", meta(other, "recomputes")), ["recompute"])
        for i, name in enumerate(n.input):
            readable = [x for m in plan.graph.node if m.name != n.name for x in m.output] + [x.name for x in plan.graph.initializer]
            wrong = alike(plan, name, readable, n)
            if wrong and wrong != of.input[i] and (n.op_type != "BatchNormalization" or i < 3):    # statistics that it is given do not matter to it
                expect(tmp, "%s reads %s for %s" % (n.name, wrong, name), plan, lambda p: take(p, n, i, wrong), ["recompute"])


def check_activations(tmp, plan):
    """Activations in another tier: one that never leaves, that is read there, over another, or is not what a recomputed step reads."""
    away, back = nodes(plan, "Offload"), nodes(plan, "Fetch")
    check(away and len(away) == len(back), "a plan with activations in another tier")
    for n in away:
        reader = next(f for f in back if f.input[0] == n.output[0])
        expect(tmp, "%s does not happen" % n.name, plan, lambda p: drop(p, n), ["graph", "structure", "uninitialized", "tier"], or_malformed=True)
        expect(tmp, "what %s fetches is read where it lies" % reader.name, plan, lambda p: rewire(p, reader.output[0], n.output[0]), ["tier"])
        expect(tmp, "%s leaves it on the device" % n.name, plan, lambda p: meta(value(p, n.output[0]), "tier", ""), ["graph", "tier"])
        other = next((m for m in away if m.name != n.name), None)
        if other is not None:
            place = meta(value(plan, other.output[0]), "loc")
            expect(tmp, "%s over %s" % (n.name, other.name), plan, lambda p: meta(value(p, n.output[0]), "loc", place), ["overwritten", "tier", "location"])
            expect(tmp, "%s fetches the other" % reader.name, plan, lambda p: take(p, reader, 0, other.output[0]), ["recompute", "graph"])


def check_owners(tmp, plan):
    """Buckets: what is loaded, packed, unpacked, updated is another's; what values say of themselves is not so."""
    loads = [n for n in nodes(plan, "Load") if n.output[0].startswith("bucket.")]
    gathered = [x for n in nodes(plan, "AllGather") + loads for x in n.output]
    for n in loads:
        names, starts = attribute(n, "params"), attribute(n, "starts")
        expect(tmp, "%s of no parameter" % n.name, plan, lambda p: set_attribute(by_name(p, n), "params", [b"nobody"] + names[1:]), ["wrong_load"])
        expect(tmp, "%s one chunk later" % n.name, plan, lambda p: set_attribute(by_name(p, n), "starts", starts[:-1] + [starts[-1] + 1024]), ["wrong_load"])
        if len(names) > 1:
            expect(tmp, "%s of exchanged parameters" % n.name, plan, lambda p: set_attribute(by_name(p, n), "params", names[::-1]), ["wrong_load"])
        if attribute(n, "sharded"):
            expect(tmp, "%s not sharded" % n.name, plan, lambda p: set_attribute(by_name(p, n), "sharded", 0), ["wrong_load"])
            expect(tmp, "'%s' without placement" % n.output[0], plan, lambda p: meta(value(p, n.output[0]), "placement", ""), ["placement"])
        expect(tmp, "'%s' without role" % n.output[0], plan, lambda p: meta(value(p, n.output[0]), "role", ""), ["label"])
        expect(tmp, "'%s' without bucket" % n.output[0], plan, lambda p: meta(value(p, n.output[0]), "bucket", ""), ["label"])
    for n in nodes(plan, "Unpack"):
        other = alike(plan, n.input[0], gathered, n)
        if other:
            expect(tmp, "%s of another bucket" % n.name, plan, lambda p: take(p, n, 0, other), ["wrong_parameter", "wrong_input", "graph"])
        starts, dims = attribute(n, "starts"), attribute(n, "dims")
        expect(tmp, "%s at another place" % n.name, plan, lambda p: set_attribute(by_name(p, n), "starts", [starts[0] + 1] + starts[1:]), ["wrong_parameter"])
        expect(tmp, "%s of other dims" % n.name, plan, lambda p: set_attribute(by_name(p, n), "dims", [dims[0] + 1] + dims[1:]), ["graph"])
    views = [x for n in nodes(plan, "Unpack") for x in n.output]
    grads = [x for n in nodes(plan, "Pack") for x in n.input]
    for n in nodes(plan, "Pack"):
        for i, grad in enumerate(n.input):
            for other in (alike(plan, grad, views, n), alike(plan, grad, grads, n)):
                if other:
                    expect(tmp, "%s joins %s" % (n.name, other), plan, lambda p: take(p, n, i, other), ["wrong_gradient"])
    adams = nodes(plan, "Adam")
    for n in adams:
        for i in (0, 1, 5, 6):
            other = alike(plan, n.input[i], [m.input[i] for m in adams], n)
            if other:
                expect(tmp, "%s takes %s" % (n.name, other), plan, lambda p: take(p, n, i, other), ["wrong_gradient", "wrong_state", "updated_twice"])
        if meta(value(plan, n.input[5]), "placement"):
            expect(tmp, "'%s' without placement" % n.input[5], plan, lambda p: meta(value(p, n.input[5]), "placement", ""), ["placement"])
        expect(tmp, "'%s' under another name" % n.input[5], plan, lambda p: meta(value(p, n.input[5]), "state_name", "x"), ["label"])
    for n in nodes(plan, "Fill"):
        if n.output[0] in [x for a in adams for x in a.input]:
            expect(tmp, "'%s' starts at 0.5" % n.output[0], plan, lambda p: set_attribute(by_name(p, n), "value", "0.5"), ["wrong_state"])
    carried = [(v.name, meta(v, "carry")) for group in (plan.graph.value_info, plan.graph.output) for v in group if meta(v, "carry")]
    for name, to in carried:
        other = alike(plan, to, [t for _, t in carried])
        if other:
            expect(tmp, "'%s' becomes '%s'" % (name, other), plan, lambda p: meta(value(p, name), "carry", other), ["carry", "wrong_state", "accumulation", "not_carried"])
        expect(tmp, "'%s' becomes nothing" % name, plan, lambda p: meta(value(p, name), "carry", ""),
               ["not_carried", "wrong_state", "accumulation", "overwritten"])


def check_recipe(tmp, plan):
    k = int(meta(plan, "recipe.micro_per_rank") or 1)
    zero = int(meta(plan, "recipe.zero") or 0)
    ranks = int(meta(plan, "recipe.ranks_per_process"))
    expect(tmp, "twice the micro-batches", plan, lambda p: meta(p, "recipe.micro_per_rank", str(2 * k)), ["accumulation", "bytes"])
    expect(tmp, "another stage", plan, lambda p: meta(p, "recipe.zero", str(3 - zero)), ["recipe"])
    expect(tmp, "more ranks in a process", plan, lambda p: meta(p, "recipe.ranks_per_process", str(2 * ranks)), ["recipe"])
    expect(tmp, "another mesh", plan, lambda p: meta(p, "mesh", "dp=%d" % (2 * ranks)), ["recipe", "agreement"])
    other = "step" if (meta(plan, "recipe.reduce") or "micro") == "micro" else "micro"
    expect(tmp, "reduction once a %s" % other, plan, lambda p: meta(p, "recipe.reduce", other), ["recipe"])
    for key in ("recipe.micro_per_rank", "recipe.zero", "recipe.ranks_per_process", "recipe.processes", "recipe.threads_per_rank"):
        for number in ("-1", "9223372036854775807", "4294967296", "x"):
            broken = copy.deepcopy(plan)
            meta(broken, key, number)
            check(verify(tmp, broken)[0] == 3, "%s = %s is read" % (key, number))
    for key, field in (("buffer.0", "bytes"), ("buffer.0", "offset"), ("bucket.0", "elems"), ("bucket.0", "shard_elems")):
        for number in (-1, 2 ** 63 - 1, 1.5, "x", None):
            broken = copy.deepcopy(plan)
            table = json.loads(meta(broken, key))
            table[field] = number
            meta(broken, key, json.dumps(table))
            check(verify(tmp, broken)[0] == 3, "%s %s = %s is read" % (key, field, number))


def check_run_refuses(tmp, plan):
    """`run` proves a plan before its first step."""
    path = os.path.join(tmp, "broken.onnx")
    run = [TESSERA, "run", path, "--data", "random", "--steps", "1"]
    onnx.save(plan, path)
    p = subprocess.run(run, capture_output=True, text=True, timeout=60)
    check(p.returncode == 0, "run of a plan: exit %d: %s" % (p.returncode, p.stderr))
    broken = copy.deepcopy(plan)
    norm = nodes(broken, "SquaredNorm")[0]
    limbs = next(n for n in nodes(broken, "AllReduce") if n.input[0] == norm.output[0])
    rewire(broken, limbs.output[0], norm.output[0], ["ClipScale"])
    onnx.save(broken, path)
    p = subprocess.run(run, capture_output=True, text=True, timeout=60)
    check(p.returncode == 1 and "never_reduced" in p.stderr and "step 0" not in p.stdout, "run of a broken plan: exit %d: %s" % (p.returncode, p.stderr))


def say(tmp, plan):
    path = os.path.join(tmp, "said.onnx")
    onnx.save(plan, path)
    p = subprocess.run([TESSERA, "verify", path], capture_output=True, text=True, timeout=60)
    return p.returncode, p.stdout


def check_text(tmp, plan):
    """What a person reads: what was proved; or the defects by code, the first one's first, each code with its meaning once."""
    code, text = say(tmp, plan)
    check(code == 0 and all(w in text for w in (": ok", "%d, each" % len(plan.graph.node), "collectives", "ownership", "memory", "order", "queues compute")),
          "what is proved: %s" % text)
    broken = copy.deepcopy(plan)
    for n in nodes(broken, "Adam"):
        n.input[4] = "tessera.micro"
        meta(n, "guard", "")
    code, text = say(tmp, broken)
    heads = [line for line in text.splitlines()[:-1] if not line.startswith("  ")]
    check(code == 1 and len(heads) == len({h.split()[0] for h in heads}) and "wrong_input (ownership)" in heads[0] and "the first found: wrong_input" in text,
          "defects by code: %s" % text)
    known = subprocess.run([TESSERA, "verify", "--codes"], capture_output=True, text=True).stdout
    check(all("\n  %s " % h.split()[0] in known for h in heads), "codes that --codes does not list: %s" % heads)


def check_queues(tmp, plan):
    """Queues and waits edited by hand: a gather on another queue whose readers do not wait, a wait in a circle, one for a later step."""
    gather = nodes(plan, "AllGather", guard="read_begin")[0]
    after = plan.graph.node[[n.name for n in plan.graph.node].index(gather.name) + 1]
    collectives = {"AllGather", "ReduceScatter", "AllReduce"}

    def to_comm(p):
        for n in p.graph.node:
            if n.op_type in collectives:
                meta(n, "queue", "comm")
    expect(tmp, "collectives on comm without a wait", plan, to_comm, ["missing_wait"])
    expect(tmp, "one gather on another queue", plan, lambda p: meta(by_name(p, gather), "queue", "io"), ["deadlock"])
    expect(tmp, "a wait on one queue", plan, lambda p: meta(by_name(p, after), "waits", json.dumps([gather.name])), ["bad_wait"])
    expect(tmp, "two steps that wait for each other", plan, lambda p: meta(by_name(p, gather), "waits", json.dumps([after.name])), ["deadlock"])
    expect(tmp, "a wait for nobody", plan, lambda p: meta(by_name(p, after), "waits", '["nobody"]'), [], or_malformed=True)
    expect(tmp, "an unknown queue", plan, lambda p: meta(by_name(p, after), "queue", "disk"), [], or_malformed=True)


def add_sum(plan, bucket):
    """The bucket's gradient is summed along axis 1, too."""
    name = "bucket.%d.grad" % bucket
    own = name + ".own"
    info = copy.deepcopy(value(plan, name))
    info.name = own
    for n in plan.graph.node:
        n.output[:] = [own if x == name else x for x in n.output]
    plan.graph.value_info.append(info)
    node = onnx.helper.make_node("AllReduce", [own], [name], name="sum.%d" % bucket, domain="tessera", axis=1, parts=2, bucket=bucket, kind="grad")
    meta(node, "phase", "update")
    plan.graph.node.insert(next(i for i, n in enumerate(plan.graph.node) if meta(n, "phase") == "update"), node)


def two_programs(tmp, orders):
    """A plan for two ranks with a program each, which sums the gradients of the two buckets along axis `pp`, in the given order."""
    programs = []
    for order in orders:
        plan = compile_plan(tmp, "linreg", "--bucket-bytes", "4096")
        meta(plan, "mesh", "dp=1,pp=2")
        meta(plan, "recipe.ranks_per_process", "2")
        for bucket in reversed(order):
            add_sum(plan, bucket)
        programs.append(plan)
    first, second = programs
    body = copy.deepcopy(second.graph)
    body.metadata_props.extend(second.metadata_props)
    first.graph.node.insert(0, onnx.helper.make_node("Program", [], ["program.1"], name="program.1", domain="tessera", body=body))
    return first


def check_programs(tmp):
    same = two_programs(tmp, [(0, 1), (0, 1)])
    code, text = say(tmp, same)
    check(code == 0 and "programs    2" in text, "two programs that agree: exit %d: %s" % (code, text))
    swapped = two_programs(tmp, [(0, 1), (1, 0)])
    expect(tmp, "two programs in another order", swapped, lambda p: None, ["deadlock"])
    code, text = say(tmp, swapped)
    check("'sum.0' waits for program 1, which enters 'sum.1'" in text and "'sum.1' waits for program 0, which enters 'sum.0'" in text, "the circle is named: %s" % text)
    expect(tmp, "a sum that the other program lacks", two_programs(tmp, [(0, 1), (0,)]), lambda p: None, ["deadlock"])

    def other_kind(p):
        body = p.graph.node[0].attribute[0].g
        set_attribute(next(n for n in body.node if n.name == "sum.0"), "kind", "control")
    expect(tmp, "a sum that is of another kind in the other program", same, other_kind, ["agreement"])
    expect(tmp, "one program for two ranks of pp", same, lambda p: p.graph.node.pop(0), ["programs"])
    expect(tmp, "another number of micro-batches", same, lambda p: meta(p, "recipe.micro_per_rank", "2"), ["programs", "accumulation"])
    path = os.path.join(tmp, "programs.onnx")
    onnx.save(same, path)
    onnx.checker.check_model(path)
    for command in (["run", path, "--data", "random", "--steps", "1"], ["show", path]):
        p = subprocess.run([TESSERA, *command], capture_output=True, text=True, timeout=60)
        check(p.returncode == 4 and "2 programs" in p.stderr, "%s of two programs: exit %d: %s" % (command[0], p.returncode, p.stderr))


def check_attributes(tmp, plan):
    """Operators with an attribute less, or with a list in it that is too short: refused, whatever else asks them."""
    for n in plan.graph.node:
        for a in n.attribute:
            def change(p, short):
                mine = by_name(p, n)
                at = next(x for x in mine.attribute if x.name == a.name)
                if short and len(at.ints) > 1:
                    del at.ints[0]
                else:
                    mine.attribute.remove(at)
            for short in (False, True):
                broken = copy.deepcopy(plan)
                change(broken, short)
                code, _ = verify(tmp, broken)
                check(code in (0, 1, 3), "%s without %s: exit %d" % (n.name, a.name, code))
                counts["mutations"] = counts.get("mutations", 0) + 1


def check_hostile(tmp, plan):
    """Random metadata: an answer, never a crash."""
    rng = random.Random(5)
    odd = ["", "-1", "0", "99999999", "9223372036854775807", "-9223372036854775808", "x", "{}", "[]", "null", "update", "read_begin", "0+0", "3+64*rank"]
    for trial in range(400):
        p = copy.deepcopy(plan)
        holders = [h for h in [p] + list(p.graph.node) + list(p.graph.value_info) if h.metadata_props]
        for _ in range(rng.choice([1, 1, 3])):
            m = rng.choice(rng.choice(holders).metadata_props)
            number = [c for c in m.value.split('"') if any(ch.isdigit() for ch in c)]
            m.value = m.value.replace(number[0], rng.choice(odd)) if number and rng.random() < 0.5 else rng.choice(odd)
        path = os.path.join(tmp, "hostile.onnx")
        save(p, path)
        for command in ("verify", "show"):
            code = subprocess.run([TESSERA, command, path], capture_output=True, timeout=60).returncode
            check(code in (0, 1, 2, 3, 4, 7), "hostile plan %d: %s exits with %d" % (trial, command, code))
        counts["hostile plans"] = counts.get("hostile plans", 0) + 1


def main():
    with tempfile.TemporaryDirectory() as tmp:
        check_valid(tmp)
        check_valid_nodes(tmp)
        check_nodes(tmp)
        sharded = compile_plan(tmp, "mlp", "--ranks", "2", "--zero", "3", "--micro-batches", "4")
        buckets = compile_plan(tmp, "gpt_merged", "--ranks", "4", "--zero", "3", "--micro-batches", "8", "--bucket-bytes", "16384")
        replicated = compile_plan(tmp, "mlp", "--ranks", "4", "--zero", "0")
        state = compile_plan(tmp, "mlp", "--ranks", "2", "--zero", "1", "--micro-batches", "4")
        for plan in (sharded, buckets):
            check_gathers(tmp, plan)
            check_reductions(tmp, plan, "ReduceScatter")
            check_buckets(tmp, plan)
        check_reductions(tmp, replicated, "AllReduce")
        check_reductions(tmp, state, "ReduceScatter")
        for plan in (sharded, replicated, state):
            check_memory(tmp, plan)
        check_locations(tmp, sharded)
        check_workspaces(tmp, compile_plan(tmp, "mlp", "--ranks", "4", "--zero", "2", "--micro-batches", "8"))
        check_parts_between(tmp, compile_plan(tmp, "mlp", "--ranks", "8", "--zero", "1", "--micro-batches", "16", "--bucket-bytes", "4096"))
        small = compile_plan(tmp, "mlp", "--ranks", "2", "--zero", "3", "--micro-batches", "4", "--bucket-bytes", "4096")
        halves = compile_plan(tmp, "mlp", "--ranks", "2", "--zero", "1", "--micro-batches", "8", "--bucket-bytes", "4096")
        for plan in (small, halves):
            check_sums(tmp, plan)
            check_owners(tmp, plan)
            check_recipe(tmp, plan)
        check_owners(tmp, replicated)
        check_recomputed(tmp, compile_plan(tmp, "gpt_merged", "--zero", "3", "--ranks", "2", "--micro-batches", "4", "--recompute", "blocks"))
        check_recomputed(tmp, compile_plan(tmp, "resnet_bn", "--recompute", "blocks"))
        check_activations(tmp, compile_plan(tmp, "gpt_merged", "--recompute", "blocks", "--offload", "activations=nvme"))
        check_run_refuses(tmp, sharded)
        check_text(tmp, small)
        check_queues(tmp, small)
        check_programs(tmp)
        check_attributes(tmp, compile_plan(tmp, "linreg", "--ranks", "2", "--zero", "3"))
        check_hostile(tmp, sharded)
    print(", ".join("%d %s" % (n, what) for what, n in counts.items()), "- %d failed" % len(failures))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
