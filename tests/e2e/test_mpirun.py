#!/usr/bin/env python3
"""Processes that mpirun starts: the same losses, norms and parameters as one process, output of the first alone, checkpoints that go on anywhere; and what is said when
processes are too many or too few, or do not want the same.

    test_mpirun.py TESSERA [--all]     --all: every layout x stage x precision, with a table
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from e2e import TESSERA, check, finish, inputs, model, need, sanitized, tessera, train

need("safetensors")
MPI = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")
COMMON = ["--steps", 10, "--micro-batches", 8, "--lr", "0.003", "--clip-norm", "0.5", "--bucket-bytes", 16384]
DATA = ["--data", inputs("mlp"), "--no-shuffle"]


def mpirun(*programs, timeout=120):
    """Each program: (processes, arguments of tessera)."""
    words = []
    for n, arguments in programs:
        words += ([":"] if words else []) + ["-n", str(n), TESSERA, *map(str, arguments)]
    return subprocess.run(["mpirun", *words], capture_output=True, text=True, timeout=timeout, env=MPI, stdin=subprocess.DEVNULL)


def mpi_train(processes, *arguments, expect=0):
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "report.json")
        p = mpirun((processes, ["run", model("mlp"), *DATA, "--report", path, *arguments]))
        report = json.load(open(path)) if os.path.exists(path) else {}
    report.update(exit=p.returncode, stdout=p.stdout, stderr=p.stderr)
    check(p.returncode == expect, "mpirun -n %d %s: exit %d, wanted %d: %s" % (processes, arguments, p.returncode, expect, p.stderr[-600:]))
    return report


def result(report):
    return report.get("losses"), report.get("grad_norms"), report.get("params_hash")


def check_run(one, ranks, processes, zero, precision, ahead):
    r = mpi_train(processes, *COMMON, "--ranks", ranks, "--zero", zero, "--precision", precision, "--prefetch", ahead)
    what = "%d ranks in %d processes, stage %d, %s" % (ranks, processes, zero, precision)
    same = check(result(r) == result(one), what + ": other bits than one process")
    sent, peak = r.get("sent_bytes_per_step", {}), r.get("peak_bytes", {}).get("device", {})
    check(sent.get("planned") == sent.get("measured") and sent.get("wire_planned") == sent.get("wire") and peak.get("planned") == peak.get("measured"),
          "%s: planned is not measured: %s %s" % (what, sent, peak))
    check(len(r.get("rss_peak_bytes", [])) == processes == r.get("processes"), what + ": processes of the report")
    return same, r.get("params_hash"), sent.get("wire")


def check_table():
    for precision in ("f32", "bf16"):
        one = train("mlp", *COMMON, "--precision", precision)
        for processes in (1, 2, 4):
            for ranks in (1, 2, 4, 8):
                for zero in range(4):
                    if ranks < processes:
                        continue
                    print("%-4s %d ranks as %d processes, stage %d: %s %s, %s bytes leave a process" %
                          (precision, ranks, processes, zero, *check_run(one, ranks, processes, zero, precision, ranks % 3)), flush=True)


def check_few():
    for precision, ranks, processes, zero, ahead in (("f32", 4, 2, 3, 0), ("bf16", 4, 4, 2, 2)):
        check_run(train("mlp", *COMMON, "--precision", precision), ranks, processes, zero, precision, ahead)


def check_checkpoint(tmp):
    """Saved by two processes, continued by one; the first alone prints."""
    saved, part = os.path.join(tmp, "saved"), ["--micro-batches", 4, "--lr", "0.003"]
    whole = train("mlp", *part, "--steps", 6)
    r = mpi_train(2, *part, "--steps", 3, "--ranks", 4, "--zero", 3, "--save", saved)
    steps = re.findall(r"^step (\d+) ", r["stdout"], re.M)
    check(steps == ["0", "1", "2"], "steps are printed once: %s" % r["stdout"])
    check(r["stderr"].count("compiled '") == 1, "who compiled is said once: %s" % r["stderr"])
    r = train("mlp", *part, "--steps", 3, "--resume", saved)
    check(r.get("params_hash") == whole["params_hash"], "continued by one process: %s" % r.get("params_hash"))


def check_said(title, p, code, *words):
    check(p.returncode == code and all(re.search(w, p.stderr) for w in words), "%s: exit %d, %s" % (title, p.returncode, p.stderr[-900:]))


def check_refusals(tmp):
    run = ["run", model("mlp"), *DATA, "--steps", 2]
    check_said("3 processes, 4 ranks", mpirun((3, run + ["--ranks", 4])), 2, r"--ranks 4: that many ranks are no whole number .* 3 processes")
    check_said("other options", mpirun((1, run + ["--ranks", 2, "--lr", "0.1"]), (1, run + ["--ranks", 2, "--lr", "0.2"])), 2,
               r"process 1 .* other options than process 0: --lr=0.2, and there --lr=0.1")
    plan = os.path.join(tmp, "plan.onnx")
    p = tessera("compile", model("mlp"), "--ranks", 4, "--ranks-per-process", 1, "-o", plan)
    check(p.returncode == 0, "compile: " + p.stderr)
    check_said("a plan for 4 processes", mpirun((2, ["run", plan, *DATA, "--steps", 2])), 2, r"the plan is for 4 processes of 1 rank each, and 2 were started; start 4")


def main():
    if not shutil.which("mpirun") or sanitized():
        print("needs mpirun (openmpi-bin), and no sanitizer, which finds fault with the MPI library")
        sys.exit(77)
    if "--all" in sys.argv:
        check_table()
    else:
        check_few()
    with tempfile.TemporaryDirectory() as tmp:
        check_checkpoint(tmp)
        check_refusals(tmp)
    finish()


main()
