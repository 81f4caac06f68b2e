#!/usr/bin/env python3
"""Writes optimizer_references.json: losses and parameters of PyTorch in float64, and learning rates of PyTorch and transformers, for the cases of
optimizer_case.py. Needs torch (made with 2.13.0) and transformers.

    make_optimizer_references.py
"""
import json
import os

import torch

from optimizer_case import CASES, PEAK, SCHEDULES, SHAPES, TOTAL, batches, digest, params

HERE = os.path.dirname(os.path.abspath(__file__))


def train(name, settings, dtype=torch.float64):
    settings = dict(settings)
    torch.set_default_dtype(dtype)        # NAdam's product of momenta has that type
    groups, vectors = settings.pop("groups", {}), settings.pop("vectors", None)
    p = {n: torch.tensor(v, dtype=dtype, requires_grad=True) for n, v in params().items()}
    mine = [n for n in SHAPES if not vectors or len(SHAPES[n]) == 2]
    optimizers = [getattr(torch.optim, name)([dict(params=[p[n]], **groups.get(n, {})) for n in mine], **settings)]
    if vectors:
        optimizers.append(getattr(torch.optim, vectors[0])([p[n] for n in SHAPES if n not in mine], **vectors[1]))
    xs, ys = (torch.tensor(a, dtype=dtype) for a in batches())
    losses = []
    for x, y in zip(xs, ys):
        loss = ((torch.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"] - y) ** 2).mean()
        for o in optimizers:
            o.zero_grad()
        loss.backward()
        for o in optimizers:
            o.step()
        losses.append(loss.item())
    return {"losses": losses, "digest": digest({n: v.detach().numpy() for n, v in p.items()})}


def rates(library, name, settings):
    """The learning rate of each step, and of some after the end where there are any."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)
    if library == "hf":
        from transformers import optimization
        schedule = getattr(optimization, name)(optimizer, **settings)
    else:
        schedule = getattr(torch.optim.lr_scheduler, name)(optimizer, **settings)
    out = []
    for step in range(TOTAL):
        out.append(schedule.get_last_lr()[0])
        optimizer.step()
        if step + 1 < TOTAL:
            schedule.step()
    return out


def main():
    import transformers
    out = {"torch": torch.__version__, "transformers": transformers.__version__, "schedules": {n: rates(*where) for n, (_, where) in SCHEDULES.items()},
           "cases": {name: train(*reference) for name, (_, reference) in CASES.items() if reference}}
    with open(os.path.join(HERE, "optimizer_references.json"), "w") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
