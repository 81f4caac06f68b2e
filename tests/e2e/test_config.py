#!/usr/bin/env python3
"""--config: options from a file, DeepSpeed configurations as they are, `tessera config`; what is contradictory, unknown or not there is explained.

    test_config.py TESSERA
"""
import json
import math
import os
import re
import tempfile

from e2e import HERE, check, finish, inputs, model, need, tessera, train

need("numpy", "safetensors")

# As DeepSpeed's tutorials have them.
ZERO2_FP16 = {
    "train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "steps_per_print": 2000,
    "optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 10}},
    "gradient_clipping": 1.0, "prescale_gradients": False,
    "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 15, "loss_scale_window": 500, "hysteresis": 2, "min_loss_scale": 1},
    "wall_clock_breakdown": False,
    "zero_optimization": {"stage": 2, "allgather_partitions": True, "reduce_scatter": True, "allgather_bucket_size": 5e7, "reduce_bucket_size": 5e7,
                          "overlap_comm": True, "contiguous_gradients": True},
}
ZERO3_BF16 = {
    "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "gradient_clipping": 0.5,
    "bf16": {"enabled": True}, "fp16": {"enabled": False},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-4, "warmup_num_steps": 3, "total_num_steps": 8, "warmup_type": "linear"}},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "contiguous_gradients": True, "sub_group_size": 1e9, "reduce_bucket_size": 20000,
                          "stage3_prefetch_bucket_size": 50000, "stage3_param_persistence_threshold": 1e5, "stage3_max_live_parameters": 1e9,
                          "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": True,
                          "offload_optimizer": {"device": "none", "pin_memory": True}, "offload_param": {"device": "none"}},
    "activation_checkpointing": {"partition_activations": False, "cpu_checkpointing": False},
    "flops_profiler": {"enabled": False}, "wall_clock_breakdown": True,
}
AUTO = {
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1},
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "contiguous_gradients": True, "sub_group_size": 1e9, "reduce_bucket_size": "auto",
                          "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
                          "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": True},
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 2000, "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": False,
}


def write(tmp, content, name="ds_config.json"):
    path = os.path.join(tmp, name)
    with open(path, "w") as f:
        f.write(content if isinstance(content, str) else json.dumps(content))
    return path


def settings(path, *arguments):
    """What `tessera config` says: {option: (value, source)}."""
    p = tessera("config", "--config", path, *arguments, "--json")
    if not check(p.returncode == 0, "config %s %s: %s" % (path, arguments, p.stderr)):
        return {}
    return {name: (o["value"], o["source"]) for name, o in json.loads(p.stdout)["options"].items()}


def expect(got, wanted, what):
    far = {k: (got.get(k), v) for k, v in wanted.items() if got.get(k) != v}
    check(not far, "%s: got, wanted: %s" % (what, far))


def gamma(i, n, linear):
    return i / n if linear else math.log(max(0, i) + 1) / math.log(n)      # index -1 is not asked for


def deepspeed_rates(config, steps):
    """The rates of each step as deepspeed/runtime/lr_schedules.py defines them: step t has that of index t - 1, step 0 the one that the schedule starts from."""
    kind, p = config["scheduler"]["type"], config["scheduler"]["params"]
    rates = []
    for i in range(-1, steps - 1):
        if kind in ("WarmupLR", "WarmupDecayLR"):
            low, high, n = p.get("warmup_min_lr", 0), p["warmup_max_lr"], max(2, p["warmup_num_steps"])
            share = gamma(i, n, p.get("warmup_type") == "linear") if i < n else 1
            if kind == "WarmupDecayLR" and i >= n:
                share = max(0, (p["total_num_steps"] - i) / max(1, p["total_num_steps"] - n))
            rates.append(low if i < 0 else low + (high - low) * share)
        elif kind == "WarmupCosineLR":
            lr, n, total, low = config["optimizer"]["params"]["lr"], p["warmup_num_steps"], p["total_num_steps"], p.get("cos_min_ratio", 1e-4)
            done = min(1, (i - n + 1) / max(1, total - n))
            share = p.get("warmup_min_ratio", 0) + gamma(i, n, False) * (1 - p.get("warmup_min_ratio", 0)) if 0 <= i < n else low + (1 - low) * (1 + math.cos(math.pi * done)) / 2
            rates.append(0 if i < 0 else lr * share)
        elif kind == "OneCycle":
            low, high, first, second = p["cycle_min_lr"], p["cycle_max_lr"], p["cycle_first_step_size"], p["cycle_second_step_size"]
            if i >= first + second:
                size = p.get("decay_step_size", 0)
                rates.append(low / (1 + p["decay_lr_rate"] * (i - first - second + 1) / size) if size else low)
                continue
            at = (i + 1) % (first + second)
            rates.append(low + (high - low) * (at / first if at <= first else (first + second - at) / second))
        else:
            x = (i + 1) / p["lr_range_test_step_size"]
            rates.append(p["lr_range_test_min_lr"] * (1 + p["lr_range_test_step_rate"] * (math.floor(x) if p.get("lr_range_test_staircase") else x)))
    return rates


