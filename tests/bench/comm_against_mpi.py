#!/usr/bin/env python3
"""Collectives of tessera beside the MPI library's own, taking turns in one run: the same sizes, as many ranks.

    comm_against_mpi.py TESSERA [--processes P] [--to BYTES] [--rounds N]

Each round: local (P rank threads), mpi (P processes of one rank), then MPI_Allgather, MPI_Reduce_scatter_block, MPI_Allreduce and memcpy in P processes. The best
of the rounds: microseconds a call, and GB of the whole a second. Needs mpicc and mpirun of the MPI library that tessera was built with.
"""
import argparse
import json
import os
import subprocess
import tempfile

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "copy")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("tessera")
    p.add_argument("--processes", type=int, default=2)
    p.add_argument("--to", type=int, default=64 << 20)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--mpirun", default="mpirun")
    p.add_argument("--mpicc", default="mpicc")
    a = p.parse_args()
    version = subprocess.run([a.mpirun, "--version"], capture_output=True, text=True).stdout
    mpirun = [a.mpirun, "-n", str(a.processes)] + (["--oversubscribe", "--allow-run-as-root"] if "Open MPI" in version or "OpenRTE" in version else [])
    bench = ["bench", "comm", "--json", "--comm-rounds", "1", "--comm-to", str(a.to)]
    with tempfile.TemporaryDirectory() as folder:
        peer = os.path.join(folder, "mpi_peer")
        subprocess.run([a.mpicc, "-O3", "-o", peer, os.path.join(os.path.dirname(os.path.abspath(__file__)), "mpi_peer.c")], check=True)
        commands = {"local": [a.tessera, *bench, "--ranks", str(a.processes)], "mpi": [*mpirun, a.tessera, *bench, "--backend", "mpi"], "MPI's own": [*mpirun, peer, "4096", str(a.to), "1"]}
        best = {}
        for _ in range(a.rounds):
            for who, command in commands.items():
                found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                for at in found["sizes"]:
                    for kind in KINDS:
                        key = (kind, at["bytes"], who)
                        best[key] = min(best.get(key, at[kind]), at[kind])
    print("%d ranks, best of %d rounds: us a call, GB of the whole a second; %s" % (a.processes, a.rounds, version.splitlines()[0] if version else a.mpirun))
    sizes = sorted({size for _, size, _ in best})
    for kind in KINDS:
        print("%-15s" % kind + "".join("%24s" % who for who in commands))
        for size in sizes:
            print("%11.0f KiB" % (size / 1024) + "".join("%14.1f %6.2f   " % (best[kind, size, who] * 1e6, size / best[kind, size, who] / 1e9) for who in commands))


main()
