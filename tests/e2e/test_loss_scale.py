#!/usr/bin/env python3
"""Loss scaling under --precision fp16: the table of scales, skipped steps that change nothing, the same on all ranks, stages and queues; static scales;
a run that is continued; the end after too many skips.

    test_loss_scale.py TESSERA
"""
import os
import tempfile

from e2e import check, finish, model, tessera, train

FP16 = ["--precision", "fp16", "--micro-batches", 4, "--lr", "0.003"]


def dynamic(steps, bad, init=65536.0, window=2000, hysteresis=1, least=1.0):
    """torch.amp.GradScaler's and DeepSpeed's rule, written down again: the scale of each step."""
    scale, good, patience, scales = init, 0, hysteresis, []
    for step in range(steps):
        scales.append(scale)
        if step in bad:
            good = 0
            if patience > 1:
                patience -= 1
            else:
                scale = max(scale / 2, least)
        else:
            good += 1
            if good == window:
                scale, good, patience = scale * 2, 0, hysteresis
    return scales


def tables():
    bad = [1, 2, 7]
    for window, hysteresis, least in ((2000, 1, 1), (3, 1, 1), (3, 2, 1), (2, 3, 1), (3, 1, 32768)):
        first = None
        for where in (["--ranks", 1], ["--ranks", 2, "--zero", 0], ["--ranks", 2, "--zero", 1], ["--ranks", 4, "--zero", 2],
                      ["--ranks", 2, "--zero", 3], ["--ranks", 2, "--zero", 3, "--prefetch", 2, "--bucket-bytes", 4096]):
            r = train("mlp", *FP16, "--steps", 10, "--loss-scale-window", window, "--loss-scale-hysteresis", hysteresis, "--loss-scale-min", least,
                      "--inject-inf", "0:1,2,7", *where)
            tag = "window %d hysteresis %d least %d %s: " % (window, hysteresis, least, where)
            want = dynamic(10, bad, window=window, hysteresis=hysteresis, least=least)
            check(r["loss_scales"] == want, tag + "scales %s, wanted %s" % (r["loss_scales"], want))
            check(r["skipped_steps"] == bad, tag + "skipped %s" % r["skipped_steps"])
            check(r["stderr"].count("skipped: gradients are not finite") == 3, tag + "stderr says %s" % r["stderr"])
            result = (r["losses"], r["params_hash"])
            first = first or result
            check(result == first, tag + "other bits than on one rank")


def origins():
    """The rank and micro-batch whose gradient was not finite are named, not the rank that holds the sum; where only the sum overflows, it is said so."""
    for ranks, zero, reduce, at, micro in ((1, 0, "step", 0, 0), (2, 0, "step", 1, 2), (2, 1, "micro", 1, 1), (2, 2, "micro", 0, 0), (2, 3, "micro", 1, 1), (4, 3, "micro", 3, 3)):
        r = train("mlp", *FP16, "--steps", 3, "--ranks", ranks, "--zero", zero, "--reduce", reduce, "--inject-inf", "%d:1" % at, "--bucket-bytes", 4096)
        want = "step 1 skipped: gradients are not finite, first that of 'layers.1.bias' in micro-batch %d, on rank %d; loss scale 65536 -> 32768" % (micro, at)
        check(want in r["stderr"], "%d ranks stage %d: %s, wanted %s" % (ranks, zero, r["stderr"], want))
    for where in (["--ranks", 1], ["--ranks", 2, "--zero", 3]):
        for scale, says in ((1.5e6, "though each micro-batch's are: the sum for 'layers.1.weight' is not (held by rank "), (2.5e6, "first that of 'layers.1.bias' in micro-batch 2, on rank ")):
            r = train("mlp", *FP16, "--steps", 1, "--loss-scale", scale, *where)
            check(says in r["stderr"], "%s scale %g: %s" % (where, scale, r["stderr"]))