def close(a, b):
    return len(a) == len(b) and all(abs(x - y) <= 1e-12 * max(1, abs(y)) for x, y in zip(a, b))


def check_own(tmp):
    """The same options from a file, and the command line over them."""
    options = {"ranks": 2, "zero": 3, "micro-batches": 4, "optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "nesterov": True, "bucket-bytes": "8KiB", "no-shuffle": True,
               "lr-list": [0.05, 0.025], "freeze": ["layers.0.bias"], "clip-norm": 1, "steps": 4, "prefetch": 1}
    path = write(tmp, options, "own.json")
    flags = ["--ranks", 2, "--zero", 3, "--micro-batches", 4, "--optimizer", "sgd", "--lr", 0.05, "--momentum", 0.9, "--nesterov", "--bucket-bytes", "8KiB", "--lr-list", "0.05,0.025",
             "--freeze", "layers.0.bias", "--clip-norm", 1, "--steps", 4, "--prefetch", 1]
    a, b = train("mlp", "--config", path), train("mlp", *flags)
    check(a["params_hash"] == b["params_hash"] and a["losses"] == b["losses"], "options from a file give other results: %s, %s" % (a["losses"], b["losses"]))
    check(a["ranks"] == 2 and a["zero"] == 3 and a["steps"] == 4, "options from a file: %s" % {k: a[k] for k in ("ranks", "zero", "steps")})
    c = train("mlp", "--config", path, "--zero", 1, "--steps", 2)
    check(c["zero"] == 1 and c["losses"] == b["losses"][:2], "the command line does not win")
    expect(settings(path, "--zero", 1), {"zero": (1, "command line"), "ranks": (2, "file"), "bucket-bytes": (8192, "file"), "nesterov": (True, "file"), "seed": (0, "default"),
                                         "weight-decay": (0, "default"), "freeze": (["layers.0.bias"], "file"), "lr-list": ([0.05, 0.025], "file"), "reduce": ("step", "default")}, "config")
    p = tessera("compile", model("mlp"), "--config", path, "-o", os.path.join(tmp, "plan.onnx"))
    check(p.returncode == 0 and '"steps" belongs to another command' in p.stderr, "compile --config: %s" % p.stderr)
    shown = json.loads(tessera("show", os.path.join(tmp, "plan.onnx"), "--json").stdout)
    check(shown, "no plan")
    p = tessera("run", os.path.join(tmp, "plan.onnx"), "--data", inputs("mlp"), "--config", path)
    check(p.returncode == 2 and "own.json" in p.stderr and "is fixed in a plan" in p.stderr, "run PLAN --config: %s" % p.stderr)
    p = tessera("opt", model("mlp"), "--config", path, "--passes=train")
    check(p.returncode == 0 and "ReduceScatter" in p.stdout, "opt --config: %s" % p.stderr[-300:])
    p = tessera("simulate", model("mlp"), "--config", path)
    check(p.returncode == 0 and "2 ranks" in p.stdout, "simulate --config: %s" % p.stderr[-300:])
    saved = os.path.join(tmp, "saved")
    train("mlp", "--config", path, "--steps", 2, "--save", saved)
    r = train("mlp", "--resume", saved, "--ranks", 2, "--zero", 3, "--steps", 2)
    check(r["params_hash"] == b["params_hash"], "a checkpoint does not keep the options of the file")


