"""The problem on which optimizers and schedules are compared with PyTorch: a small regression whose first matrix spans chunks and shards, and
which options of ours stand for which settings there. Shared by test_optimizers.py and make_optimizer_references.py."""
import numpy as np

STEPS, BATCH, IN, HIDDEN, OUT = 12, 8, 40, 64, 5
SHAPES = {"w1": (IN, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, OUT), "b2": (OUT,)}


def params():
    rng = np.random.default_rng(7)
    return {n: (rng.standard_normal(s) * 0.3).astype(np.float32) for n, s in SHAPES.items()}


def batches():
    """[STEPS, BATCH, ...]: inputs and targets."""
    rng = np.random.default_rng(8)
    return (rng.standard_normal((STEPS, BATCH, IN)).astype(np.float32), rng.standard_normal((STEPS, BATCH, OUT)).astype(np.float32))


def write_model(path):
    from onnx import TensorProto, helper, numpy_helper, save
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["h"], name="first"), helper.make_node("Add", ["h", "b1"], ["hb"], name="bias1"),
             helper.make_node("Tanh", ["hb"], ["t"], name="tanh"), helper.make_node("MatMul", ["t", "w2"], ["o"], name="second"),
             helper.make_node("Add", ["o", "b2"], ["ob"], name="bias2"), helper.make_node("Sub", ["ob", "y"], ["d"], name="sub"),
             helper.make_node("Mul", ["d", "d"], ["q"], name="square"), helper.make_node("ReduceMean", ["q"], ["loss"], keepdims=0, name="mean")]
    value = lambda n, s: helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
    graph = helper.make_graph(nodes, "g", [value("x", ["n", IN]), value("y", ["n", OUT])], [value("loss", [])],
                              [numpy_helper.from_array(v, n) for n, v in params().items()])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def gradients(p, x, y):
    """Loss and gradients by hand, in the parameters' type."""
    t = np.tanh(x @ p["w1"] + p["b1"])
    d = t @ p["w2"] + p["b2"] - y
    do = 2 * d / d.size
    dh = (do @ p["w2"].T) * (1 - t * t)
    return (d * d).mean(), {"w1": x.T @ dh, "b1": dh.sum(0), "w2": t.T @ do, "b2": do.sum(0)}


def digest(final):
    """Two numbers a parameter that tell how far it went, and where."""
    start, rng = params(), np.random.default_rng(9)
    out = {}
    for n in SHAPES:
        moved = np.asarray(final[n], np.float64) - start[n]
        out[n] = [float(np.sqrt((moved ** 2).sum())), float((moved * rng.standard_normal(moved.shape)).sum())]
    return out


