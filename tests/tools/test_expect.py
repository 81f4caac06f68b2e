#!/usr/bin/env python3
"""Assertions on the command line: each against what `show --json` says, and everything that can be mistyped.

    test_expect.py TESSERA
"""
import collections
import json
import os
import subprocess
import sys
import tempfile

TESSERA = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "build/tessera"
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "gpt_merged", "model.onnx")
failures = []
n_cases = 0


def tessera(*args):
    p = subprocess.run([TESSERA, *args], capture_output=True, text=True)
    return p.returncode, p.stdout, p.stderr


def case(title, args, code, *said):
    global n_cases
    n_cases += 1
    rc, out, err = tessera(*args)
    missing = [s for s in said if s not in err]
    if rc != code or missing:
        failures.append(title)
        print(f"FAIL {title}: exit {rc}, wanted {code}; not said: {missing}\n  {err[:400]}")


def types(shown):
    """Bytes sent by element type."""
    sent = collections.Counter()
    for e in shown["ledger"]:
        sent["sent_bytes." + e["dtype"]] += e["bytes"] * e.get("times", 1)
    return sent


def facts(plan):
    """Metrics of a plan, read off `show --json` by hand."""
    shown = json.loads(tessera("show", plan, "--json")[1])
    sent = shown["sent_bytes_per_step"]
    known = {"steps": len(shown["steps"]), "ranks": shown["ranks"], "zero": shown["zero"], "sent_bytes": sent["planned"], "copied_bytes": sent["copied"],
             "saved_bytes": sent["saved"], "padded_param_bytes": shown["padded_param_bytes"], "peak.device": shown["peak_bytes"]["device"]["planned"],
             "peak.device.per_rank": shown["peak_bytes"]["device"]["per_rank"], "peak.host": 0, "waits": 0, "TopK": 0, "AllToAll": 0}
    known.update(collections.Counter(s["op"] for s in shown["steps"]))
    known.update(("steps." + k, v) for k, v in collections.Counter(s["phase"] for s in shown["steps"]).items())
    known.update((k + ".bytes", v) for k, v in sent["by_collective"].items())
    known.update(("peak.device." + k, v) for k, v in shown["peak_bytes"]["device"]["by_category"].items())
    known.update(types(shown))
    known.pop("AllToAll")       # no such operator yet
    return known


def compare(plan):
    known = facts(plan)
    for name, value in known.items():
        case(f"{name} is {value}", ["show", plan, "--expect", f"{name}=={value}"], 0)
    case("all are other", ["show", plan, *(w for n, v in known.items() for w in ("--expect", f"{n}=={v + 1}"))], 1,
         *(f"{n}=={v + 1}: {n} is {v}" for n, v in known.items()))
    listed = dict(line.split() for line in tessera("show", plan, "--metrics")[1].splitlines())
    wrong = {n: (v, listed.get(n)) for n, v in known.items() if v and listed.get(n) != str(v)}
    if wrong:
        failures.append("metrics")
        print("FAIL show --metrics says otherwise:", wrong)


def documented(plan):
    """docs/ci.md names every metric that is no operator's."""
    text = open(os.path.join(os.path.dirname(MODEL), "..", "..", "..", "docs", "ci.md")).read()
    names = [line.split()[0] for line in tessera("show", plan, "--metrics")[1].splitlines()]
    names = [n for n in names if n[0].islower() and not n.startswith("peak.device.")]
    missing = [n for n in names if f"`{n}`" not in text]
    if missing or len(names) < 25:
        failures.append("docs")
        print("FAIL docs/ci.md does not name", missing, "of", len(names))