def state_stays():
    """A run whose second step is skipped is a run that never had it: with data of one batch, state and schedule go on as if."""
    one = [*FP16, "--loss-scale", 1024, "--schedule", "linear", "--total-steps", 8, "--warmup", 2, "--ranks", 2, "--zero", 2]
    whole = train("mlp", *one, "--steps", 3)
    with_skip = train("mlp", *one, "--steps", 4, "--inject-inf", "1:0")
    check(with_skip["skipped_steps"] == [0], "skipped %s" % with_skip["skipped_steps"])
    check(with_skip["lr"][:2] == [whole["lr"][0]] * 2 and with_skip["lr"][1:] == whole["lr"], "the schedule went on: %s, %s" % (with_skip["lr"], whole["lr"]))


def near_f32():
    runs = [train("mlp", *FP16, "--steps", 3, "--loss-scale", scale) for scale in (256, 4096)]
    for a, b in zip(runs[0]["losses"], runs[1]["losses"]):        # but for what is too small for f16, a power of two changes nothing
        check(abs(a - b) < 1e-5 * abs(a), "scale 256: %s, scale 4096: %s" % (runs[0]["losses"], runs[1]["losses"]))
    plain, half = train("mlp", *FP16[2:], "--steps", 3), train("mlp", *FP16, "--steps", 3)
    check(all(abs(a - b) < 2e-3 * abs(a) for a, b in zip(plain["losses"], half["losses"])), "fp16 %s, f32 %s" % (half["losses"], plain["losses"]))


def continued():
    with tempfile.TemporaryDirectory() as tmp:
        saved = os.path.join(tmp, "saved")
        options = [*FP16, "--ranks", 2, "--zero", 3, "--loss-scale-window", 3, "--loss-scale-hysteresis", 2]
        whole = train("mlp", *options, "--steps", 9, "--inject-inf", "1:1,2,5")
        train("mlp", *options, "--steps", 4, "--inject-inf", "1:1,2", "--save", saved)
        rest = train("mlp", "--ranks", 1, "--steps", 5, "--inject-inf", "0:5", "--resume", saved)
        check(rest["loss_scales"] == whole["loss_scales"][4:], "scales after --resume %s, wanted %s" % (rest["loss_scales"], whole["loss_scales"][4:]))
        check(rest["params_hash"] == whole["params_hash"], "parameters differ after --resume")


def continued_from_f32():
    """Optimizer and schedule go on counting where a run in another precision has stopped."""
    with tempfile.TemporaryDirectory() as tmp:
        saved = os.path.join(tmp, "saved")
        options = ["--lr", 0.05, "--schedule", "linear", "--warmup", 4, "--total-steps", 8]
        train("mlp", *options, "--steps", 4, "--save", saved)
        plain, half = (train("mlp", "--steps", 4, "--resume", saved, "--precision", p) for p in ("f32", "fp16"))
        check(not half["skipped_steps"] and all(abs(a - b) < 2e-3 * abs(a) for a, b in zip(plain["losses"], half["losses"])),
              "after --resume of f32: fp16 %s, f32 %s" % (half["losses"], plain["losses"]))
        check(plain["lr"] == half["lr"], "learning rates after --resume of f32: fp16 %s, f32 %s" % (half["lr"], plain["lr"]))


def refusals():
    data = ["run", model("mlp"), "--data", "random", "--steps", 3, "--precision"]
    for extra, code, says in ((["bf16", "--loss-scale", 4], 2, "only plans of --precision fp16"), (["fp16", "--loss-scale", "much"], 2, "neither 'dynamic' nor a number"),
                              (["fp16", "--loss-scale", "1e-300"], 2, "from 1e-30"), (["fp16", "--loss-scale", "1e300"], 2, "from 1e-30"),
                              (["fp16", "--loss-scale", 4, "--loss-scale-window", 7], 2, "stays as it is"), (["fp16", "--inject-inf", "3:1"], 2, "rank below"),
                              (["fp16", "--loss-scale-init", 1, "--loss-scale-min", 2], 2, "is below"),
                              (["fp16", "--inject-inf", "0:0,1,2", "--loss-scale-skips", 2], 1, "2 steps in a row were skipped")):
        p = tessera(*data, *extra)
        check(p.returncode == code and says in p.stderr, "%s: exit %d, %s" % (extra, p.returncode, p.stderr))


def main():
    tables()
    origins()
    state_stays()
    near_f32()
    continued()
    continued_from_f32()
    refusals()
    finish()


if __name__ == "__main__":
    main()
