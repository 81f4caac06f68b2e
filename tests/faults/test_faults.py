#!/usr/bin/env python3
"""N-th failure loops: call number 1, 2, 3, ... of a kind fails (once, and once and for ever after), until a run meets no failure.

    test_faults.py TESSERA [--full]        TESSERA_FAULTS names the program with the injection layer; default: beside TESSERA, tests/tessera_faults

Each time: a documented exit code, an error that says something, no crash and no finding of a sanitizer; under a name that existed stands the old
file or the new one, whole; nothing else is left. Without --full a spread of the numbers, to stay under a minute.
"""
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

ARGUMENTS = [a for a in sys.argv[1:] if not a.startswith("--")]
FULL = "--full" in sys.argv
TESSERA = os.path.abspath(ARGUMENTS[0])
FAULTS = os.environ.get("TESSERA_FAULTS") or os.path.join(os.path.dirname(TESSERA), "tests", "tessera_faults")
HERE = os.path.dirname(os.path.abspath(__file__))
MLP = os.path.join(HERE, "..", "models", "mlp")
KINDS = ["alloc", "open", "read", "write", "fsync", "rename", "map", "thread"]
PICKS = 10                    # numbers of a kind and case that are tried without --full
CODES = {5: "I/O", 7: "resources"}
SANITIZERS = {"ASAN_OPTIONS": "exitcode=97:detect_leaks=1:allocator_may_return_null=1", "UBSAN_OPTIONS": "halt_on_error=1:exitcode=97", "LSAN_OPTIONS": "exitcode=97"}
failures, runs = [], 0


def fail(what):
    failures.append(what)
    print("FAIL", what, flush=True)


def tessera(*arguments, fault=None, log=None, program=FAULTS):
    environment = dict(os.environ, **SANITIZERS)
    if fault:
        environment.update(TESSERA_FAULT=fault, TESSERA_FAULT_LOG=log)
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=120, env=environment, errors="replace")


def digest(path):
    h = hashlib.sha256()
    if os.path.isdir(path):
        for name in sorted(os.listdir(path)):
            h.update(name.encode() + open(os.path.join(path, name), "rb").read())
    else:
        h.update(open(path, "rb").read())
    return h.hexdigest()