def check_own_errors(tmp):
    for content, code, says in (({"rankss": 2}, 3, 'did you mean "ranks"'), ({"ranks": "two"}, 3, "whole number"), ({"ranks": 0}, 2, "--ranks: 0 is outside"), ({"lr": "fast"}, 3, "a number"),
                                ({"nesterov": 1}, 3, "true or false"), ({"betas": [0.9, "x"]}, 3, "list of numbers"), ({"optimizer": "adamx"}, 2, "did you mean adam"), ({"dim": [1]}, 3, "list of texts"),
                                ({"config": "x.json"}, 3, "no other file"), ({"output": "x"}, 0, ""), ("[1]", 3, "one JSON object"), ("{", 3, "line 1"), ('{"lr": 1, "lr": 2}', 3, "duplicate"),
                                ('{"lr": ' + "[" * 40 + "]" * 40 + "}", 3, "nested more than 32"), (" " * (1 << 20) + "{}", 3, "more than 1048576 bytes"),
                                ({"optimizer": "sgd", "betas": [0.9, 0.99]}, 2, "--betas means nothing to --optimizer sgd"), ({"warmup": 5, "schedule": "linear", "total-steps": 3}, 2, "longer than the 3")):
        p = tessera("config", "--config", write(tmp, content, "wrong.json"))
        check(p.returncode == code and says in p.stderr, "%.60s: exit %d: %s" % (content, p.returncode, p.stderr))
    p = tessera("config", "--config", os.path.join(tmp, "absent.json"))
    check(p.returncode == 5, "an absent file: exit %d" % p.returncode)


def check_zero2_fp16(tmp):
    path = write(tmp, ZERO2_FP16)
    expect(settings(path, "--ranks", 2), {
        "zero": (2, "file"), "micro-batches": (8, "file"), "batch": (4, "file"), "precision": ("fp16", "file"), "optimizer": ("adamw", "file"), "lr": (0.001, "file"), "betas": ([0.8, 0.999], "file"),
        "weight-decay": (3e-7, "file"), "clip-norm": (1, "file"), "prefetch": (1, "file"), "bucket-bytes": (200000000, "file"), "ranks": (2, "command line")}, "ZeRO-2 fp16")
    expect(settings(path, "--ranks", 2), {"loss-scale": ("dynamic", "file"), "loss-scale-init": (32768, "file"), "loss-scale-window": (500, "file"), "loss-scale-hysteresis": (2, "file"),
                                          "loss-scale-min": (1, "file")}, "ZeRO-2 fp16, loss scale")
    expect(settings(path, "--ranks", 2, "--loss-scale", 128), {"loss-scale": ("128", "command line"), "loss-scale-init": (65536, "default")}, "--loss-scale 128 over the file's")
    r = train("gpt_merged", "--config", path, "--ranks", 2, "--steps", 12)
    check(r["loss_scales"][0] == 32768, "ZeRO-2 fp16: scales %s" % r["loss_scales"])
    check(r["zero"] == 2 and r["precision"] == "fp16" and r["ranks"] == 2 and len(r["losses"]) == 12 and r["losses"][-1] < r["losses"][0], "ZeRO-2 fp16: %s" % r["losses"])
    check(close(r["lr"], deepspeed_rates(ZERO2_FP16, 12)), "ZeRO-2 fp16: rates %s, DeepSpeed's %s" % (r["lr"], deepspeed_rates(ZERO2_FP16, 12)))
    check("steps_per_print" in r["stderr"] and "contiguous_gradients" in r["stderr"] and "adamw, as in DeepSpeed" in r["stderr"], "ZeRO-2 fp16, notes: %s" % r["stderr"])
    rates = ",".join("%.17g" % x for x in deepspeed_rates(ZERO2_FP16, 12))
    b = train("gpt_merged", "--ranks", 2, "--zero", 2, "--micro-batches", 8, "--precision", "fp16", "--optimizer", "adamw", "--betas", "0.8,0.999", "--eps", 1e-8, "--weight-decay", 3e-7,
              "--clip-norm", 1, "--lr-list", rates, "--steps", 12, "--loss-scale-init", 32768, "--loss-scale-window", 500, "--loss-scale-hysteresis", 2)
    check(b["losses"] == r["losses"], "ZeRO-2 fp16: losses %s, by options %s" % (r["losses"], b["losses"]))