def grammar(plan, sent):
    good = ["steps>=1", "steps != 1", " steps > 1 ", "steps<1G", "steps<=2k", f"sent_bytes<={sent}", f"sent_bytes=={sent}B", "sent_bytes<1TiB", "sent_bytes<1 TB",
            f"sent_bytes<{sent / 1024 + 0.01:.3f}KiB", "sent_bytes<=2*formula_bytes", "sent_bytes>=0.5 * padded_param_bytes", "steps>collectives", "sent_bytes>AllGather.bytes"]
    for text in good:
        case("holds: " + text, ["show", plan, "--expect", text], 0)
    case("a fraction below", ["show", plan, "--expect", f"sent_bytes<={sent / 1024 - 0.01:.3f}KiB"], 1, f"sent_bytes is {sent}")
    bad = [("AllGathr==2", "did you mean AllGather?; there are: steps,"), ("peak.devise<1", "did you mean peak.device?"), ("steps=4", "one of == != <= >= < > is expected at '=4'"),
           ("steps<=4MiB", "steps is a count"), ("sent_bytes<=4 MiBs", "no unit of bytes"), ("sent_bytes<=-1", "a number"), ("steps<", "at 'the end'"), ("steps", "the end"),
           ("", "a metric is expected"), ("==4", "a metric is expected"), ("steps<=sent_bytes", "steps is a count"), ("steps<=4 5", "'5' is no unit"), ("steps<=0x10", "a number"),
           ("steps<=1e400", "out of range"), ("steps<=nan", "no metric is called 'nan'"), ("steps<=+4", "a number"), ("steps<=2*", "the end"), ("steps<=4%", "no unit"),
           ("AllGather.elements<2", "no metric"), ("Add.bytes<2", "no metric"), ("steps<400,AllGather==2", "no unit")]
    for text, said in bad:
        case("mistyped: " + text, ["show", plan, "--expect", text], 2, said)


def main():
    with tempfile.TemporaryDirectory() as tmp:
        plan, failed = os.path.join(tmp, "p.onnx"), os.path.join(tmp, "failed.onnx")
        options = ["--ranks", "4", "--zero", "3", "--isa", "scalar", "--bucket-bytes", "16KiB"]
        case("compile", ["compile", MODEL, *options, "-o", plan, "--expect", "ranks==4", "--expect", "AllGather>=2"], 0)
        case("compile names those that fail, and leaves the plan", ["compile", MODEL, *options, "-o", failed, "--expect", "ranks==4", "--expect", "zero<3"], 1, "zero<3: zero is 3")
        case("a plan that failed can be looked at", ["show", failed], 0)
        compare(plan)
        documented(plan)
        grammar(plan, facts(plan)["sent_bytes"])
        case("narrow compile", ["compile", MODEL, *options, "--precision", "bf16", "-o", plan, "--expect", "sent_bytes.bfloat16>0.8*sent_bytes", "--expect", "sent_bytes.float16==0"], 0)
        compare(plan)
        case("a mistake is found before the work", ["compile", MODEL, *options, "-o", os.path.join(tmp, "none.onnx"), "--expect", "stepz<1"], 2, "did you mean steps?")
        if os.path.exists(os.path.join(tmp, "none.onnx")):
            failures.append("a plan was written")
        case("a model has operators", ["show", MODEL, "--expect", "MatMul>=1", "--expect", "parameters>1", "--expect", "AllGather==0"], 0)
        case("a model has no ranks", ["show", MODEL, "--expect", "ranks==1"], 2, "'ranks' is known of plans only")
        case("opt", ["opt", MODEL, "--passes=train", "--stop-after=build_backward", "-o", os.path.join(tmp, "b.onnxtxt"), "--expect", "steps>100"], 0)
        case("opt that fails", ["opt", MODEL, "--passes=simplify", "-o", os.path.join(tmp, "s.onnxtxt"), "--expect", "Tanh==99"], 1, "Tanh==99: Tanh is ")
        case("verify has none", ["verify", plan, "--expect", "steps<1"], 2, "does not belong to this command")
    print(f"{n_cases} cases, {len(failures)} failed")
    sys.exit(1 if failures or not n_cases else 0)


if __name__ == "__main__":
    main()
