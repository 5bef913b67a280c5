#!/usr/bin/python3
"""Computes with Python's PyTorch what optim_parity_test.cpp compares with.

    optim_reference.py FOLDER

It writes one-dimensional files of little-endian float64 to FOLDER: NAME.f64. The inputs are start (the parameters in one row) and gradients
(one row for each step). LAMB and LARS, which PyTorch does not have, are computed with their papers' formulas in float64.
"""
import inspect
import os
import sys

import torch
from torch.optim import lr_scheduler

FOLDER = sys.argv[1]
SHAPES = [(37, 5), (3,), (4, 3, 3, 3)]
STEPS = 20
RATES, MOMENTUM = [0.5, 0.1], 0.9


def write(name, *parts):
    row = torch.cat([torch.as_tensor(part, dtype=torch.float64).flatten() for part in parts])
    row.contiguous().numpy().tofile(os.path.join(FOLDER, name + ".f64"))


def flat(tensors):
    return torch.cat([tensor.detach().flatten().to(torch.float64) for tensor in tensors])


torch.manual_seed(3)
START = [torch.randn(shape) for shape in SHAPES]
GRADIENTS = [[torch.randn(shape) for shape in SHAPES] for _ in range(STEPS)]
write("start", flat(START))
write("gradients", *[flat(step) for step in GRADIENTS])


def parameters(dtype=torch.float32):
    return [tensor.clone().to(dtype).requires_grad_() for tensor in START]


def train(name, optimizer, params, each_step=lambda: None, gradient_type=torch.float32):
    """Writes the parameters after every step."""
    rows = []
    for step in GRADIENTS:
        for parameter, gradient in zip(params, step):
            parameter.grad = gradient.to(gradient_type).to(parameter.dtype)
        optimizer.step()
        each_step()
        rows.append(flat(params))
    if name:
        write(name, *rows)
    return rows


def optimizers():
    def groups(params, first, second):
        return [{"params": [params[0], params[2]], **first}, {"params": [params[1]], **second}]

    p = parameters()
    train("adam", torch.optim.Adam(groups(p, {"lr": 1e-2, "weight_decay": 0.1}, {"lr": 1e-3, "betas": (0.8, 0.99)})), p)
    p = parameters()
    train("adamw", torch.optim.AdamW(groups(p, {"lr": 1e-2}, {"lr": 1e-3, "weight_decay": 0.3, "eps": 1e-6})), p)
    p = parameters()
    train("sgd", torch.optim.SGD(groups(p, {"lr": 0.05, "momentum": 0.9, "dampening": 0.2}, {"lr": 0.1, "weight_decay": 0.01}), lr=1), p)


class LAMB(torch.optim.Optimizer):
    def step(self):
        for group in self.param_groups:
            for w in group["params"]:
                s = self.state[w]
                s["t"] = s.get("t", 0) + 1
                s["m"] = 0.9 * s.get("m", 0) + 0.1 * w.grad
                s["v"] = 0.999 * s.get("v", 0) + 0.001 * w.grad**2
                u = s["m"] / (1 - 0.9 ** s["t"]) / ((s["v"] / (1 - 0.999 ** s["t"])).sqrt() + 1e-6)
                u = u + group["weight_decay"] * w.data
                w.data -= group["lr"] * w.data.norm() / u.norm() * u


class LARS(torch.optim.Optimizer):
    def step(self):
        for group in self.param_groups:
            for w in group["params"]:
                s = self.state[w]
                decay = group["weight_decay"]
                rate = group["lr"] * 1e-3 * w.data.norm() / (w.grad.norm() + decay * w.data.norm())
                s["v"] = 0.9 * s.get("v", 0) + rate * (w.grad + decay * w.data)
                w.data -= s["v"]


def large_batch_optimizers():
    p = parameters(torch.float64)
    train("lamb", LAMB([{"params": p}], {"lr": 1e-2, "weight_decay": 0.1}), p)
    p = parameters(torch.float64)
    train("lars", LARS([{"params": p}], {"lr": 20, "weight_decay": 0.01}), p)


def sixteen_bits():
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        masters = [tensor.to(dtype).float().requires_grad_() for tensor in START]
        rows = train(None, torch.optim.AdamW(masters, lr=1e-3), masters, gradient_type=dtype)
        write(name, *[row.float().to(dtype) for row in rows])


def schedule(name, make, step=lambda scheduler, i: scheduler.step(), steps=40):
    """Writes the rates of both groups, and the momentum of the second group, before every step and at the end."""
    groups = [{"params": [torch.zeros(2)], "lr": RATES[0]}, {"params": [torch.zeros(3)], "lr": RATES[1]}]
    optimizer = torch.optim.SGD(groups, lr=1, momentum=MOMENTUM)
    scheduler = make(optimizer)
    rows = []
    for i in range(steps + 1):
        rows.append([group["lr"] for group in optimizer.param_groups] + [optimizer.param_groups[1]["momentum"]])
        if i < steps:
            optimizer.step()
            step(scheduler, i)
    write("schedule." + name, *rows)