def check_zero3_bf16(tmp):
    path = write(tmp, ZERO3_BF16)
    expect(settings(path, "--ranks", 2), {
        "zero": (3, "file"), "micro-batches": (4, "file"), "batch": (4, "file"), "precision": ("bf16", "file"), "prefetch": (3, "file"), "bucket-bytes": (80000, "file"), "clip-norm": (0.5, "file"),
        "betas": ([0.9, 0.95], "file"), "weight-decay": (0.1, "file"), "profile": (True, "file")}, "ZeRO-3 bf16")
    r = train("gpt_merged", "--config", path, "--ranks", 2, "--steps", 10)
    check(r["zero"] == 3 and r["precision"] == "bf16" and r["losses"][-1] < r["losses"][0], "ZeRO-3 bf16: %s" % r["losses"])
    check(close(r["lr"], deepspeed_rates(ZERO3_BF16, 10)), "ZeRO-3 bf16: rates %s, DeepSpeed's %s" % (r["lr"], deepspeed_rates(ZERO3_BF16, 10)))
    saved = os.path.join(tmp, "bf16")
    train("gpt_merged", "--config", path, "--ranks", 2, "--steps", 6, "--save", saved)
    rest = train("gpt_merged", "--config", path, "--ranks", 2, "--resume", saved, "--steps", 4)
    check(rest["params_hash"] == r["params_hash"] and rest["lr"] == r["lr"][6:], "ZeRO-3 bf16: six steps and four are not ten")


def check_auto(tmp):
    path = write(tmp, AUTO)
    expect(settings(path, "--steps", 9, "--warmup", 3, "--lr", 0.002), {
        "zero": (3, "file"), "clip-norm": (1, "file"), "optimizer": ("adamw", "file"), "lr": (0.002, "command line"), "precision": ("f32", "default"), "micro-batches": (1, "default"),
        "weight-decay": (0.01, "default"), "batch": (0, "default")}, "auto")
    r = train("mlp", "--config", path, "--ranks", 2, "--micro-batches", 4, "--lr", 0.002, "--warmup", 3, "--steps", 9)
    same = json.loads(json.dumps(AUTO))
    same["scheduler"]["params"] = {"warmup_max_lr": 0.002, "warmup_num_steps": 3, "total_num_steps": 9}
    check(r["zero"] == 3 and close(r["lr"], deepspeed_rates(same, 9)), "auto: rates %s, DeepSpeed's %s" % (r["lr"], deepspeed_rates(same, 9)))
    r = train("mlp", "--config", path, "--precision", "bf16", "--schedule", "constant", "--steps", 2)
    check(r["precision"] == "bf16" and r["lr"] == [0.001, 0.001] and '"scheduler" is left out' in r["stderr"], "auto with --schedule: %s, %s" % (r["lr"], r["stderr"]))
    p = tessera("config", "--config", path)
    check(p.returncode == 2 and "--total-steps" in p.stderr, "auto without steps: %s" % p.stderr)


def check_observers(tmp):
    board = os.path.join(tmp, "board")
    path = write(tmp, {"tensorboard": {"enabled": True, "output_path": board, "job_name": "job"}, "wall_clock_breakdown": True, "fp16": {"enabled": True, "loss_scale": 64}})
    r = train("mlp", "--config", path, "--steps", 2)
    check(os.listdir(os.path.join(board, "job")) and "exposed" in r["stderr"] and r["loss_scales"] == [64, 64], "tensorboard, wall_clock_breakdown, loss_scale: %s" % r["stderr"])


