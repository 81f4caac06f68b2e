#!/usr/bin/env python3
"""tools/plan_gate, as a job in CI runs it: baseline, within and beyond limits, what is posted, and everything that goes wrong; and the job of docs/ci.md.

    test_plan_gate.py TESSERA
"""
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

TESSERA = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "build/tessera"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GATE = os.path.join(ROOT, "tools", "plan_gate")
failures = []
n_cases = 0


def gate(cwd, args, code, *said, **env):
    global n_cases
    n_cases += 1
    p = subprocess.run([GATE, *args], cwd=cwd, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "TESSERA": TESSERA, **env})
    missing = [s for s in said if s not in p.stdout + p.stderr]
    if p.returncode != code or missing:
        failures.append(args)
        print(f"FAIL {env} plan_gate {' '.join(args)}: exit {p.returncode}, wanted {code}; not said: {missing}\n  {(p.stdout + p.stderr)[:600]}")


def need(condition, what):
    global n_cases
    n_cases += 1
    if not condition:
        failures.append(what)
        print("FAIL", what)


def job_of_docs(cwd):
    """The job's gate is a command that works: only where Tessera lies differs."""
    job = re.search(r"^```yaml\n(.*?)^```", open(os.path.join(ROOT, "docs", "ci.md")).read(), flags=re.M | re.S)[1]
    step = job[job.index("gate the plan"):job.index("post the diff")]
    env = dict(pair.split(": ") for pair in re.search(r"env: \{(.*)\}", step)[1].split(", "))
    command = shlex.split(re.search(r"run: (.*)", step)[1])
    need(os.path.join(ROOT, command[0].replace("tessera/", "", 1)) == GATE and env.pop("TESSERA") == "tessera/build/tessera", "the job runs plan_gate")
    need(all(f"{env['OUT']}/{name}" in job for name in ("diff.md",)), "the job posts what plan_gate writes")
    arguments = [a if a != "avx2" else "scalar" for a in command[1:]]
    gate(cwd, arguments, 0, "wrote plans/model.onnxtxt", UPDATE="1", **env)
    gate(cwd, arguments, 0, "are the same", "limit kept: sent_bytes +1%", **env)


def main():
    with tempfile.TemporaryDirectory() as tmp:
        model = os.path.join(tmp, "model.onnx")
        subprocess.run([TESSERA, "synth", "mlp", "--layers", "3", "--d-model", "64", "--batch", "4", "-o", model], check=True, capture_output=True)
        options = ["--ranks", "4", "--zero", "2", "--isa", "scalar"]
        args = ["model.onnx", "plans/p.onnxtxt", *options]
        gate(tmp, args, 2, "there is no baseline 'plans/p.onnxtxt' yet", "UPDATE=1")
        gate(tmp, args, 0, "commit it", UPDATE="1")
        gate(tmp, args, 0, "are the same", "limit kept: peak.device +0%")
        gate(tmp, ["model.onnx", "broken.onnxtxt", *options], 2, "there is no baseline")
        need(not os.path.exists(os.path.join(tmp, "plan_gate.out", "diff.md")), "what the run before has posted is left after an error")
        gate(tmp, args, 0, "are the same")
        gate(tmp, args, 2, "there is no program '/nowhere/tessera'", TESSERA="/nowhere/tessera")
        summary = os.path.join(tmp, "summary.md")
        more = ["model.onnx", "plans/p.onnxtxt", "--ranks", "4", "--zero", "3", "--isa", "scalar"]
        gate(tmp, more, 1, "limit exceeded: sent_bytes +0%", "comm:", GITHUB_STEP_SUMMARY=summary)
        posted = open(summary).read() if os.path.exists(summary) else ""
        need("limits exceeded" in posted and "AllGather" in posted and posted.count("````") == 2, "the summary has the diff")
        diff = json.load(open(os.path.join(tmp, "plan_gate.out", "diff.json")))
        need(not diff["ok"] and any(x["topic"] == "comm" for x in diff["differences"]), "diff.json says so, too")
        gate(tmp, more, 0, "limit kept: sent_bytes +200%", MAX_BYTES="+200%", MAX_PEAK="+200%", OUT="elsewhere")
        need("within its limits" in open(os.path.join(tmp, "elsewhere", "diff.md")).read(), "OUT has the diff")
        gate(tmp, ["model.onnx", "plans/p.onnx", *options], 0, "wrote plans/p.onnx", UPDATE="1")
        gate(tmp, ["model.onnx", "plans/p.onnx", *options], 0, "are the same")
        gate(tmp, args, 2, "no limit", MAX_BYTES="much")
        gate(tmp, ["model.onnx", "plans/p.onnxtxt", "--zero", "9"], 2, "--zero")
        gate(tmp, ["nothing.onnx", "plans/p.onnxtxt"], 5, "nothing.onnx")
        gate(tmp, ["model.onnx", "model.txt"], 2, "neither NAME.onnxtxt nor NAME.onnx")
        gate(tmp, [], 2, "tools/plan_gate MODEL BASELINE")
        gate(tmp, ["--help", "x"], 2, "MAX_BYTES, MAX_PEAK")
        open(os.path.join(tmp, "plans", "p.onnxtxt"), "w").write("garbage")
        gate(tmp, args, 3, "plans/p.onnxtxt")
        job_of_docs(tmp)
    print(f"{n_cases} cases, {len(failures)} failed")
    sys.exit(1 if failures or not n_cases else 0)


if __name__ == "__main__":
    main()
