#!/usr/bin/env python3
"""Runs with state in tier NVME that end badly: no space, a file that somebody cuts, calls that fail, killed processes. They say what failed and where, all
ranks stop, nothing is left on the disk, and the last checkpoint goes on with the bits of a run that nothing happened to.

    test_swap.py TESSERA
"""
import json
import os
import resource
import signal
import subprocess
import tempfile
import time

from e2e import TESSERA, check, finish, inputs, model, sanitized, tessera

MORE = 3                                        # steps after the checkpoint
FAULTS = os.path.join(os.path.dirname(TESSERA), "tests", "tessera_faults")
PLAIN = ["run", model("mlp"), "--data", inputs("mlp"), "--no-shuffle", "--ranks", "2", "--zero", "2", "--log", os.devnull]


class Place:
    """A folder with the swap folder, the checkpoint and the report of a run in it."""

    def __init__(self, tmp, name):
        self.root = os.path.join(tmp, name)
        self.swap, self.saved, self.report = (os.path.join(self.root, n) for n in ("swap", "saved", "report.json"))
        os.makedirs(self.swap)
        self.offload = ["--offload", "optimizer=nvme", "--swap-dir", self.swap]

    def read(self):
        with open(self.report) as f:
            return json.load(f)

    def check_left(self, what):
        check(os.listdir(self.swap) == [], "%s: left in the swap folder: %s" % (what, os.listdir(self.swap)))
        check(sorted(os.listdir(self.root)) in (["report.json", "saved", "swap"], ["saved", "swap"]), "%s: left: %s" % (what, os.listdir(self.root)))

    def step(self):
        with open(os.path.join(self.saved, "meta.json")) as f:
            return json.load(f)["step"]


def trained(place, *options):
    """The hash of the parameters after a run that must succeed."""
    p = tessera(*PLAIN, "--report", place.report, *options)
    if not check(p.returncode == 0, "run %s: exit %d %s" % (options, p.returncode, p.stderr)):
        finish()
    return place.read()


def check_goes_on(tmp, place, what):
    """Resumed, with offload and without, the parameters are those of a run without offload and without a break."""
    steps = place.step()
    whole = trained(Place(tmp, what + " whole"), "--steps", steps + MORE)["params_hash"]
    for options in (place.offload, []):
        got = trained(place, "--resume", place.saved, "--steps", MORE, *options)["params_hash"]
        check(got == whole, "%s: %s after step %d, with %s, wanted %s" % (what, got, steps, options, whole))


def start(place):
    """A run without end that has saved a checkpoint; (process, pid of its worker)."""
    p = subprocess.Popen([TESSERA, *PLAIN, *place.offload, "--steps", "1000000", "--save", place.saved, "--save-every", "2", "--report", place.report], stderr=subprocess.PIPE, text=True)
    began = time.time()
    while not os.path.exists(place.saved) and p.poll() is None and time.time() - began < 60:
        time.sleep(0.005)
    if not check(os.path.exists(place.saved), "no checkpoint after %.0f s: %s" % (time.time() - began, p.poll())):
        p.kill()
        finish()
    with open("/proc/%d/task/%d/children" % (p.pid, p.pid)) as f:
        return p, int(f.read().split()[0])


def swap_of(worker, place):
    """Path to the worker's swap file, which has no name."""
    for fd in os.listdir("/proc/%d/fd" % worker):
        path = "/proc/%d/fd/%s" % (worker, fd)
        try:
            target = os.readlink(path)
        except OSError:
            continue
        if target.startswith(place.swap + "/"):
            check(target.endswith("(deleted)"), "the swap file has a name: %s" % target)
            return path
    check(False, "the worker has no swap file open")
    finish()


def check_cut(tmp):
    place = Place(tmp, "cut")
    p, worker = start(place)
    os.truncate(swap_of(worker, place), 0)
    said = p.communicate(timeout=60)[1]
    check(p.returncode == 5 and "somebody has cut" in said and place.swap in said, "a file cut short: exit %d, %s" % (p.returncode, said))
    error = place.read()["error"]
    step = error["node"] and error["rank"] in (0, 1) and ("Fetch" in error["what"] or "Offload" in error["what"])
    check(error["code"] == 5 and (step or "reading 'bucket." in error["what"]), "a file cut short: %s" % error)       # or while it was saved
    place.check_left("cut")
    check_goes_on(tmp, place, "cut")


def check_killed(tmp, victim):
    place = Place(tmp, victim)
    p, worker = start(place)
    os.kill(worker if victim == "worker" else p.pid, signal.SIGKILL)
    p.communicate(timeout=60)
    check(p.returncode == (6 if victim == "worker" else -signal.SIGKILL), "killed %s: exit %d" % (victim, p.returncode))
    began = time.time()
    while os.path.exists("/proc/%d" % worker) and time.time() - began < 20:
        time.sleep(0.01)
    temporary = [n for n in os.listdir(place.root) if n.startswith("saved.tmp.")]             # of a save under way: the next one removes it
    check(os.listdir(place.swap) == [] and set(os.listdir(place.root)) <= {"saved", "swap", "report.json", *temporary}, "killed %s: left %s" % (victim, os.listdir(place.root)))
    check_goes_on(tmp, place, victim)