def check_schedules(tmp):
    params = {"lr": 0.01}
    for kind, p in (("WarmupLR", {"warmup_min_lr": 0.001, "warmup_max_lr": 0.01, "warmup_num_steps": 4, "warmup_type": "linear"}), ("WarmupLR", {"warmup_max_lr": 0.01, "warmup_num_steps": 0}),
                    ("WarmupDecayLR", {"warmup_max_lr": 0.01, "warmup_num_steps": 4, "total_num_steps": 10}), ("WarmupCosineLR", {"warmup_num_steps": 4, "total_num_steps": 10, "warmup_min_ratio": 0.1}),
                    ("OneCycle", {"cycle_min_lr": 0.001, "cycle_max_lr": 0.01, "cycle_first_step_size": 3, "cycle_second_step_size": 5, "cycle_momentum": False}),
                    ("OneCycle", {"cycle_min_lr": 0.001, "cycle_max_lr": 0.01, "cycle_first_step_size": 3, "cycle_second_step_size": 2, "decay_step_size": 2, "decay_lr_rate": 0.5, "cycle_momentum": False}),
                    ("LRRangeTest", {"lr_range_test_min_lr": 0.001, "lr_range_test_step_size": 3, "lr_range_test_step_rate": 2}),
                    ("LRRangeTest", {"lr_range_test_min_lr": 0.001, "lr_range_test_step_size": 3, "lr_range_test_step_rate": 2, "lr_range_test_staircase": True})):
        config = {"optimizer": {"type": "SGD", "params": params}, "scheduler": {"type": kind, "params": p}, "gradient_clipping": 1e-9}
        r = train("linreg", "--config", write(tmp, config), "--steps", 14)
        check(close(r["lr"], deepspeed_rates(config, 14)), "%s %s: rates %s, DeepSpeed's %s" % (kind, p, r["lr"], deepspeed_rates(config, 14)))


def check_flags_off(tmp):
    """The command line wins over a flag of the file, either way."""
    path = write(tmp, {"optimizer": "sgd", "momentum": 0.9, "nesterov": True, "no-shuffle": True})
    expect(settings(path), {"nesterov": (True, "file")}, "a flag of the file")
    expect(settings(path, "--nesterov=false"), {"nesterov": (False, "command line")}, "--nesterov=false")
    expect(settings(path, "--nesterov=true"), {"nesterov": (True, "command line")}, "--nesterov=true")
    plain = train("mlp", "--optimizer", "sgd", "--momentum", 0.9, "--steps", 3)
    off = train("mlp", "--config", path, "--nesterov=false", "--steps", 3)
    check(off["params_hash"] == plain["params_hash"], "--nesterov=false trains otherwise than without it")
    r = train("mlp", "--nesterov=maybe", "--steps", 1, expect=2)
    check("=true or =false" in r["stderr"], r["stderr"])