# name: (our options, optimizer class and its settings in torch.optim; "groups": settings of single parameters)
CASES = {
    "sgd": (["--optimizer", "sgd", "--lr", 0.1], ("SGD", dict(lr=0.1))),
    "sgd_nesterov": (["--optimizer", "sgd", "--lr", 0.05, "--momentum", 0.9, "--nesterov", "--weight-decay", 0.01],
                     ("SGD", dict(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01))),
    "adam": (["--optimizer", "adam", "--lr", 0.01, "--weight-decay", 0.05], ("Adam", dict(lr=0.01, weight_decay=0.05))),
    "adamw": (["--optimizer", "adamw", "--lr", 0.01, "--betas", "0.8,0.95"], ("AdamW", dict(lr=0.01, betas=(0.8, 0.95), weight_decay=0.01))),
    "adamw_groups": (["--optimizer", "adamw", "--lr", 0.01, "--weight-decay", 0.3, "--group", "w2:lr-scale=0.1,weight-decay=0.5", "--no-decay", "@vectors"],
                     ("AdamW", dict(lr=0.01, weight_decay=0.3, groups={"w2": dict(lr=0.001, weight_decay=0.5), "b1": dict(weight_decay=0), "b2": dict(weight_decay=0)}))),
    "adagrad": (["--optimizer", "adagrad", "--lr", 0.05, "--lr-decay", 0.1, "--initial-accumulator", 0.1],
                ("Adagrad", dict(lr=0.05, lr_decay=0.1, initial_accumulator_value=0.1))),
    "rmsprop": (["--optimizer", "rmsprop", "--lr", 0.005, "--momentum", 0.5], ("RMSprop", dict(lr=0.005, momentum=0.5))),
    "nadam": (["--optimizer", "nadam", "--lr", 0.02, "--weight-decay", 0.05], ("NAdam", dict(lr=0.02, weight_decay=0.05))),
    "nadam_decoupled": (["--optimizer", "nadam", "--lr", 0.02, "--weight-decay", 0.3, "--decoupled-weight-decay", "--momentum-decay", 0.5, "--betas", "0.8,0.95"],
                        ("NAdam", dict(lr=0.02, weight_decay=0.3, decoupled_weight_decay=True, momentum_decay=0.5, betas=(0.8, 0.95)))),
    "radam": (["--optimizer", "radam", "--lr", 0.02, "--weight-decay", 0.05], ("RAdam", dict(lr=0.02, weight_decay=0.05))),       # 5 steps of momentum alone
    "radam_decoupled": (["--optimizer", "radam", "--lr", 0.02, "--weight-decay", 0.3, "--decoupled-weight-decay", "--betas", "0.8,0.6"],
                        ("RAdam", dict(lr=0.02, weight_decay=0.3, decoupled_weight_decay=True, betas=(0.8, 0.6)))),               # always that
    "adafactor_options": (["--optimizer", "adafactor", "--lr", 0.05, "--beta2-decay", -0.5, "--eps", 0.003, "--eps2", 0.2, "--clip-threshold", 1.3],
                          ("Adafactor", dict(lr=0.05, beta2_decay=-0.5, eps=(0.003, 0.2), d=1.3))),
    "adafactor": (["--optimizer", "adafactor", "--lr", 0.05, "--weight-decay", 0.02], ("Adafactor", dict(lr=0.05, weight_decay=0.02))),
    # PyTorch iterates in bfloat16, so that its results are compared loosely; the formula in float64 is in test_optimizers.py
    "muon": (["--optimizer", "muon", "--lr", 0.02, "--weight-decay", 0.1, "--group", "@vectors:optimizer=sgd,weight-decay=0"],
             ("Muon", dict(lr=0.02, weight_decay=0.1, vectors=("SGD", dict(lr=0.02))))),
}
LOOSE = {"muon": 3e-3}

PEAK, TOTAL, WARMUP = 0.5, 40, 7
# name: (our options, where the same schedule is: in torch.optim.lr_scheduler or in transformers, and its settings)
SCHEDULES = {
    "constant": ([], ("hf", "get_constant_schedule", {})),
    "constant_warmup": (["--warmup", WARMUP], ("hf", "get_constant_schedule_with_warmup", dict(num_warmup_steps=WARMUP))),
    "linear": (["--schedule", "linear", "--warmup", WARMUP, "--total-steps", TOTAL],
               ("hf", "get_linear_schedule_with_warmup", dict(num_warmup_steps=WARMUP, num_training_steps=TOTAL))),
    "cosine": (["--schedule", "cosine", "--warmup", WARMUP, "--total-steps", TOTAL],
               ("hf", "get_cosine_schedule_with_warmup", dict(num_warmup_steps=WARMUP, num_training_steps=TOTAL))),
    "cosine_annealing": (["--schedule", "cosine", "--total-steps", TOTAL, "--min-lr", 0.01], ("torch", "CosineAnnealingLR", dict(T_max=TOTAL, eta_min=0.01))),
    "step": (["--schedule", "step", "--step-every", 9, "--step-factor", 0.3], ("torch", "StepLR", dict(step_size=9, gamma=0.3))),
    "one_cycle": (["--schedule", "one-cycle", "--total-steps", TOTAL], ("torch", "OneCycleLR", dict(max_lr=PEAK, total_steps=TOTAL))),
    "inverse_sqrt": (["--schedule", "inverse-sqrt", "--warmup", WARMUP], ("hf", "get_inverse_sqrt_schedule", dict(num_warmup_steps=WARMUP))),
    "polynomial": (["--schedule", "polynomial", "--warmup", WARMUP, "--total-steps", TOTAL, "--min-lr", 0.02, "--power", 2],
                   ("hf", "get_polynomial_decay_schedule_with_warmup", dict(num_warmup_steps=WARMUP, num_training_steps=TOTAL, lr_end=0.02, power=2))),
}
