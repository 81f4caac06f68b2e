#!/usr/bin/env python3
"""Traces: planned (`show --trace`) and measured (`run --trace`) as the Trace Event Format has them; `run --profile`.

    test_trace.py TESSERA
"""
import collections
import json
import os
import re
import tempfile

from e2e import check, finish, inputs, model, need, tessera, train

need("numpy", "onnx", "safetensors")


def ns(us):
    return round(us * 1000)


def parse(path):
    """Checks what a viewer needs; returns slices by (pid, tid), names of processes, and all events."""
    trace = json.load(open(path))
    check(set(trace) >= {"traceEvents", "displayTimeUnit", "otherData"}, "no trace: %s" % sorted(trace))
    slices, processes, threads, flows, counters = collections.defaultdict(list), {}, {}, collections.defaultdict(list), collections.defaultdict(list)
    for e in trace["traceEvents"]:
        check({"ph", "pid", "tid"} <= set(e) and e["ph"] in "XMsfC", "an event of no known kind: %s" % e)
        if e["ph"] == "M":
            if e["name"] == "process_name":
                processes[e["pid"]] = e["args"]["name"]
            if e["name"] == "thread_name":
                threads[e["pid"], e["tid"]] = e["args"]["name"]
        else:
            check(e["ts"] >= 0, "an event before the beginning: %s" % e)
        if e["ph"] == "X":
            check(e["dur"] >= 0 and e["name"], "a slice without duration or name: %s" % e)
            slices[e["pid"], e["tid"]].append(e)
        if e["ph"] in "sf":
            flows[e["id"]].append(e)
        if e["ph"] == "C":
            counters[e["pid"], e["name"]].append(e)
    for lane, events in slices.items():
        check(lane in threads and lane[0] in processes, "lane %s has no name" % (lane,))
        open_ends, last = [], -1
        for e in events:
            start, end = ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])
            check(start >= last, "lane %s: times go back at %s" % (lane, e))
            while open_ends and open_ends[-1] <= start and not (open_ends[-1] == start == end):
                open_ends.pop()
            check(not open_ends or end <= open_ends[-1], "lane %s: a slice ends outside of what it begins in: %s" % (lane, e))
            open_ends.append(end)
            last = start
    for pair in flows.values():
        check(len(pair) == 2 and pair[0]["ph"] == "s" and pair[1]["ph"] == "f" and pair[0]["ts"] <= pair[1]["ts"], "an arrow without two ends, or backwards: %s" % pair)
    for events in counters.values():
        check(all(a["ts"] <= b["ts"] for a, b in zip(events, events[1:])), "a counter goes back in time")
    return slices, processes, counters, flows, trace


def steps_of(slices, pid):
    return [e for lane, events in slices.items() if lane[0] == pid for e in events if e["cat"] != "phase"]


def check_planned(shown, slices, pid, micro):
    """Every step of the plan, as often as a training step runs it, on its own queue."""
    seen = collections.Counter(e["args"]["step"] for e in steps_of(slices, pid))
    for s in shown["steps"]:
        times = micro if s["phase"] == "micro" else 1
        check(seen[s["step"]] == times, "step %d is planned %d times, not %d" % (s["step"], seen[s["step"]], times))
    queues = {"compute": 0, "comm": 1, "io": 2}
    for lane, events in slices.items():
        if lane[0] == pid:
            check(all(queues[shown["steps"][e["args"]["step"]]["queue"]] == lane[1] for e in events if "step" in e.get("args", {})), "a step in another queue's lane")
    sent = sum(e["args"].get("sent_bytes", 0) for e in steps_of(slices, pid))
    check(sent == shown["sent_bytes_per_step"]["planned"], "the planned trace sends %d, the plan %d" % (sent, shown["sent_bytes_per_step"]["planned"]))


def check_show(tmp):
    plan, path = os.path.join(tmp, "plan.onnx"), os.path.join(tmp, "planned.json")
    for options, micro in ((["--ranks", 4, "--zero", 3, "--bucket-bytes", 16384, "--micro-batches", 8], 2), (["--ranks", 1], 1)):
        tessera("compile", model("gpt_merged"), "-o", plan, *options)
        p = tessera("show", plan, "--trace", path)
        check(p.returncode == 0 and not p.stdout, "show --trace: " + p.stderr + p.stdout[:100])
        shown = json.loads(tessera("show", plan, "--json").stdout)
        slices, processes, counters, flows, _ = parse(path)
        check(list(processes) == [0] and "planned" in processes[0], "processes of a plan: %s" % processes)
        check_planned(shown, slices, 0, micro)
        live = [sum(e["args"].values()) for events in counters.values() for e in events]
        memory = shown["memory"][0]
        check(max(live) == memory["peak_live_bytes"] and live[0] == memory["live_bytes"][0], "the counter of memory has another peak: %d" % max(live))
        waits = sum(len(s["waits"]) * (micro if s["phase"] == "micro" else 1) for s in shown["steps"])
        check(len(flows) == waits, "%d arrows, %d waits" % (len(flows), waits))