def check_optimizers(tmp):
    for kind, p, wanted in (("AdamW", {"lr": 1e-4}, {"optimizer": "adamw", "weight-decay": 0, "lr": 1e-4}), ("Adam", {"adam_w_mode": False, "weight_decay": 0.1}, {"optimizer": "adam", "weight-decay": 0.1, "lr": 1e-3}),
                            ("SGD", {"momentum": 0.9, "nesterov": True}, {"optimizer": "sgd", "momentum": 0.9, "nesterov": True}), ("Lamb", {}, {"optimizer": "lamb", "eps": 1e-8}),
                            ("Lion", {}, {"optimizer": "lion", "lr": 1e-4, "betas": [0.9, 0.99]}), ("Adagrad", {}, {"optimizer": "adagrad", "lr": 1e-2, "eps": 1e-10}),
                            ("NAdam", {"momentum_decay": 0.01, "decoupled_weight_decay": True}, {"optimizer": "nadam", "lr": 2e-3, "momentum-decay": 0.01, "decoupled-weight-decay": True}),
                            ("RAdam", {"betas": [0.8, 0.9]}, {"optimizer": "radam", "lr": 1e-3, "betas": [0.8, 0.9]}),
                            ("Adafactor", {"eps": [1e-30, 0.01], "d": 2, "beta2_decay": -0.5},
                             {"optimizer": "adafactor", "lr": 1e-2, "eps": 1e-30, "eps2": 0.01, "clip-threshold": 2, "beta2-decay": -0.5})):
        path = write(tmp, {"optimizer": {"type": kind, "params": p}, "train_batch_size": 64})
        got = {k: v[0] for k, v in settings(path, "--ranks", 2).items()}
        expect(got, {**wanted, "clip-norm": 1, "batch": 32, "micro-batches": 2}, kind)
        r = train("mlp", "--config", path, "--ranks", 2, "--steps", 1)
        check("clipped to norm 1.0, as DeepSpeed does" in r["stderr"], "%s: clipping is not told: %s" % (kind, r["stderr"]))


    path = write(tmp, ZERO3_BF16)
    expect(settings(path, "--optimizer", "adam8"), {"optimizer": ("adam8", "command line"), "betas": ([0.9, 0.95], "file"), "weight-decay": (0.1, "file")}, "--optimizer adam8 over AdamW")
    expect(settings(path, "--optimizer", "sgd"), {"optimizer": ("sgd", "command line"), "betas": ([0.9, 0.999], "default"), "weight-decay": (0.1, "file")}, "--optimizer sgd over AdamW")


def check_checkpointing(tmp):
    key = "activation_checkpointing"
    for content, wanted in (({}, ("none", "default")), ({"partition_activations": True}, ("blocks", "file")), ({"number_checkpoints": 4}, ("blocks", "file"))):
        expect(settings(write(tmp, {"steps_per_print": 1, key: content})), {"recompute": wanted}, "%s %s" % (key, content))
    path = write(tmp, {"steps_per_print": 1, key: {"cpu_checkpointing": True}})
    expect(settings(path), {"recompute": ("blocks", "file"), "offload": ("activations=host", "file")}, "cpu_checkpointing")
    expect(settings(path, "--recompute", "all"), {"recompute": ("all", "command line")}, "--recompute over cpu_checkpointing")


