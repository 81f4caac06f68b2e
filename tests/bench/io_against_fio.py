#!/usr/bin/env python3
"""The swap file's engine beside fio, taking turns in one run: same folder, size, block, requests in flight.

    io_against_fio.py TESSERA [--dir DIR] [--size MIB] [--block KIB] [--depth N] [--rounds N] [--engine uring|threads] [--ranks N]

Each round: write, read, mixed by tessera bench io, then the same by fio (--rw=write, read, rw), each from its own file laid out before. Prints the median
and the best of the rounds. Mixed: tessera reads and writes back windows in turn, as the update of offloaded state does; fio reads and writes half and half.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

KINDS = {"write": "write", "read": "read", "mixed": "rw"}


def tessera(a):
    p = subprocess.run([a.tessera, "bench", "io", "--json", "--swap-dir", a.dir, "--io-size", "%dMiB" % a.size, "--io-block", "%dKiB" % a.block, "--io-depth", str(a.depth),
                        "--io-engine", a.engine, "--io-rounds", "1", "--ranks", str(a.ranks)], capture_output=True, text=True, check=True)
    found = json.loads(p.stdout)
    return found, {k: found[k]["bytes_per_s"] / 1e6 for k in KINDS}


def fio(a, folder):
    rates = {}
    for kind, rw in KINDS.items():
        command = ["fio", "--name=x", "--directory=" + folder, "--filename=fio", "--rw=" + rw, "--size=%dM" % (a.size // a.ranks), "--bs=%dk" % a.block, "--iodepth=%d" % a.depth, "--direct=1",
                   "--ioengine=" + ("io_uring" if a.engine == "uring" else "psync"), "--output-format=json", "--group_reporting", "--overwrite=1"]
        if a.engine != "uring":
            command += ["--numjobs=%d" % (a.depth * a.ranks), "--size=%dM" % (a.size // a.depth // a.ranks), "--offset_increment=%dM" % (a.size // a.depth // a.ranks)]
        elif a.ranks > 1:
            command += ["--numjobs=%d" % a.ranks, "--offset_increment=%dM" % (a.size // a.ranks)]
        job = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["jobs"][0]
        rates[kind] = (job["read"]["io_bytes"] + job["write"]["io_bytes"]) / (max(job["read"]["runtime"], job["write"]["runtime"]) / 1e3) / 1e6
    return rates


def main():
    p = argparse.ArgumentParser()
    p.add_argument("tessera")
    p.add_argument("--dir", default=".")
    for name, value in (("size", 1024), ("block", 1024), ("depth", 16), ("rounds", 5), ("ranks", 1)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--engine", choices=["uring", "threads"], default="uring")
    a = p.parse_args()
    rates = {"tessera": [], "fio": []}
    with tempfile.TemporaryDirectory(dir=a.dir) as folder:
        fio(a, folder)                                              # lays its file out
        for _ in range(a.rounds):
            found, mine = tessera(a)
            rates["tessera"].append(mine)
            rates["fio"].append(fio(a, folder))
    print("%s, %s, %d MiB, blocks of %d KiB, %d in flight, %d ranks, %d rounds; MB/s" % (found["engine"], "direct" if found["direct"] else "page cache: " + found["direct_note"], a.size, a.block,
                                                                                       a.depth, a.ranks, a.rounds))
    print("%-6s %10s %10s %8s   %10s %10s %8s" % ("", "tessera", "fio", "median", "tessera", "fio", "best"))
    for k in KINDS:
        mine, its = ([r[k] for r in rates[who]] for who in ("tessera", "fio"))
        line = []
        for f in (statistics.median, max):
            line += [f(mine), f(its), 100 * f(mine) / f(its) - 100]
        print("%-6s %10.0f %10.0f %+7.1f%%   %10.0f %10.0f %+7.1f%%" % (k, *line))


if __name__ == "__main__":
    sys.exit(main())