def check_run(tmp):
    plan, path = os.path.join(tmp, "plan.onnx"), os.path.join(tmp, "run.json")
    tessera("compile", model("gpt_merged"), "-o", plan, "--ranks", 2, "--zero", 3, "--bucket-bytes", 16384, "--micro-batches", 4)
    shown = json.loads(tessera("show", plan, "--json").stdout)
    plain = train("gpt_merged", "--steps", 6, source=plan)
    for window, steps in (([], [3, 4, 5]), (["--trace-steps", "1:2"], [1, 2]), (["--trace-steps", "5:9"], [5])):
        r = train("gpt_merged", "--steps", 6, "--trace", path, *window, source=plan)
        check(r["losses"] == plain["losses"] and r["params_hash"] == plain["params_hash"], "a trace changes results")
        slices, processes, _, _, _ = parse(path)
        check([processes[i].split()[0] for i in sorted(processes)] == ["rank", "rank", "planned,"], "processes of a run: %s" % processes)
        check_planned(shown, slices, 2, 2)
        for rank in range(2):
            events = steps_of(slices, rank)
            check([e["args"]["step"] for e in events if "training_step" not in e["args"]] == [s["step"] for s in shown["steps"] if s["phase"] == "init"],
                  "rank %d: the steps of init are not all there" % rank)
            for t in steps:
                ran = [(e["args"].get("micro"), e["args"]["step"]) for e in events if e["args"].get("training_step") == t]
                want = [(j, s["step"]) for j in range(2) for s in shown["steps"] if s["phase"] == "micro"] + [(None, s["step"]) for s in shown["steps"] if s["phase"] == "update"]
                check(ran == want, "rank %d, step %d: %d slices, not %d, or in another order" % (rank, t, len(ran), len(want)))
            check({e["args"]["training_step"] for e in events if "training_step" in e["args"]} == set(steps), "rank %d: other steps than %s" % (rank, steps))
            # What a step took is within what the run says of it.
            for t in steps:
                mine = [e for e in events if e["args"].get("training_step") == t]
                took_ms = (mine[-1]["ts"] + mine[-1]["dur"] - mine[0]["ts"]) / 1000
                check(0 < took_ms <= r["step_ms"]["max"] + 0.1, "rank %d: step %d took %.3f ms in the trace, at most %.3f in the report" % (rank, t, took_ms, r["step_ms"]["max"]))


def check_queues(tmp):
    """With --prefetch: a lane for each queue, arrows for the waits, and steps that wait begin after what they wait for, in the plan and on the clock."""
    plan, path = os.path.join(tmp, "queues.onnx"), os.path.join(tmp, "queues.json")
    p = tessera("compile", model("gpt_merged"), "-o", plan, "--ranks", 2, "--zero", 3, "--bucket-bytes", 16384, "--micro-batches", 4, "--prefetch", 2)
    check(p.returncode == 0, "compile --prefetch: " + p.stderr)
    shown = json.loads(tessera("show", plan, "--json").stdout)
    lanes = {0: [s for s in shown["steps"] if s["queue"] == "compute"], 1: [s for s in shown["steps"] if s["queue"] == "comm"]}
    check(lanes[1] and any(s["waits"] for s in lanes[0]) and any(s["waits"] for s in lanes[1]), "the plan has no second queue, or no waits")
    r = train("gpt_merged", "--steps", 4, "--trace", path, "--trace-steps", "2:3", "--profile", source=plan)
    slices, _, _, flows, _ = parse(path)
    check_planned(shown, slices, 2, 2)
    in_a_step = sum(len(s["waits"]) * (2 if s["phase"] == "micro" else 1) for s in shown["steps"] if s["phase"] != "init")
    arrows = collections.Counter(pair[0]["pid"] for pair in flows.values())
    check(arrows == {0: 2 * in_a_step, 1: 2 * in_a_step, 2: in_a_step}, "arrows by process are %s, waits of a step %d" % (dict(arrows), in_a_step))
    for rank in range(2):
        ran = {}
        for tid, steps in lanes.items():
            events = [e for e in slices[rank, tid] if e["cat"] != "phase"]
            for t in (2, 3):
                want = [s["step"] for _ in range(2) for s in steps if s["phase"] == "micro"] + [s["step"] for s in steps if s["phase"] == "update"]
                check([e["args"]["step"] for e in events if e["args"].get("training_step") == t] == want, "rank %d, queue %d: other steps in step %d" % (rank, tid, t))
            ran.update({(e["args"].get("training_step"), e["args"].get("micro"), e["args"]["step"]): e for e in events})
        for (t, j, step), e in ran.items():
            for waited in shown["steps"][step]["waits"]:
                before = ran[t, j, waited]
                check(ns(before["ts"]) + ns(before["dur"]) <= ns(e["ts"]), "rank %d: step %d began before step %d had ended" % (rank, step, waited))
    text = r["stderr"].split("exposed communication")[1]
    check("gradients" in text and "parameters for forward" in text, "the profile names no causes: " + text)