class Case:
    """A command that writes `out` (in a folder of its own); `old` is what stood there before."""

    def __init__(self, name, command, old, whole, kinds=KINDS):
        self.name, self.command, self.old, self.whole, self.kinds = name, command, old, whole, kinds
        self.out = "out.onnx" if whole in (whole_model, whole_plan) else "out"

    def run(self, work, fault):
        """Runs once; returns (failures injected, calls counted)."""
        global runs
        runs += 1
        shutil.rmtree(work, ignore_errors=True)
        os.mkdir(work)
        out, log = os.path.join(work, self.out), os.path.join(os.path.dirname(work), "log")
        if os.path.exists(log):
            os.remove(log)
        (shutil.copytree if os.path.isdir(self.old) else shutil.copy)(self.old, out)
        p = tessera(*[out if a == "OUT" else work if a == "DIR" else a for a in self.command], fault=fault, log=log)
        lines = open(log).read().split("\n") if os.path.exists(log) else []
        hits, calls = lines.count("hit"), max([int(x.split()[1]) for x in lines if x.startswith("calls")] or [0])
        bad = self.judge(p, hits, out, work)
        for what in bad:
            fail("%s, %s: %s" % (self.name, fault, what))
        return hits, calls

    def judge(self, p, hits, out, work):
        bad = []
        said = p.stderr.strip().splitlines()
        if "Sanitizer" in p.stderr or "runtime error:" in p.stderr:
            bad.append("sanitizer: " + p.stderr[-3000:])
        elif "ended by signal" in p.stderr or p.returncode < 0:
            bad.append("crashed: " + p.stderr[-500:])
        elif p.returncode and not hits:
            bad.append("exit %d without a failure: %s" % (p.returncode, p.stderr[-300:]))
        elif p.returncode and p.returncode not in CODES:
            bad.append("exit %d, wanted one of %s: %s" % (p.returncode, sorted(CODES), said[-1:]))
        elif p.returncode and not any(x.startswith("tessera: error: ") and len(x) > 24 for x in said):
            bad.append("exit %d and no error said: %r" % (p.returncode, p.stderr[-300:]))
        left = sorted(os.listdir(work))
        if left != [self.out]:
            bad.append("left behind: %s" % left)
        if self.out in left:
            same = digest(out) == digest(self.old)
            if same and p.returncode == 0:
                bad.append("exit 0, and the old file stands there")
            elif not same and not self.whole(out):
                bad.append("neither the old one nor a whole new one stands there")
        return bad

    def loop(self, work, kind, ever):
        suffix = ":ever" if ever else ""
        hits, calls = self.run(work, "%s:%d" % (kind, 1 << 40))
        if hits:
            fail("%s: call 2^40 was made" % self.name)
        if FULL:
            n, hits = 0, 1
            while hits:
                n += 1
                hits, _ = self.run(work, "%s:%d%s" % (kind, n, suffix))
            return n - 1
        picks = sorted({1 + (calls - 1) * i // (PICKS - 1) for i in range(PICKS)}) if calls else []
        for n in picks:
            self.run(work, "%s:%d%s" % (kind, n, suffix))
        return len(picks)


def whole_checkpoint(path):
    with tempfile.TemporaryDirectory() as tmp:
        return tessera("export", path, "-o", os.path.join(tmp, "w.safetensors"), program=TESSERA).returncode == 0


def whole_model(path):
    return tessera("show", path, program=TESSERA).returncode == 0


def whole_plan(path):
    return tessera("verify", path, program=TESSERA).returncode == 0


def whole_report(path):
    try:
        return "losses" in json.load(open(path))
    except ValueError:
        return False


def check_reader(log, command):
    """A command that writes no file: without memory it says so, and judges nothing wrong."""
    global runs
    n, hit = 0, True
    while hit:
        n += 1
        runs += 1
        if os.path.exists(log):
            os.remove(log)
        p = tessera(*command, fault="alloc:%d" % n, log=log)
        hit = "hit" in open(log).read()
        said = "error: " in p.stderr or "problems\n" in p.stdout
        if p.returncode not in (0, 7) or (p.returncode and not said) or "Sanitizer" in p.stderr:
            fail("%s, alloc:%d: exit %d %s" % (command[0], n, p.returncode, (p.stdout + p.stderr)[-500:]))
    print("%-8s %-7s %d" % (command[0], "alloc", n - 1), flush=True)


def check_swap(work, log, engine):
    """The swap file: every call that fails ends the command with an error, and nothing is left in its folder."""
    global runs
    command = ["bench", "io", "--swap-dir", work, "--io-engine", engine, "--io-size", "128KiB", "--io-request", "64KiB", "--io-block", "16KiB", "--io-depth", "2",
               "--io-rounds", "1", "--ranks", "2"]
    shutil.rmtree(work, ignore_errors=True)
    os.mkdir(work)
    p = tessera(*command, program=TESSERA)
    if p.returncode == 4:
        print("%-8s %-7s left out: %s" % ("swap", engine, p.stderr.strip()), flush=True)
        return
    for kind, code, said in (("alloc", 7, "memory"), ("open", 5, "cannot make"), ("read", 5, "cannot read"), ("write", 5, "No space left"), ("map", 7, "no memory"), ("thread", 7, "no thread")):
        n, hit = 0, True
        while hit:
            n += 1
            runs += 1
            if os.path.exists(log):
                os.remove(log)
            p = tessera(*command, fault="%s:%d" % (kind, n), log=log)
            hit = "hit" in open(log).read()
            if p.returncode != (code if hit else 0) or (hit and (said not in p.stderr or not p.stderr.startswith("tessera: error: "))) or os.listdir(work):
                fail("swap %s, %s:%d: exit %d, %s; left %s" % (engine, kind, n, p.returncode, p.stderr[-500:], os.listdir(work)))
        print("%-8s %-7s %s %d" % ("swap", kind, engine, n - 1), flush=True)


def check_history(work, model, data):
    """The step loop allocates for the losses only, after step 1 and step 1025: when that fails, the run ends with an error and keeps what it did."""
    columns = 7                                         # of History in tools/run.c, that grow one after the other
    steps, saved, report, log = 1025, os.path.join(work, "ck"), os.path.join(work, "report"), os.path.join(work, "log")
    command = ["run", model, "--data", data, "--steps", steps, "--save", saved, "--report", report, "--log", os.devnull]
    shutil.rmtree(work, ignore_errors=True)
    os.mkdir(work)

    def run(fault):
        global runs
        runs += 1
        for path in (report, log):
            if os.path.exists(path):
                os.remove(path)
        shutil.rmtree(saved, ignore_errors=True)
        p = tessera(*command, fault=fault, log=log)
        return p, max(int(x.split()[1]) for x in open(log) if x.startswith("calls"))

    _, calls = run("alloc:%d" % (1 << 40))
    met = 0
    for n in range(calls, 0, -1):                       # from the end: what saving allocates comes after the last step
        p, _ = run("alloc:%d" % n)
        losses = json.load(open(report))["losses"] if os.path.exists(report) else []
        if p.returncode == 0 and len(losses) != steps:
            fail("alloc:%d: exit 0 after %d of %d steps" % (n, len(losses), steps))
        if "no memory for the losses" not in p.stderr:
            if met:
                break
            continue
        met += 1
        step = json.load(open(os.path.join(saved, "meta.json")))["step"] if os.path.exists(saved) else None
        wanted = steps if met <= columns else 1
        if (p.returncode, step, len(losses)) != (7, wanted, wanted - 1):
            fail("alloc:%d: exit %d, a checkpoint of step %s, %d losses" % (n, p.returncode, step, len(losses)))
    if met != 2 * columns:
        fail("%d allocations for the losses failed, wanted twice %d" % (met, columns))
    print("%-8s %-7s %d" % ("history", "alloc", met), flush=True)


def main():
    if not os.path.exists(FAULTS):
        print("no %s: it is not built here" % FAULTS)
        sys.exit(77)
    with tempfile.TemporaryDirectory() as tmp:
        model, data = os.path.join(MLP, "model.onnx"), os.path.join(MLP, "inputs.safetensors")
        train = ["run", model, "--data", data, "--no-shuffle", "--ranks", 2, "--zero", 3, "--optimizer", "sgd"]
        queues = ["--prefetch", 2, "--bucket-bytes", 4096]             # collectives on a thread of their own on each rank
        old = {name: os.path.join(tmp, name) for name in ("checkpoint", "model", "plan", "report", "queues")}
        for command in ([*train, "--steps", 1, "--save", old["checkpoint"], "--report", old["report"]], ["export", old["checkpoint"], "-o", old["model"] + ".onnx"],
                        ["compile", model, "-o", old["plan"], "--ranks", 4], ["compile", model, "-o", old["queues"], "--ranks", 2, "--zero", 3, *queues]):
            p = tessera(*command, program=TESSERA)
            assert p.returncode == 0, p.stderr
        os.rename(old["model"] + ".onnx", old["model"])
        newer = os.path.join(tmp, "newer")
        p = tessera(*train, "--steps", 2, "--save", newer, program=TESSERA)
        assert p.returncode == 0, p.stderr
        cases = [
            Case("save", [*train, "--steps", 2, "--save", "OUT"], old["checkpoint"], whole_checkpoint),
            Case("resume", [*train, "--steps", 1, "--resume", newer, "--save", "OUT"], old["checkpoint"], whole_checkpoint),
            Case("queues", [*train, *queues, "--steps", 2, "--save", "OUT"], old["checkpoint"], whole_checkpoint, ["alloc", "map", "thread"]),
            Case("offload", [*train, "--offload", "optimizer=nvme", "--swap-dir", "DIR", "--io-depth", 2, "--steps", 2, "--save", "OUT"], old["checkpoint"], whole_checkpoint,
                 ["alloc", "open", "read", "write", "map", "thread"]),
            Case("report", [*train, "--steps", 2, "--report", "OUT"], old["report"], whole_report),
            Case("export", ["export", newer, "-o", "OUT"], old["model"], whole_model),
            Case("compile", ["compile", model, "-o", "OUT", "--ranks", 2], old["plan"], whole_plan),
        ]
        for case in cases:
            for kind in case.kinds:
                counts = [case.loop(os.path.join(tmp, "work"), kind, ever) for ever in ((False, True) if FULL else (False,))]
                print("%-8s %-7s %s" % (case.name, kind, " + ".join("%d" % c for c in counts)), flush=True)
        deepspeed = os.path.join(tmp, "ds_config.json")
        with open(deepspeed, "w") as f:
            json.dump({"train_batch_size": 64, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.1}},
                       "zero_optimization": {"stage": 2, "contiguous_gradients": True}}, f)
        for command in (["verify", old["plan"]], ["verify", old["queues"]], ["show", model], ["show", old["plan"], "--json"], ["config", "--config", deepspeed, "--json"]):
            check_reader(os.path.join(tmp, "log"), command)
        for engine in ("uring", "threads"):
            check_swap(os.path.join(tmp, "work"), os.path.join(tmp, "log"), engine)
        check_history(os.path.join(tmp, "work"), model, data)
    print("%d runs, %d failed" % (runs, len(failures)))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
