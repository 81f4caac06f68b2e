#!/usr/bin/env python3
"""Runs that end badly: a killed worker, a failing rank, a loss that is no number, wrong usage. They end soon, say what and where, leave nothing.

    test_failures.py TESSERA
"""
import json
import os
import random
import resource
import signal
import subprocess
import tempfile
import time

from e2e import TESSERA, check, finish, inputs, model, sanitized, tessera, train


def children(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
        return [int(x) for x in f.read().split()]


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def check_kill(tmp, wait_s, victim):
    """victim: 'worker' (killed: reported by the supervisor) or 'supervisor' (its worker must die too)."""
    report = os.path.join(tmp, "killed.json")
    p = subprocess.Popen([TESSERA, "run", model("gpt_merged"), "--data", inputs("gpt_merged"), "--steps", "1000000", "--ranks", "2", "--zero", "3",
                          "--report", report, "--save", os.path.join(tmp, "never")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    p.stdout.readline()
    time.sleep(wait_s)
    worker = children(p.pid)[0]
    started = time.time()
    os.kill(worker if victim == "worker" else p.pid, signal.SIGKILL)
    said = p.communicate(timeout=20)[1]
    took = time.time() - started
    check(took < 1, "after kill -9 of the %s the run took %.2f s to end" % (victim, took))
    while alive(worker) and time.time() - started < 1:
        time.sleep(0.01)
    check(not alive(worker), "the worker outlives the %s" % victim)
    check(not os.path.exists(os.path.join(tmp, "never")), "a checkpoint was left")
    check(not [f for f in os.listdir(tmp) if ".tmp" in f or "never" in f], "something is left: %s" % os.listdir(tmp))
    if victim == "supervisor":
        return
    check(p.returncode == 6 and "signal 9" in said.lower().replace("sigkill", "signal 9"), "exit %d: %s" % (p.returncode, said))
    r = json.load(open(report))
    check(r["error"]["code"] == 6 and len(r["losses"]) > 0 and r["steps"] == len(r["losses"]), "the report says %s, %d losses" % (r["error"], len(r["losses"])))
    os.remove(report)


def check_fault(rank, step):
    started = time.time()
    r = train("mlp", "--steps", 1000, "--ranks", 4, "--zero", 3, "--fault", "%d:%d" % (rank, step), expect=6)
    check(time.time() - started < 2, "a failing rank took %.2f s" % (time.time() - started))
    check(r["error"]["rank"] == rank and str(step) in r["error"]["what"], "the report says %s" % r["error"])
    check("rank %d" % rank in r["stderr"] and "step %d" % step in r["stderr"], "the message says %s" % r["stderr"])
    check(len(r["losses"]) == step, "%d losses before the failure at step %d" % (len(r["losses"]), step))


def check_not_finite():
    r = train("mlp", "--steps", 50, "--optimizer", "sgd", "--lr", "1e30", expect=1)
    check(r["error"]["code"] == 1 and "loss" in r["error"]["what"], "the report says %s" % r["error"])
    check(r["losses"][-1] is None and len(r["losses"]) < 50, "losses end with %s" % r["losses"][-1:])


def check_interrupt(tmp):
    saved = os.path.join(tmp, "interrupted")
    p = subprocess.Popen([TESSERA, "run", model("mlp"), "--data", inputs("mlp"), "--steps", "100000000", "--save", saved],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    p.stdout.readline()
    time.sleep(0.2)
    p.send_signal(signal.SIGINT)
    said = p.communicate(timeout=10)[1]
    check(p.returncode == 1 and "stopped by signal" in said, "exit %d: %s" % (p.returncode, said))
    check(os.path.exists(os.path.join(saved, "meta.json")), "an interrupted run saves nothing")


def check_usage(tmp):
    mlp, data = model("mlp"), inputs("mlp")
    plain = ["--data", data, "--steps", "1"]
    cases = [
        (["run", mlp], 2, ["float[32,64]", "int64[32]", "tessera run"]),
        (["run", mlp, "--rank", "2"], 2, ["did you mean --ranks"]),
        (["run", mlp, "--ranks", "0", *plain], 2, ["--ranks"]),
        (["run", mlp, "--ranks", "two", *plain], 2, ["two"]),
        (["run", mlp, "--zero", "4", *plain], 2, ["0..3"]),
        (["run", mlp, "--ranks=3", "--micro-batches", "4", *plain], 2, ["3", "6"]),
        (["run", mlp, "--zero", "3", "--reduce", "step", *plain], 2, ["--reduce micro"]),
        (["run", mlp, "--optimizer", "lyon", *plain], 2, ["sgd|adam|adamw"]),
        (["run", mlp, "--optimizer", "adam", "--momentum", "0.9", *plain], 2, ["--momentum"]),
        (["run", mlp, "--betas", "0.9", *plain], 2, ["two numbers"]),
        (["run", mlp, "--lr-list", "0.1,x", *plain], 2, ["x"]),
        (["run", mlp, "--bucket-bytes", "8MiBs", *plain], 2, ["unit", "MiB"]),
        (["run", mlp, "--bucket-bytes", "0.3KiB", *plain], 2, ["whole number of bytes"]),
        (["run", mlp, "--bucket-bytes=-8KiB", *plain], 2, ["8MiB"]),
        (["run", mlp, "--bucket-bytes", "1KiB", *plain], 2, ["1024 bytes", "4096"]),
        (["run", mlp, "--nesterov=1", *plain], 2, ["takes no value"]),
        (["run", mlp, mlp, *plain], 2, ["one file"]),
        (["run", mlp, "--data", os.path.join(tmp, "nothing.safetensors"), "--steps", "1"], 5, ["nothing.safetensors"]),
        (["run", os.path.join(tmp, "nothing.onnx"), *plain], 5, ["nothing.onnx"]),
        (["run", data, *plain], 3, ["inputs.safetensors"]),
        (["run", mlp, "--steps", "1", "--data", data, "--report", os.path.join(tmp, "none", "r.json")], 5, ["r.json"]),
        (["run", mlp, "--fault", "9:1", *plain], 2, ["--fault"]),
        (["run", mlp, "--link-delay", "12:", *plain], 2, ["--link-delay", "NS:NS_PER_MIB"]),
        (["run", mlp, "--link-delay", "-1", *plain], 2, ["--link-delay"]),
        (["run", mlp, "--prefetch", "-1", *plain], 2, ["--prefetch", "0"]),
        (["compile", mlp], 2, ["-o PLAN.onnx"]),
        (["verify", mlp], 2, ["not a plan"]),
        (["runn"], 2, ["did you mean 'run'"]),
        (["export", tmp, "-o", os.path.join(tmp, "x.onnx")], 5, []),
        ([], 2, ["Usage"]),
    ]
    for arguments, code, words in cases:
        p = tessera(*arguments)
        check(p.returncode == code, "tessera %s: exit %d, wanted %d: %s" % (" ".join(arguments), p.returncode, code, p.stderr))
        for w in words:
            check(w in p.stderr, "tessera %s: does not say '%s': %s" % (" ".join(arguments), w, p.stderr))
    for command in ("run", "compile", "show", "verify", "export"):
        p = tessera(command, "--help")
        check(p.returncode == 0 and "Exit codes:" in p.stdout, "%s --help: exit %d" % (command, p.returncode))


def check_report_on_usage(tmp):
    report = os.path.join(tmp, "usage.json")
    p = tessera("run", model("mlp"), "--data", inputs("mlp"), "--zero", "3", "--reduce", "step", "--report", report)
    r = json.load(open(report))
    check(p.returncode == 2 and r["error"]["code"] == 2 and r["losses"] == [] and r["error"]["what"], "the report of a refused run says %s" % r["error"])


def check_memory(tmp):
    """Memory that is not there is an error before any of it is taken: the machine's, or what a limit allows."""
    try:
        from onnx import TensorProto, helper, save
    except ImportError:
        return
    path = os.path.join(tmp, "wide.onnx")
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [4, 1024], [0.5] * 4096)]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["t"]), helper.make_node("ReduceMean", ["t"], ["loss"], keepdims=0)]
    inputs_ = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 4])]
    graph = helper.make_graph(nodes, "g", inputs_, [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    limit = 2 << 30
    for batch, ranks, options, word in ((1 << 27, 1, {}, "available"), (1 << 20, 1, {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))}, "RLIMIT_AS"),
                                        (1 << 19, 2, {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))}, "--zero, now 1")):
        started = time.time()
        p = tessera("run", path, "--data", "random", "--batch", batch, "--steps", 1, "--ranks", ranks, "--zero", min(1, ranks - 1), **options)
        check(p.returncode == 7 and "the plan needs" in p.stderr and word in p.stderr, "batch %d: exit %d %s" % (batch, p.returncode, p.stderr[-400:]))
        check("signal" not in p.stderr and time.time() - started < 10, "batch %d took %.1f s" % (batch, time.time() - started))


def main():
    rng = random.Random(3)
    with tempfile.TemporaryDirectory() as tmp:
        for _ in range(3):
            check_kill(tmp, rng.random() * 0.5, "worker")
        check_kill(tmp, 0.1, "supervisor")
        check_interrupt(tmp)
        check_usage(tmp)
        check_report_on_usage(tmp)
        if not sanitized():          # its shadow is address space, too
            check_memory(tmp)
    for _ in range(3):
        check_fault(rng.randrange(4), rng.randrange(20))
    check_not_finite()
    finish()


if __name__ == "__main__":
    main()