def check_refused(tmp):
    for content, code, says in (
            ({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4}, 2, "train_batch_size 32 is not train_micro_batch_size_per_gpu 4 x gradient_accumulation_steps 4 x 4 ranks (--ranks) = 64"),
            ({"train_batch_size": 30, "train_micro_batch_size_per_gpu": 4}, 2, "30 / 16 leaves 14 over"), ({"train_batch_size": 2}, 2, "2 / 4 leaves 2 over"), ({"train_batch_size": 0}, 3, "at least 1"), ({"train_micro_batch_size_per_gpu": 1e15}, 3, "is above 4194304"),
            ({"train_batch_size": 2**40, "train_micro_batch_size_per_gpu": 2**22, "gradient_accumulation_steps": 2**22}, 2, "= 70368744177664"),
            ({"train_batch_sizes": 8, "steps_per_print": 1}, 3, 'did you mean "train_batch_size"'), ({"zero_optimization": {"stge": 2}}, 3, 'did you mean "zero_optimization.stage"'),
            ({"zero_optimization": {"stage": 4}}, 3, "stages 0 to 3"), ({"zero_optimization": {"stage": 3, "offload_param": {"device": "disk"}}}, 4, '"zero_optimization.offload_param.device": "disk" is refused: there are none, cpu and nvme'),
            ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, 4, 'say it as "offload_optimizer"'), ({"zero_optimization": {"zero_quantized_weights": True}}, 4, "quantized"),
            ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, 2, "both true"), ({"fp16": {"enabled": "yes"}}, 3, "true, false"), ({"optimizer": {"type": "OneBitAdam", "params": {}}}, 4, "compressed communication"),
            ({"optimizer": {"type": "Adamm"}, "steps_per_print": 1}, 4, 'did you mean "Adam"'), ({"optimizer": {"type": "Adam", "params": {"lrr": 1}}}, 3, 'did you mean "lr"'),
            ({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}}}, 4, "gradient_clipping"), ({"optimizer": {"type": "SGD", "params": {"betas": [0.9, 0.9]}}}, 3, "no key of SGD"),
            ({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}}, 3, "two numbers"), ({"optimizer": {"type": "Adam", "params": {"amsgrad": True}}}, 4, "say false"), ({"scheduler": {"type": "Cosine"}}, 4, "there are WarmupLR"),
            ({"scheduler": {"type": "WarmupLR", "params": {"warmup_steps": 3}}}, 3, "no key of WarmupLR"), ({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 1}}}, 4, "cycle_momentum"),
            ({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 10**7}}}, 4, "more than the 100000"), ({"scheduler": {"type": "WarmupDecayLR"}}, 2, "total_num_steps"),
            ({"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 1, "warmup_max_lr": 0.1}}}, 2, "1 is above the rate 0.1"), ({"activation_checkpointing": {"number_checkpoints": -1}}, 3, "number_checkpoints"),
            ({"csv_monitor": {"enabled": True}}, 4, "--metrics"), ({"flops_profiler": {"enabled": True}}, 4, "flops_profiler"), ({"gradient_clipping": -1}, 3, "at least 0"), ({"amp": {"enabled": True}}, 4, "bf16")):
        p = tessera("config", "--config", write(tmp, content), "--ranks", 4)
        check(p.returncode == code and says in p.stderr, "%s: exit %d, wanted %d with '%s': %s" % (content, p.returncode, code, says, p.stderr))
    p = tessera("run", model("gpt_merged"), "--data", inputs("gpt_merged"), "--config", write(tmp, {"train_micro_batch_size_per_gpu": 8}))
    check(p.returncode == 2 and "train_micro_batch_size_per_gpu: --batch 8: the model fixes" in p.stderr, "a batch that the model does not have: %s" % p.stderr)
    path = write(tmp, ZERO2_FP16)
    for arguments, says in ((["--ranks", 2, "--batch", 8, "--micro-batches", 8], "32 is not --batch 8"), (["--lr", 0.1], "warmup_max_lr\" 0.001 decides the rate, and --lr says 0.1")):
        p = tessera("config", "--config", path, *arguments)
        check(p.returncode == 2 and says in p.stderr, "%s: %s" % (arguments, p.stderr))


def check_text(tmp):
    """Text and JSON say the same; a model's own optimizer is told."""
    path = write(tmp, ZERO3_BF16)
    text = tessera("config", "--config", path, "--ranks", 2).stdout
    for line in (r"  ranks +2 +command line", r"  zero +3 +.*ds_config.json: zero_optimization.stage", r"  micro-batches +4 +.*gradient_accumulation_steps 2 x 2 ranks", r"  lr-list .*\(10 numbers\)",
                 r"  zero_optimization.sub_group_size +of offload"):
        check(re.search("^" + line, text, re.M), "config does not say '%s':\n%s" % (line, text))
    own = os.path.join(HERE, "..", "training_graphs", "ti_linreg_momentum", "model.onnx")
    options = json.loads(tessera("config", own, "--json").stdout)["options"]
    check(options["optimizer"] == {"value": "model_momentum", "source": "model", "origin": "model", "read": True} and options["lr"]["source"] == "model", "the model's optimizer: %s" % options["optimizer"])
    check(json.loads(tessera("config", own, "--optimizer", "adam", "--json").stdout)["options"]["lr"]["source"] == "default", "--optimizer over the model's")
    p = tessera("config", "--config", path, "--json")
    unused = json.loads(p.stdout)["unused"]
    check(unused.get("zero_optimization.offload_optimizer.pin_memory") == "of offload, which takes windows of --offload-window" and len(unused) == 7, "unused keys: %s" % unused)


with tempfile.TemporaryDirectory() as tmp:
    check_own(tmp)
    check_own_errors(tmp)
    check_zero2_fp16(tmp)
    check_zero3_bf16(tmp)
    check_auto(tmp)
    check_observers(tmp)
    check_schedules(tmp)
    check_flags_off(tmp)
    check_optimizers(tmp)
    check_checkpointing(tmp)
    check_refused(tmp)
    check_text(tmp)
finish()
