#!/usr/bin/env python3
"""Several runs that save at one place: at any time a whole checkpoint of one of them stands there, the last one stays, nothing is left beside it; what
a killed run left is removed by the next one, what a living one writes is not.

    test_save_race.py TESSERA
"""
import fcntl
import json
import os
import subprocess
import tempfile

from e2e import TESSERA, check, finish, inputs, model, tessera, train

RUNS = 3


def check_race(tmp, existing):
    place = os.path.join(tmp, "ck")
    wanted = {}
    for seed in range(RUNS):
        wanted[seed] = train("mlp", "--steps", 20, "--seed", seed, "--lr", 0.001 * (seed + 1))["params_hash"]
    if existing:
        train("mlp", "--steps", 1, "--save", place)
    reports = [os.path.join(tmp, "report%d.json" % seed) for seed in range(RUNS)]
    running = [subprocess.Popen([TESSERA, "run", model("mlp"), "--data", inputs("mlp"), "--no-shuffle", "--steps", "20", "--seed", str(seed), "--lr", str(0.001 * (seed + 1)),
                                 "--save", place, "--save-every", "1", "--report", reports[seed]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
               for seed in range(RUNS)]
    reads = missing = 0
    while any(p.poll() is None for p in running):
        if not os.path.exists(place):
            missing += existing or reads > 0
            continue
        p = tessera("export", place, "-o", os.path.join(tmp, "w.safetensors"))
        check(p.returncode == 0, "read while others save: exit %d %s" % (p.returncode, p.stderr))
        reads += 1
    check(not missing, "no checkpoint stood there %d times" % missing)
    for seed, p in enumerate(running):
        said = p.communicate()[1]
        check(p.returncode == 0, "run %d: exit %d %s" % (seed, p.returncode, said))
        check(json.load(open(reports[seed]))["params_hash"] == wanted[seed], "run %d has other parameters than alone" % seed)
    meta = json.load(open(os.path.join(place, "meta.json")))
    check(meta["step"] == 20, "the last one is of step %d" % meta["step"])
    r = train("mlp", "--resume", place, "--steps", 0)
    check(r["params_hash"] == wanted[meta["seed"]], "the checkpoint is not that of run %d, which its meta.json names" % meta["seed"])
    left = [f for f in os.listdir(tmp) if f.startswith("ck") and f != "ck"]
    check(not left, "left beside it: %s" % left)


def check_stale(tmp):
    place = os.path.join(tmp, "stale")
    names = {"dead": place + ".tmp.dEad00", "alive": place + ".tmp.aLive0", "other": place + ".tmp.notours"}
    for folder in names.values():
        os.mkdir(folder)
        for f in ("params.safetensors.tmp.ab12CD", "meta.json"):
            open(os.path.join(folder, f), "w").close()
    lock = os.open(names["alive"], os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    train("mlp", "--steps", 1, "--save", place)
    check(not os.path.exists(names["dead"]), "what a killed run left is still there")
    check(len(os.listdir(names["alive"])) == 2, "what another run writes was removed")
    check(len(os.listdir(names["other"])) == 2, "a folder of another name was touched")


def main():
    with tempfile.TemporaryDirectory() as tmp:
        check_race(tmp, False)
    with tempfile.TemporaryDirectory() as tmp:
        check_race(tmp, True)
        check_stale(tmp)
    finish()


if __name__ == "__main__":
    main()
