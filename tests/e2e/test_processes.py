#!/usr/bin/env python3
"""Ranks in several processes, emulated in one: the same losses, norms and parameters as in one process, over ranks x processes x stages x precisions; what is
planned is what is measured, on the wire, too; checkpoints of one layout go on in any other.

    test_processes.py TESSERA
"""
import os
import tempfile

from e2e import TESSERA, check, finish, need, sanitized, tessera, train

need("safetensors")
COMMON = ["--steps", 10, "--micro-batches", 8, "--lr", "0.003", "--clip-norm", "0.5", "--bucket-bytes", 16384]
LAYOUTS = [(1, 1), (2, 2), (2, 1), (4, 2), (4, 1), (8, 4), (8, 2)]           # ranks, ranks per process


def split(ranks, each):
    return ["--ranks", ranks, "--ranks-per-process", each]


def result(report):
    return report.get("losses"), report.get("grad_norms"), report.get("params_hash")


def check_planned(report, what):
    sent, peak = report.get("sent_bytes_per_step", {}), report.get("peak_bytes", {}).get("device", {})
    check(sent.get("planned") == sent.get("measured"), "%s: sent %s" % (what, sent))
    check(sent.get("wire_planned") == sent.get("wire") and (sent.get("wire", 0) > 0) == (report.get("processes", 1) > 1), "%s: wire %s" % (what, sent))
    check(peak.get("planned") == peak.get("measured"), "%s: peak %s" % (what, peak))


def check_bits(name, precision, ahead):
    first = None
    for ranks, each in LAYOUTS:
        for zero in range(4):
            report = train(name, *COMMON, *split(ranks, each), "--zero", zero, "--precision", precision, *ahead)
            what = "%s %s %s, %d ranks, %d a process, stage %d" % (name, precision, ahead, ranks, each, zero)
            first = first or result(report)
            check(result(report) == first and report.get("params_hash"), "%s differs: %s" % (what, report.get("params_hash")))
            check(report.get("processes") == ranks // each, what + ": processes")
            check_planned(report, what)


# Three of six ranks, five processes: no powers of two, the same tree all the same.
def check_odd():
    for ranks, each in ((6, 3), (6, 2), (5, 1)):
        common = ["--steps", 3, "--micro-batches", ranks, "--ranks", ranks]
        for zero in (0, 3):
            one = train("mlp", *common, "--zero", zero)
            report = train("mlp", *common, "--zero", zero, "--ranks-per-process", each)
            check(result(report) == result(one), "%d ranks, %d a process, stage %d: other bits than one process" % (ranks, each, zero))


# What reads whole values: checkpoints, evaluation, dumps, norms of single parameters, a skipped step's name.
def check_reading(tmp):
    part = ["--micro-batches", 8, "--lr", "0.003", "--bucket-bytes", 8192]
    whole = train("mlp", *part, "--steps", 6)
    saved = os.path.join(tmp, "saved")
    train("mlp", *part, "--steps", 3, *split(4, 2), "--zero", 3, "--save", saved)
    for layout in ([], split(2, 1) + ["--zero", 1], split(8, 2) + ["--zero", 3], ["--ranks", 2, "--zero", 2]):
        report = train("mlp", *part, "--steps", 3, *layout, "--resume", saved)
        check(report.get("params_hash") == whole["params_hash"], "resumed with %s: %s" % (layout, report.get("params_hash")))
    evals, dumps = [], []
    for layout in (["--ranks", 4], split(4, 2), split(4, 1)):
        path = os.path.join(tmp, "grads.safetensors")
        report = train("mlp", *part, "--steps", 4, *layout, "--zero", 3, "--eval-data", "random", "--eval-steps", 1, "--eval-every", 2, "--dump-grads", path, "--param-norms")
        evals.append((report.get("evaluations"), report.get("param_norms")))
        dumps.append(open(path, "rb").read())
    check(evals[0][0] and evals.count(evals[0]) == 3, "evaluations: %s" % evals)
    check(dumps.count(dumps[0]) == 3, "dumped gradients differ")
    said = []
    for layout in (["--ranks", 4], split(4, 2)):
        report = train("mlp", "--steps", 3, "--precision", "fp16", *layout, "--zero", 2, "--inject-inf", "3:1")
        said.append([line for line in report["stderr"].splitlines() if "not finite" in line or "skipped" in line])
    check(said[0] and said[0] == said[1], "a skipped step: %s" % said)


def check_refusals(tmp):
    for layout, words in ((split(4, 3), "divisor of 4"), (["--ranks-per-process", 2], "divisor of 1")):
        p = tessera("run", *train_arguments(), *layout)
        check(p.returncode == 2 and words in p.stderr, "%s: exit %d: %s" % (layout, p.returncode, p.stderr))
    p = tessera("run", *train_arguments(), "--backend", "mpi", env={k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI", "SLURM_"))})
    check(p.returncode == 2 and "mpirun -n 2" in p.stderr, "--backend mpi alone: exit %d: %s" % (p.returncode, p.stderr))


def train_arguments():
    from e2e import inputs, model
    return [model("mlp"), "--data", inputs("mlp"), "--steps", 2]


def check_failure():
    """A rank of another process fails: it is named, with the step, and the run ends."""
    report = train("mlp", "--steps", 5, *split(4, 2), "--zero", 3, "--fault", "3:2", expect=6)
    error = report.get("error") or {}
    check(error.get("rank") == 3 and "step 2" in error.get("what", "") and "--fault" in error.get("what", ""), "failure of rank 3: %s" % error)


def main():
    for precision, ahead in (("f32", []), ("bf16", ["--prefetch", 2])):
        check_bits("mlp", precision, ahead)
    if not sanitized():
        check_bits("gpt_merged", "f32", ["--prefetch", 1])
    check_odd()
    with tempfile.TemporaryDirectory() as tmp:
        check_reading(tmp)
        check_refusals(tmp)
    check_failure()
    finish()


main()