def schedules():
    schedule("step", lambda o: lr_scheduler.StepLR(o, 7))
    schedule("multi_step", lambda o: lr_scheduler.MultiStepLR(o, [5, 20, 12, 20], gamma=0.3))
    schedule("cosine", lambda o: lr_scheduler.CosineAnnealingLR(o, 15, eta_min=0.01))
    schedule("warm_up", lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=6), lr_scheduler.CosineAnnealingLR(o, 30)], [6]))
    schedule("one_cycle", lambda o: lr_scheduler.OneCycleLR(o, [1.0, 0.3], total_steps=40))
    schedule("three_phase", lambda o: lr_scheduler.OneCycleLR(
        o, 2.0, total_steps=40, pct_start=0.25, anneal_strategy="linear", three_phase=True, base_momentum=0.8, max_momentum=0.9))
    torch.manual_seed(5)
    metrics = [1 / (1 + 0.2 * min(i, 14)) + 0.05 * torch.rand(()).item() for i in range(40)]
    write("metrics", metrics)
    by_metric = lambda scheduler, i: scheduler.step(metrics[i])
    schedule("plateau", lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=3), by_metric)
    schedule("plateau_max", lambda o: lr_scheduler.ReduceLROnPlateau(
        o, "max", factor=0.5, patience=1, threshold=0.01, threshold_mode="abs", cooldown=2, min_lr=0.04), by_metric)


def clipping():
    for power in (0.5, 1.0, 2.0, 3.0, float("inf")):
        p = parameters()
        for parameter, gradient in zip(p, GRADIENTS[0]):
            parameter.grad = gradient.clone()
        norm = torch.nn.utils.clip_grad_norm_(p, 1.5, power)
        write(f"clip_norm.{power}", norm, flat([parameter.grad for parameter in p]))
    p = parameters()
    for parameter, gradient in zip(p, GRADIENTS[0]):
        parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_value_(p, 0.7)
    write("clip_value", flat([parameter.grad for parameter in p]))


def average():
    module = torch.nn.ParameterList([torch.nn.Parameter(tensor.clone()) for tensor in START])
    averaged = torch.optim.swa_utils.AveragedModel(module, avg_fn=lambda a, p, n: 0.9 * a + (1 - 0.9) * p)
    rows = []
    train(None, torch.optim.SGD(module.parameters(), lr=0.1), list(module.parameters()),
          lambda: (averaged.update_parameters(module), rows.append(flat(averaged.module.parameters()))))
    write("average", *rows)


def autocast():
    """Writes the loss and the gradient of the first weight."""
    torch.manual_seed(7)
    first, second = torch.randn(16, 8), torch.randn(4, 16)
    x = torch.randn(5, 8)
    write("autocast.inputs", first, second, x)
    first.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = torch.nn.functional.linear(x, first).relu()
        loss = torch.nn.functional.linear(hidden, second).float().square().mean()
    loss.backward()
    write("autocast", loss.detach(), first.grad)


def scaler():
    """Writes the defaults; then, if this PyTorch scales on the CPU, the scale after each of several steps."""
    defaults = inspect.signature(torch.cuda.amp.GradScaler.__init__).parameters
    write("scaler.defaults", [defaults[name].default for name in ("init_scale", "growth_factor", "backoff_factor", "growth_interval")])
    overflows = [0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0]
    write("scaler.overflows", overflows)
    if not hasattr(torch.amp, "GradScaler"):
        write("scaler.scales", [])
        return
    scaler = torch.amp.GradScaler("cpu", growth_interval=3)
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scales = []
    for overflow in overflows:
        optimizer.zero_grad()
        scaler.scale((weight * (float("inf") if overflow else 1)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    write("scaler.scales", scales)


def defaults():
    """Writes the defaults that optim_parity_test.cpp lists."""
    def of(function, *names):
        found = inspect.signature(function).parameters
        return [found[name].default for name in names]

    adam = of(torch.optim.Adam.__init__, "lr", "betas", "eps", "weight_decay")
    write("defaults.adam", [adam[0], *adam[1], adam[2], adam[3]])
    adamw = of(torch.optim.AdamW.__init__, "lr", "betas", "eps", "weight_decay")
    write("defaults.adamw", [adamw[0], *adamw[1], adamw[2], adamw[3]])
    write("defaults.sgd", [float(value) for value in of(torch.optim.SGD.__init__, "momentum", "dampening", "weight_decay", "nesterov")])
    rate, = of(torch.optim.SGD.__init__, "lr")
    write("defaults.sgd_rate", [rate] if isinstance(rate, float) else [])
    ema = getattr(torch.optim.swa_utils, "get_ema_multi_avg_fn", None)
    write("defaults.ema", of(ema, "decay") if ema else [])
    write("defaults.step", of(lr_scheduler.StepLR.__init__, "gamma") + of(lr_scheduler.MultiStepLR.__init__, "gamma"))
    write("defaults.cosine", of(lr_scheduler.CosineAnnealingLR.__init__, "eta_min") + of(lr_scheduler.LinearLR.__init__, "start_factor"))
    write("defaults.one_cycle", [float(value) for value in of(
        lr_scheduler.OneCycleLR.__init__, "pct_start", "cycle_momentum", "base_momentum", "max_momentum", "div_factor",
        "final_div_factor", "three_phase")])
    write("defaults.plateau", of(lr_scheduler.ReduceLROnPlateau.__init__, "factor", "patience", "threshold", "cooldown", "min_lr", "eps"))


torch.set_num_threads(1)
for part in (optimizers, large_batch_optimizers, sixteen_bits, schedules, clipping, average, autocast, scaler, defaults):
    part()