def check_failing(tmp, engine):
    """A read (EIO) or a write (no space) that fails somewhere in the run. Some of these calls are others': of the report, of what the system says."""
    if not os.path.exists(FAULTS):
        return
    place = Place(tmp, "failing " + engine)
    command = [FAULTS, *PLAIN, *place.offload, "--io-engine", engine, "--steps", "12"]
    log = os.path.join(tmp, "log")
    for kind, said in (("read", "cannot read"), ("write", "No space left")):
        environment = dict(os.environ, TESSERA_FAULT="%s:%d" % (kind, 1 << 40), TESSERA_FAULT_LOG=log)
        open(log, "w").close()
        p = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
        if p.returncode == 4 and engine == "uring":
            print("uring is left out: " + p.stderr.strip())
            return
        calls = max(int(x.split()[1]) for x in open(log) if x.startswith("calls"))
        named = 0
        for n in range(calls // 8, calls, max(1, calls // 8)):          # of a run without a report, which takes more calls than all steps
            environment["TESSERA_FAULT"] = "%s:%d" % (kind, n)
            p = subprocess.run([*command, "--report", place.report], capture_output=True, text=True, env=environment, timeout=120)
            error = place.read()["error"] if os.path.exists(place.report) else None
            if error and error["node"] and p.returncode == 5 and ("Fetch: " in error["what"] or "Offload: " in error["what"]):
                check(said in error["what"] and "offset" in error["what"] and "swap file" in error["what"] and error["rank"] in (0, 1), "%s, %s:%d: %s" % (engine, kind, n, error))
                named += 1
            check(os.listdir(place.swap) == [], "%s, %s:%d: left %s" % (engine, kind, n, os.listdir(place.swap)))
            if os.path.exists(place.report):
                os.remove(place.report)
        check(named >= 3, "%s: %d failing %ss met the swap file in the middle of a run" % (engine, named, kind))


def check_no_space(tmp):
    place = Place(tmp, "no space")
    before = trained(place, "--steps", 2, "--save", place.saved)
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16384, resource.RLIM_INFINITY))
    p = tessera(*PLAIN, *place.offload, "--resume", place.saved, "--steps", 1, preexec_fn=limit)
    check(p.returncode == 5 and "RLIMIT_FSIZE" in p.stderr, "files limited: exit %d, %s" % (p.returncode, p.stderr))
    place.check_left("files limited")
    script = 'mount -t tmpfs -o size=16k none "$1" && shift && "$@" && exit 99; code=$?; exit $code'
    p = subprocess.run(["unshare", "-rm", "sh", "-c", script, "sh", place.swap, TESSERA, *PLAIN, *place.offload, "--resume", place.saved, "--steps", "1"], capture_output=True, text=True)
    if "tessera:" not in p.stderr:
        print("no small file system can be made here: " + p.stderr.strip())
    else:
        check(p.returncode == 5 and "cannot reserve" in p.stderr and "16384 bytes" in p.stderr and "No space left" in p.stderr, "small disk: exit %d, %s" % (p.returncode, p.stderr))
        place.check_left("small disk")
    check(before["params_hash"] == trained(place, "--resume", place.saved, "--steps", 1, "--lr", 0, "--weight-decay", 0)["params_hash"], "the checkpoint is not what it was")


def check_plain(tmp):
    """Each engine gives the same bits, and the report says what was used."""
    want = trained(Place(tmp, "memory"), "--steps", 5)["params_hash"]
    for engine, direct in (("auto", "auto"), ("threads", "auto"), ("auto", "off")):
        place = Place(tmp, "%s %s" % (engine, direct))
        r = trained(place, "--steps", 5, *place.offload, "--io-engine", engine, "--io-direct", direct, "--io-block", 4096, "--io-depth", 3)
        check(r["params_hash"] == want, "%s, %s: other bits than in memory" % (engine, direct))
        swap, nvme = r["swap"], r["peak_bytes"]["nvme"]
        check(swap["depth"] == 3 and swap["block_bytes"] == 4096 and swap["bytes"] == nvme["planned"] == nvme["measured"] > 0, "%s: %s, %s" % (engine, swap, nvme))
        check(engine == "auto" or swap["engine"] == engine, "%s: %s" % (engine, swap))
        check(direct == "auto" or swap["direct"] is False, "%s: %s" % (direct, swap))
        place_left = os.listdir(place.swap)
        check(place_left == [], "left: %s" % place_left)
    check("swap" not in trained(Place(tmp, "none"), "--steps", 1), "a swap file where nothing is offloaded")


def main():
    with tempfile.TemporaryDirectory() as tmp:
        tmp = os.path.realpath(tmp)
        check_plain(tmp)
        check_no_space(tmp)
        check_cut(tmp)
        for victim in ("worker", "supervisor"):
            check_killed(tmp, victim)
        if not sanitized():
            for engine in ("uring", "threads"):
                check_failing(tmp, engine)
    finish()


if __name__ == "__main__":
    main()