def check_shapes(tmp):
    """Programs of other shapes are in the trace and in the profile, too."""
    import numpy as np
    import onnx
    from safetensors.numpy import save_file
    source, data, path = os.path.join(tmp, "dynamic.onnx"), os.path.join(tmp, "data.safetensors"), os.path.join(tmp, "shapes.json")
    m = onnx.load(model("mlp"))
    for v in list(m.graph.input) + list(m.graph.output):
        if v.type.tensor_type.shape.dim and v.type.tensor_type.shape.dim[0].dim_value == 32:
            v.type.tensor_type.shape.dim[0].Clear()
            v.type.tensor_type.shape.dim[0].dim_param = "batch"
    del m.graph.value_info[:]
    onnx.save(m, source)
    rng = np.random.default_rng(5)
    save_file({"x.%d" % i: rng.normal(size=(n, 64)).astype(np.float32) for i, n in enumerate((8, 4, 8, 2))} |
              {"y.%d" % i: rng.integers(0, 10, n) for i, n in enumerate((8, 4, 8, 2))}, data)
    p = tessera("run", source, "--data", data, "--no-shuffle", "--ranks", 2, "--zero", 3, "--steps", 4, "--trace", path, "--profile")
    check(p.returncode == 0, "batches of several shapes: " + p.stderr)
    slices, _, _, _, _ = parse(path)
    check("exposed communication" in p.stderr, "no profile: " + p.stderr)


def milliseconds(text):
    number, unit = text.split()
    return float(number) * {"s": 1e3, "ms": 1, "us": 1e-3, "ns": 1e-6}[unit]


def check_profile():
    p = tessera("run", model("gpt_merged"), "--data", inputs("gpt_merged"), "--ranks", 2, "--zero", 3, "--steps", 5, "--profile")
    check(p.returncode == 0 and "\033" not in p.stderr, "--profile: " + p.stderr)
    text = p.stderr.split("\nprofile ")[1]
    whole = milliseconds(re.search(r": ([\d.]+ \w+) a step", text)[1])
    phases = re.findall(r"^  +(init|micro|update) +([\d.]+ [mun]?s)", text.split("by operator")[0], re.M)
    check({x[0] for x in phases} == {"init", "micro", "update"}, "phases of the profile: %s" % phases)
    total = sum(milliseconds(t) for name, t in phases if name != "init")
    check(abs(total - whole) <= 0.02 * whole, "phases sum to %.3f ms of %.3f" % (total, whole))
    steps_ms = [float(x) for x in re.findall(r" ms ([\d.]+)", p.stdout)]
    check(0 < whole <= max(steps_ms) * 1.01, "the profile has %.3f ms a step, the run at most %.3f" % (whole, max(steps_ms)))
    check("MatMul" in text and "gradients" in text.split("exposed communication")[1], "operators or causes are missing: " + text)


def check_errors(tmp):
    data = ["--data", inputs("mlp"), "--steps", 1]
    for options, code, words in ((["--trace-steps", "1:2"], 2, ["--trace"]), (["--trace", os.path.join(tmp, "t.json"), "--trace-steps", "2:1"], 2, ["A:B"]),
                                 (["--trace", os.path.join(tmp, "no", "t.json")], 5, ["--trace"]), (["--trace", tmp], 2, ["folder"]),
                                 (["--trace", os.path.join(tmp, "t.json"), "--trace-steps", "0:100000000000"], 7, ["--trace-steps"]),
                                 (["--trace", inputs("mlp")], 2, ["overwrite"])):
        p = tessera("run", model("mlp"), *data, *options)
        check(p.returncode == code and all(w in p.stderr for w in words), "%s: exit %d, %s" % (options, p.returncode, p.stderr))


def main():
    with tempfile.TemporaryDirectory() as tmp:
        check_show(tmp)
        check_run(tmp)
        check_queues(tmp)
        check_shapes(tmp)
        check_profile()
        check_errors(tmp)
    finish()


if __name__ == "__main__":
    main()
