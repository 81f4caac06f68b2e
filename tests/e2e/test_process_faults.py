#!/usr/bin/env python3
"""Runs of two processes under mpirun, one of which dies, stops or fails: the job ends in time with exit code 6, says which ranks and step, and leaves no process.

    test_process_faults.py TESSERA [--rounds N]     N of each (default 1), with the times at the end
"""
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from e2e import TESSERA, check, finish, inputs, model, sanitized, tessera

ROUNDS = int(sys.argv[sys.argv.index("--rounds") + 1]) if "--rounds" in sys.argv else 1
DEADLINE_S, LIMIT_S = 2, 30
MPI = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")


def stat(pid):
    """(parent, state, start time) of a process; None: it is gone."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return int(fields[1]), fields[0], fields[19]
    except OSError:
        return None


def descendants(root):
    """Of a process that this test has started: pid -> start time. Nothing else is ever signalled."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            s = stat(int(name))
            if s:
                parents[int(name)] = s
    found, more = {}, [root]
    while more:
        at = more.pop()
        for pid, s in parents.items():
            if s[0] == at and pid not in found:
                found[pid] = s[2]
                more.append(pid)
    return found


def rank_of(pid):
    try:
        environment = open("/proc/%d/environ" % pid, "rb").read().split(b"\0")
        return next((int(e.split(b"=")[1]) for e in environment if e.startswith((b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK="))), None)
    except OSError:
        return None


def pair_of(job, process):
    """(supervisor, worker) of a process of the job."""
    mine = [pid for pid in descendants(job) if rank_of(pid) == process and b"tessera" in open("/proc/%d/cmdline" % pid, "rb").read()]
    workers = [pid for pid in mine if stat(pid) and stat(pid)[0] in mine]
    return (stat(workers[0])[0], workers[0]) if workers else None


class Job:
    def __init__(self, tmp, *more):
        self.out, self.err = open(os.path.join(tmp, "out"), "w+"), open(os.path.join(tmp, "err"), "w+")
        self.process = subprocess.Popen(["mpirun", "-n", "2", TESSERA, "run", model("mlp"), "--data", inputs("mlp"), "--no-shuffle", "--steps", "1000000", "--micro-batches", "8",
                                         "--ranks", "4", "--zero", "3", "--deadline", str(DEADLINE_S), "--hang", "8", *more],
                                        stdout=self.out, stderr=self.err, stdin=subprocess.DEVNULL, env=MPI, start_new_session=True)

    def trains(self):
        end = time.time() + LIMIT_S
        while time.time() < end and self.process.poll() is None:
            self.out.flush()
            if os.fstat(self.out.fileno()).st_size > 2000 and pair_of(self.process.pid, 1):
                return True
            time.sleep(0.02)
        return False

    def ends(self):
        """(exit code or None when it had to be ended by force, what it said)."""
        try:
            code = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
            for pid in descendants(self.process.pid):
                os.kill(pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()
        self.err.seek(0)
        return code, self.err.read()


def left_of(known):
    """Of the processes that were there, those that still are."""
    end = time.time() + 5
    while True:
        left = [pid for pid, start in known.items() if (s := stat(pid)) and s[2] == start and s[1] != "Z"]
        if not left or time.time() > end:
            return left
        time.sleep(0.02)


def fault(name, hit, words, codes=(6,)):
    with tempfile.TemporaryDirectory() as tmp:
        job = Job(tmp)
        if not check(job.trains(), "%s: the job does not train: %s" % (name, job.ends()[1] if job.process.poll() is not None else "")):
            job.process.kill()
            return None
        known = descendants(job.process.pid)
        supervisor, worker = pair_of(job.process.pid, 1)
        begin = time.time()
        hit(supervisor, worker)
        code, said = job.ends()
        took = time.time() - begin
        check(code in codes, "%s: exit %s: %s" % (name, code, said[-600:]))
        check(all(re.search(w, said) for w in words), "%s: it says %s, wanted %s" % (name, said[-900:], words))
        left = left_of(known)
        check(not left, "%s: processes left: %s" % (name, left))
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return took


def failing_rank():
    with tempfile.TemporaryDirectory() as tmp:
        begin = time.time()
        code, said = Job(tmp, "--fault", "3:5").ends()
        check(code == 6 and re.search(r"step 5: (AllGather: stopped because rank 3 failed: )?the failure that --fault asked for", said), "a failing rank: exit %s: %s" % (code, said[-600:]))
        return time.time() - begin


def stop_signal():
    """SIGTERM to one process: all end after the same step, and the checkpoint is whole."""
    with tempfile.TemporaryDirectory() as tmp:
        saved = os.path.join(tmp, "saved")
        job = Job(tmp, "--save", saved)
        if not check(job.trains(), "a stop signal: the job does not train"):
            job.process.kill()
            return
        os.kill(pair_of(job.process.pid, 1)[0], signal.SIGTERM)
        code, said = job.ends()
        done = re.search(r"stopped after (\d+) steps, since another process was", said)
        p = tessera("export", saved, "-o", os.path.join(tmp, "w.safetensors"))
        check(code == 1 and done and p.returncode == 0, "a stop signal: exit %s: %s %s" % (code, said[-600:], p.stderr))


KINDS = {
    "a killed worker": (lambda s, w: os.kill(w, signal.SIGKILL), [r"of ranks 2 to 3 was ended by signal 9 \(Killed\) after step \d+"]),
    "a stopped worker": (lambda s, w: os.kill(w, signal.SIGSTOP), [r"no answer from process 1 \(ranks 2 to 3\)", r"step \d+"]),
    "a stopped process": (lambda s, w: (os.kill(s, signal.SIGSTOP), os.kill(w, signal.SIGSTOP)), [r"no answer from process 1 \(ranks 2 to 3\)", r"step \d+"]),
    # The process that mpirun started itself: mpirun says so, with an exit code of its own.
    "a killed supervisor": (lambda s, w: os.kill(s, signal.SIGKILL), [r"rank 1 .*signal 9|ranks 2 to 3"], (6, 137)),
}


def main():
    if not shutil.which("mpirun") or sanitized():
        print("needs mpirun (openmpi-bin), and no sanitizer, which finds fault with the MPI library")
        sys.exit(77)
    times = {}
    for _ in range(ROUNDS):
        for name, kind in KINDS.items():
            times.setdefault(name, []).append(fault(name, *kind))
        times.setdefault("a failing rank (whole job)", []).append(failing_rank())
    stop_signal()
    for name, took in times.items():
        took = [t for t in took if t is not None]
        if took:
            print("%-28s %3d times, to the end: median %.2f s, most %.2f s" % (name, len(took), statistics.median(took), max(took)))
    finish()


main()
