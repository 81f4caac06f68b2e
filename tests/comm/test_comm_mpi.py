"""Collectives over MPI, several processes under mpirun: the conformance suite, and each of its cases that stop a run. Skipped where there is no MPI."""
import os
import re
import shutil
import subprocess
import sys

tests = os.path.join(os.path.dirname(os.path.abspath(sys.argv[1])), "tests")
runner = os.path.join(tests, "mpi_runner")
if not os.path.exists(os.path.join(tests, "../libtessera_mpi.so")) or not os.path.exists(runner):
    print("skipped: built without MPI (Debian, Ubuntu: install openmpi-bin and libopenmpi-dev, configure again)")
    sys.exit(77)
if "TSAN_OPTIONS" in os.environ:
    print("skipped: MPI libraries are not compiled with the thread sanitizer; the cases run over emulated processes instead (unit.test_comm)")
    sys.exit(77)
mpirun = os.environ.get("TESSERA_MPIRUN") or shutil.which("mpirun")
if not mpirun:
    print("skipped: no mpirun (Debian, Ubuntu: install openmpi-bin)")
    sys.exit(77)

version = subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout
open_mpi = "Open MPI" in version or "OpenRTE" in version
flags = ["--oversubscribe", "--allow-run-as-root"] if open_mpi else []
environment = dict(os.environ, ASAN_OPTIONS="detect_leaks=0:" + os.environ.get("ASAN_OPTIONS", ""))        # MPI libraries keep what they allocate
failures = 0


def run(processes, ranks, message_bytes=0, case=None):
    global failures
    command = [mpirun, *flags, "-n", str(processes), runner, str(ranks), str(message_bytes)] + ([case] if case else [])
    what = f"{processes} processes of {ranks} ranks" + (f", messages of {message_bytes} bytes" if message_bytes else "") + (f", {case}" if case else "")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
        passed = len(re.findall(r"process \d+ of %d: passed" % processes, done.stdout))
        good = passed == processes
        text = done.stdout + done.stderr
    except subprocess.TimeoutExpired as e:
        good, text = False, f"no end within 200 s: {e.stdout} {e.stderr}"
    print(f"{what}: {'passed' if good else 'FAILED'}", flush=True)
    if not good:
        print("\n".join(line for line in text.splitlines() if " OK ]" not in line and " RUN " not in line), flush=True)
        failures += 1


for processes, ranks, message_bytes in ((2, 1, 0), (2, 2, 500), (4, 1, 0), (3, 1, 1000)):
    run(processes, ranks, message_bytes)
for case in ("aborts", "deadline", "sizes_differ", "dtypes_differ", "kinds_differ", "counts_differ"):
    run(2, 1, 0, case)
run(4, 2, 0, "deadline")
sys.exit(1 if failures else 0)
