"""Random graphs against other parties and against themselves: onnxruntime's losses, finite differences, the unsharded run in float64, and every way to compile
them. Not a test itself: test_random.py runs a fixed budget of it.

    differential.py TESSERA [--seeds A..B] [--seconds S] [--keep FOLDER]     a long run; what fails is kept and told with the command that shows it
"""
import argparse
import collections
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy as np
import onnx
from onnx import numpy_helper
from safetensors.numpy import load_file

import generate
from graph_builder import Reject

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
RATES = {"sgd": 0.05, "adagrad": 0.02, "rmsprop": 0.003, "lion": 0.001, "lamb": 0.005, "muon": 0.005}      # others: 0.01
BUCKETS = [4096, 5000, 16384, 65536, 1 << 24]
REPORTED = ("losses", "grad_norms", "params_hash")


def pass_table():
    """[(name, provides a fact)] of passes.def, and the training pipeline."""
    rows = re.findall(r"^PASS\((\w+),\s*([^\n]*?)\"", open(os.path.join(ROOT, "passes", "passes.def")).read(), re.M)
    table = [(name, rest.rstrip(", ").split(",")[-1].strip() != "0") for name, rest in rows]
    train = open(os.path.join(ROOT, "passes", "pipelines.c")).read().split("pipeline_train[]")[1].split("NULL")[0]
    return table, re.findall(r"\"(\w+)\"", train)


class Failure(Exception):
    """A check of this case failed."""


