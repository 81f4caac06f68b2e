#!/usr/bin/env python3
"""Two processes on two test hosts, which are network namespaces joined by a pair of virtual interfaces: mpirun starts one on each. What the interfaces count per step is
what the plan says leaves a process, and the protocols' overhead, which is printed.

    test_two_hosts.py TESSERA [--all]     --all: every stage, f32 and bf16

Needs root and the right to make network namespaces; skipped elsewhere, with the reason.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

from e2e import TESSERA, check, finish, sanitized, tessera

NAMES = ["tessera%d%s" % (os.getpid(), x) for x in "ab"]
LINKS = ["ts%d%s" % (os.getpid() % 100000, x) for x in "ab"]
ADDRESSES = ["10.213.77.1", "10.213.77.2"]
FEW, MANY = 5, 25
OVERHEAD = 0.08            # more than that beyond the ledger is wrong


def sh(*words):
    return subprocess.run(words, capture_output=True, text=True)


def skip(why):
    print("skipped: " + why)
    sys.exit(77)


def make_hosts():
    for name in NAMES:
        p = sh("ip", "netns", "add", name)
        if p.returncode:
            skip("network namespaces are not allowed here: " + p.stderr.strip())
    p = sh("ip", "link", "add", LINKS[0], "netns", NAMES[0], "type", "veth", "peer", "name", LINKS[1], "netns", NAMES[1])
    if p.returncode:
        skip("virtual interfaces are not allowed here: " + p.stderr.strip())
    for name, link, address in zip(NAMES, LINKS, ADDRESSES):
        for words in (["addr", "add", address + "/24", "dev", link], ["link", "set", link, "up"], ["link", "set", "lo", "up"]):
            p = sh("ip", "-n", name, *words)
            if p.returncode:
                skip("cannot set up a namespace: " + p.stderr.strip())


def drop_hosts():
    for name in NAMES:
        sh("ip", "netns", "del", name)


def counted(host, what="tx_bytes"):
    return int(sh("ip", "netns", "exec", NAMES[host], "cat", "/sys/class/net/%s/statistics/%s" % (LINKS[host], what)).stdout)


def write_agent(tmp):
    """What mpirun calls in place of ssh: AGENT HOST COMMAND... The other host has a name of its own, too."""
    path = os.path.join(tmp, "agent")
    with open(path, "w") as f:
        f.write("#!/bin/sh\nshift\nexec ip netns exec %s unshare --uts sh -c \"hostname tessera-b; $*\"\n" % NAMES[1])
    os.chmod(path, 0o755)
    return path


def run(tmp, model, steps, *more):
    """Report of the run; bytes that each host has sent meanwhile."""
    report = os.path.join(tmp, "report.json")
    if os.path.exists(report):
        os.remove(report)
    hosts = os.path.join(tmp, "hosts")
    with open(hosts, "w") as f:
        f.write("".join("%s slots=1\n" % a for a in ADDRESSES))
    nets = "10.213.77.0/24"
    words = ["ip", "netns", "exec", NAMES[0], "unshare", "--uts", "sh", "-c", 'hostname tessera-a; exec "$@"', "sh", "mpirun", "--allow-run-as-root", "--hostfile", hosts, "-n", "2",
             "--mca", "plm_rsh_agent", write_agent(tmp), "--mca", "btl", "tcp,self", "--mca", "pml", "ob1", "--mca", "btl_tcp_if_include", nets,
             "--mca", "oob_tcp_if_include", nets, "--mca", "orte_keep_fqdn_hostnames", "1",
             TESSERA, "run", model, "--data", "random", "--seed", "3", "--batch", "4", "--steps", str(steps), "--report", report, *map(str, more)]
    before = [counted(0), counted(1)]
    p = subprocess.run(words, capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL)
    after = [counted(0), counted(1)]
    check(p.returncode == 0, "%s: exit %d: %s" % (more, p.returncode, p.stderr[-1500:]))
    r = json.load(open(report)) if os.path.exists(report) else {}
    return r, [b - a for a, b in zip(before, after)]


def compare(tmp, model, *more):
    r, few = run(tmp, model, FEW, *more)
    one = tessera("run", model, "--data", "random", "--seed", "3", "--batch", "4", "--steps", FEW, "--micro-batches", 2, "--report", os.path.join(tmp, "one.json"),
                  *[x for i, x in enumerate(more) if "--precision" in (x, more[i - 1] if i else "")])
    same = one.returncode == 0 and json.load(open(os.path.join(tmp, "one.json")))["params_hash"] == r.get("params_hash")
    check(same, "%s: other bits than one process on one host" % (more,))
    r, many = run(tmp, model, MANY, *more)
    wire = r.get("sent_bytes_per_step", {}).get("wire_planned", 0)
    for host in (0, 1):
        sent = (many[host] - few[host]) / (MANY - FEW)
        over = sent / wire - 1 if wire else 1
        print("%-42s host %d: ledger %10d bytes a step, interface %12.0f, overhead %5.2f %%" % (" ".join(map(str, more)), host, wire, sent, 100 * over), flush=True)
        check(0 <= over < OVERHEAD, "%s host %d: %.0f bytes a step on the interface, %d in the ledger" % (more, host, sent, wire))


def main():
    if os.geteuid():
        skip("network namespaces need root")
    if sanitized() or not all(shutil.which(x) for x in ("mpirun", "ip", "unshare")):
        skip("needs mpirun, ip and unshare, and a build without a sanitizer")
    try:
        make_hosts()
        with tempfile.TemporaryDirectory() as tmp:
            model = os.path.join(tmp, "m.onnx")
            p = tessera("synth", "mlp", "--layers", 3, "--d-model", 512, "--vocab", 64, "--init", "random", "-o", model)
            check(p.returncode == 0, p.stderr)
            settings = [(z, p) for p in ("f32", "bf16") for z in range(4)] if "--all" in sys.argv else [(3, "f32")]
            for zero, precision in settings:
                compare(tmp, model, "--ranks", 2, "--zero", zero, "--precision", precision)
    finally:
        drop_hosts()
    finish()


main()