class Differential:
    def __init__(self, tessera, keep=None):
        self.tessera, self.keep = tessera, keep
        self.graphs = self.checks = self.runs = 0
        self.findings, self.unsupported, self.operators = [], collections.Counter(), collections.Counter()
        self.passes, self.pipeline = pass_table()
        self.removable = [name for name, provides in self.passes if not provides and name not in ("widen", "check_sharding", "attach_loss")]
        text = self.call("run", "--help").stdout
        self.has_prefetch = "--prefetch" in text
        self.optimizers = [["--optimizer", o, "--lr", str(RATES.get(o, 0.01))] for o in re.search(r"--optimizer ([a-z0-9|]+)", text)[1].split("|")]
        self.optimizers.append(["--optimizer", "sgd", "--lr", "0.05", "--momentum", "0.9", "--clip-norm", "0.5"])
        self.mixed = [p for p in re.search(r"--precision ([a-z0-9|]+)", text)[1].split("|") if p not in ("f32", "fp64")]

    # ---- Running ----

    def call(self, *arguments):
        self.runs = getattr(self, "runs", 0) + 1
        return subprocess.run([self.tessera, *map(str, arguments)], capture_output=True, text=True, timeout=120)

    def check(self, ok, what):
        self.checks += 1
        if not ok:
            raise Failure(what)

    def train(self, *arguments, model=None, expect=0):
        report = os.path.join(self.folder, "report.json")
        if os.path.exists(report):
            os.remove(report)
        command = ["run", model or self.model, "--data", self.data, "--no-shuffle", "--report", report, *self.common, *arguments]
        p = self.call(*command)
        if p.returncode == 4 and not self.compiled:
            raise Reject(p.stderr.strip().split("error: ")[-1][:200])
        self.check(p.returncode == expect, "exit %d of tessera %s: %s" % (p.returncode, " ".join(map(str, command)), p.stderr.strip()[-600:]))
        self.compiled = True
        r = json.load(open(report))
        r["command"] = " ".join(map(str, arguments))
        for kind in ("sent_bytes_per_step",) if len(r.get("skipped_steps", [])) < r["steps"] else ():      # a skipped step sends no parameters
            self.check(r[kind]["planned"] == r[kind]["measured"], "%s of %s" % (r[kind], r["command"]))
        device = r["peak_bytes"]["device"]
        self.check(device["planned"] == device["measured"], "peak of %s: %s" % (r["command"], device))
        return r

    def near(self, a, b, relative, what):
        a, b = np.asarray(a, float), np.asarray(b, float)
        self.check(a.shape == b.shape and np.allclose(a, b, rtol=relative, atol=relative, equal_nan=True), "%s: %s, wanted %s" % (what, a, b))

    # ---- Checks of one graph ----

    def run_case(self, case, thorough, name):
        """Checks one graph; what fails is told, kept and counted. `thorough`: everything, else a part that the seed chooses."""
        seed = case.seed
        self.rng = np.random.default_rng([seed, 1])
        self.rng_of_recompute = np.random.default_rng([seed, 2])
        with tempfile.TemporaryDirectory() as folder:
            self.folder, self.case, self.compiled, self.modes = folder, case, False, {}
            self.model, self.data = generate.write(case, folder)
            self.common = ["--params", ",".join(case.params)]
            self.optimizer = self.optimizers[seed % len(self.optimizers)]
            try:
                self.against_others()
                self.against_differences()
                self.against_itself(thorough)
                self.against_passes(thorough)
                self.graphs += 1
                self.operators.update(set(case.used))
            except Reject as e:
                self.unsupported[re.sub(r"'[^']*'", "'...'", str(e))[:120]] += 1
            except (Failure, subprocess.TimeoutExpired) as e:
                self.findings.append((name, str(e)))
                print("FAIL %s: %s" % (name, e), flush=True)
                if self.keep:
                    shutil.copytree(folder, os.path.join(self.keep, name.replace(" ", "")), dirs_exist_ok=True)

    def pick(self, items):
        return items[int(self.rng.integers(len(items)))]

    def against_others(self):
        """Losses of single batches in float64: onnxruntime's, in float32."""
        n = 3
        r = self.train("--precision", "fp64", "--micro-batches", 1, "--steps", n, "--optimizer", "sgd", "--lr", 0)
        if self.case.random or self.case.without_ort:
            return
        want = generate.reference_losses(self.case)[:n]
        if self.case.discontinuous and not np.allclose(r["losses"], want, rtol=1e-3, atol=1e-3):    # rounding decides: the same rounding, then
            r = self.train("--micro-batches", 1, "--steps", n, "--optimizer", "sgd", "--lr", 0)
        self.near(r["losses"], want, 1e-3, "losses against onnxruntime")

    def shifted_model(self, name, step, direction):
        """A copy whose parameters are moved; returns also where they are then, in float64."""
        model = onnx.ModelProto()
        model.CopyFrom(self.case.model)
        at = {}
        for t in model.graph.initializer:
            if t.name in direction:
                moved = (numpy_helper.to_array(t) + step * direction[t.name]).astype(np.float32)
                t.CopyFrom(numpy_helper.from_array(moved, t.name))
                at[t.name] = moved.astype(np.float64)
        path = os.path.join(self.folder, name)
        onnx.save(model, path)
        return path, at

    def against_differences(self):
        """The gradient along a random direction: central differences of the loss, at steps until one fits (kinks lie in some)."""
        still = ["--precision", "fp64", "--micro-batches", 4, "--steps", 1, "--optimizer", "sgd", "--lr", 0]
        grads = os.path.join(self.folder, "grads.safetensors")
        here = self.train(*still, "--dump-grads", grads)["losses"][0]
        gradient = load_file(grads)
        direction = {t.name: self.rng.standard_normal(t.dims) for t in self.case.model.graph.initializer if t.name in gradient}
        norm = float(np.sqrt(sum((g.astype(float) ** 2).sum() for g in gradient.values())))
        tried = []
        for step in (1e-3, 1e-4, 1e-5):
            (low, at_low), (high, at_high) = self.shifted_model("low.onnx", -step, direction), self.shifted_model("high.onnx", step, direction)
            above, below = self.train(*still, model=high)["losses"][0], self.train(*still, model=low)["losses"][0]
            start = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in self.case.model.graph.initializer if t.name in gradient}
            along = lambda a, z: sum(float((gradient[k] * (a[k] - z[k])).sum()) for k in gradient)
            sides = [("central", above - below, along(at_high, at_low), 1)]
            if self.case.discontinuous:          # a jump may lie on one side
                sides += [("forward", above - here, along(at_high, start), 50), ("backward", here - below, along(start, at_low), 50)]
            for side, change, want, slack in sides:
                tried.append("step %g, %s: %.10g, gradient says %.10g" % (step, side, change, want))
                if abs(change - want) <= slack * (2 * step * (2e-4 * norm + 1e-7) + 1e-4 * abs(want)):
                    self.checks += 1
                    return
        self.check(False, "differences of the loss against the gradient (norm %.6g): %s" % (norm, "; ".join(tried)))

    def same(self, runs, base_of):
        first = None
        for arguments in runs:
            r = self.train(*base_of, *arguments)
            result = [r[k] for k in REPORTED]
            if first is None:
                first, first_of = result, r
            self.check(result == first, "bits of %s differ from those of %s: %s, %s" % (r["command"], first_of["command"], result, first))
        return first_of

    def settings(self, micro, n, *precision):
        """n settings whose bits must be those of one rank."""
        yield []
        for _ in range(n):
            ranks = self.pick([r for r in (1, 2, 4) if r <= micro])
            zero = int(self.rng.integers(4))
            chosen = ["--ranks", ranks, "--zero", zero, "--bucket-bytes", self.pick(BUCKETS)]
            if zero < 2 and self.rng.random() < 0.7:
                chosen += ["--reduce", self.pick(["micro", "step"])]
            if self.rng.random() < 0.3:
                chosen += ["--skip-passes", "bucket_collectives"]
            if self.has_prefetch and self.rng.random() < 0.6:
                chosen += ["--prefetch", int(self.rng.integers(1, 5))]
            modes = self.recompute_modes(*precision)
            if self.rng_of_recompute.random() < 0.6:
                chosen += ["--recompute", modes[int(self.rng_of_recompute.integers(len(modes)))]]
            if self.rng_of_recompute.random() < 0.4:
                chosen += ["--offload", "activations=host"]
            yield chosen

    def recompute_modes(self, *precision):
        """What --recompute can be asked for: blocks where the graph has some, budgets between what it takes without and the least."""
        if precision not in self.modes:
            modes = self.modes[precision] = ["all"]
            compile_only = ["compile", self.model, "--data", self.data, *self.common, *precision, "-o", os.path.join(self.folder, "modes.onnx"), "--recompute"]
            p = self.call(*compile_only, "blocks")
            self.check(p.returncode in (0, 4), "compile with --recompute blocks: exit %d: %s" % (p.returncode, p.stderr[-500:]))
            modes += ["blocks"] * (p.returncode == 0)
            p = self.call(*compile_only, "budget=1")
            sizes = re.search(r"take (\d+) bytes without recomputation and (\d+) at least", p.stderr)
            self.check(sizes, "compile with --recompute budget=1: exit %d: %s" % (p.returncode, p.stderr[-500:]))
            most, least = int(sizes[1]), int(sizes[2])
            modes += ["budget=%d" % (least + (most - least) * part // 4) for part in (range(4) if least < most else ())]
        return self.modes[precision]

    def against_itself(self, thorough):
        micro = self.pick([4, 4, 8])
        base = [*self.optimizer, "--steps", 2, "--micro-batches", micro]
        narrow = self.same(self.settings(micro, 12 if thorough else 4), base)
        wide = self.same(self.settings(micro, 6 if thorough else 1, "--precision", "fp64"), base + ["--precision", "fp64"])
        smooth = not self.case.discontinuous
        if smooth:
            self.near(narrow["losses"][:1], wide["losses"][:1], 2e-3, "the first loss in f32 against float64")
            self.near(narrow["grad_norms"][:1], wide["grad_norms"][:1], 2e-2, "the first norm in f32 against float64")
            if thorough or self.rng.random() < 0.3:
                scalar = self.train(*base, "--isa", "scalar")
                self.near(scalar["losses"][:1], wide["losses"][:1], 2e-3, "the first loss with scalar kernels against float64")
                self.near(scalar["grad_norms"][:1], wide["grad_norms"][:1], 2e-2, "the first norm with scalar kernels against float64")
        if self.mixed and (thorough or self.rng.random() < 0.4):
            self.in_sixteen_bits(base, wide, smooth)
        odd = [*self.optimizer, "--steps", 2, "--micro-batches", 6, "--precision", "fp64"]
        one = self.train(*odd)
        for zero in range(4) if thorough else [int(self.rng.integers(4))]:
            three = self.train(*odd, "--ranks", 3, "--zero", zero, "--bucket-bytes", self.pick(BUCKETS))
            self.near(three["losses"], one["losses"], 1e-7, "losses of 3 ranks, stage %d" % zero)
            self.near(three["grad_norms"], one["grad_norms"], 1e-6, "norms of 3 ranks, stage %d" % zero)
        skips = self.removable if thorough else [self.pick(self.removable)]
        for name in skips:
            r = self.train(*base, "--precision", "fp64", "--skip-passes", name)
            close = 1e-5 if name == "fuse_gelu" else 1e-8
            self.near(r["losses"], wide["losses"], close, "losses without pass %s" % name)
            self.near(r["grad_norms"], wide["grad_norms"], close * 10, "norms without pass %s" % name)
        plan = os.path.join(self.folder, "plan.onnx")
        wider = ["--ranks", self.pick([5, 8, 64, 1000]), "--zero", int(self.rng.integers(4)), "--bucket-bytes", self.pick(BUCKETS)]
        p = self.call("compile", self.model, "--data", self.data, *self.common, *wider, "-o", plan)
        self.check(p.returncode == 0, "compile %s: %s" % (wider, p.stderr[-500:]))
        p = self.call("verify", plan)
        self.check(p.returncode == 0, "verify of the plan for %s: %s" % (wider, (p.stdout + p.stderr)[-500:]))

    def in_sixteen_bits(self, base, wide, smooth):
        """Mixed precision: the same bits over ranks and stages, too, and near the reference where nothing jumps and no value is lost."""
        precision = self.pick(self.mixed)
        try:
            r = self.same(self.settings(int(base[-1]), 2, "--precision", precision), base + ["--precision", precision])
        except Failure as e:
            if precision == "fp16" and "not finite" in str(e):     # beyond 65504
                return
            raise
        if smooth and precision == "bf16":
            self.near(r["losses"][:1], wide["losses"][:1], 0.25, "the first loss in %s against float64" % precision)

    def equivalent(self, passes, *more):
        bind = ["--dim", "N=%d" % self.case.batch] if self.case_is_symbolic() else []
        after = os.path.join(self.folder, "after.onnx")
        command = ["opt", self.model, *self.common, *bind, *passes, *more, "-o", after]
        p = self.call(*command)
        self.check(p.returncode == 0, "exit %d of tessera %s: %s" % (p.returncode, " ".join(map(str, command)), p.stderr.strip()[-500:]))
        loose = "fuse_gelu" in " ".join(map(str, passes)) or "train" in passes
        command = ["opt", "--equivalent", self.model, after, *self.common, *bind, *more, "--cases", 2, "--seed", self.case.seed, "--tolerance", 1e-5 if loose else 1e-8]
        p = self.call(*command)
        if "no element of any case is a number" in p.stderr:
            return
        self.check(p.returncode == 0, "%s is not what it was before: tessera %s: %s%s" % (" ".join(map(str, passes)), " ".join(map(str, command)), p.stdout, p.stderr[-700:]))

    def case_is_symbolic(self):
        return any(d.dim_param for i in self.case.model.graph.input for d in i.type.tensor_type.shape.dim)

    def against_passes(self, thorough):
        """Each pass alone, then prefixes of the pipeline."""
        alone = [p for p in ("fuse_gelu", "fold_constants", "merge_common", "dead_code", "lower_einsum", "fuse_transpose", "carry_buffers")]
        for name in alone if thorough else [self.pick(alone)]:
            before = [] if name in ("fuse_gelu", "carry_buffers") else ["infer_types"]
            self.equivalent(["--passes", ",".join(["widen"] + before + [name])], "--precision", "fp64")
        ends = self.pipeline[:self.pipeline.index("accumulate") + 1]
        places = range(len(ends)) if thorough else [int(self.rng.integers(len(ends)))]
        for last in places:
            self.equivalent(["--passes", ",".join(ends[:last + 1])], "--precision", "fp64", "--micro-batches", 2)

    def report(self):
        print("%d graphs, %d comparisons, %d runs of the program, %d operators, %d findings" % (self.graphs, self.checks, self.runs, len(self.operators), len(self.findings)))
        for why, n in self.unsupported.most_common(20):
            print("  unsupported %d times: %s" % (n, why))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tessera")
    parser.add_argument("--seeds", default="0..1000000000", help="A..B, without B")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--keep", help="folder for the graphs that fail")
    parser.add_argument("--quick", action="store_true", help="per graph what the test does")
    options = parser.parse_args()
    first, last = (int(x) for x in options.seeds.split(".."))
    d = Differential(os.path.abspath(options.tessera), options.keep)
    end = time.monotonic() + options.seconds
    for seed in range(first, last):
        if time.monotonic() > end:
            break
        d.run_case(generate.generate(seed), not options.quick, "seed %d" % seed)
    d.report()
    print("never generated:", " ".join(sorted(never_generated(d.operators))))
    sys.exit(1 if d.findings else 0)


def never_generated(operators):
    """Standard operators of kernels/ops.def that no graph held."""
    text = "".join(line for line in open(os.path.join(ROOT, "kernels", "ops.def")) if not line.startswith("//"))
    names = set(re.findall(r"OP\((\w+)\)", text))
    return {n for n in names if onnx.defs.has(n)} - set(operators)


if __name__ == "__main__":
    main()
