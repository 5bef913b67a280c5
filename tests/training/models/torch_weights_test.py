#!/usr/bin/env python3
"""torch_weights_test.py TOOL MODEL_LOGITS: torchvision's weights, converted by tools/torch_weights.py, give torchvision's logits, and are unchanged when
converted back."""
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile

import torch
import torchvision

tool, program = sys.argv[1:]
torch.manual_seed(1)
torch.set_num_threads(1)


def run_tool(given, wanted, output):
    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = [tool, given, wanted]
    runpy.run_path(tool, run_name="__main__")


def convert(given, wanted):
    """Runs the tool in a fork of this process, because importing torch takes 2 s. Returns its exit code and its output."""
    process = multiprocessing.get_context("fork").Process(target=run_tool, args=(given, wanted, path("output")))
    process.start()
    process.join()
    with open(path("output"), encoding="utf-8") as file:
        return process.exitcode, file.read()


def check(holds, what):
    print("ok" if holds else "FAILED", what)
    if not holds:
        sys.exit(1)


with tempfile.TemporaryDirectory() as folder:
    def path(name):
        return os.path.join(folder, name)

    images = torch.randn(2, 3, 64, 64)
    torch.save({"input": images}, path("input.pth"))
    subprocess.run([sys.executable, tool, path("input.pth"), path("input.safetensors")], check=True)
    for kind, number, model in (("resnet", 18, torchvision.models.resnet18()), ("efficientnet", 0, torchvision.models.efficientnet_b0())):
        for module in model.modules():  # random statistics, as after a training
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
                torch.nn.init.uniform_(module.weight, 0.15, 0.45) if kind == "resnet" else None
        state = model.eval().state_dict()
        # Saved as the usual ImageNet example does with DistributedDataParallel.
        torch.save({"epoch": 3, "state_dict": {f"module.{name}": value for name, value in state.items()}}, path("model.pth"))
        check(f"{len(state)} tensors" in convert(path("model.pth"), path("model.safetensors"))[1], f"{kind}: converted")
        files = [path(name) for name in ("model.safetensors", "input.safetensors", "copy.safetensors")]
        output = subprocess.run([program, kind, *files, str(number)], stdout=subprocess.PIPE, check=True, text=True).stdout
        ours = torch.tensor([[float(word) for word in line.split()] for line in output.splitlines()])
        with torch.no_grad():
            difference = (ours - model(images)).abs().max().item()
        check(difference < 1e-5, f"{kind}: logits differ by {difference:.1e}")
        check(convert(path("copy.safetensors"), path("copy.pth"))[0] == 0, f"{kind}: what Paceline wrote is converted back")
        back = torch.load(path("copy.pth"))
        model.load_state_dict(back)  # strict: an error names missing weights
        check(all(torch.equal(state[name], value) for name, value in back.items()), f"{kind}: nothing has changed")

    types = {str(dtype): torch.ones(3).to(dtype) for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool)}
    torch.save({**types, "none": torch.empty(0, 4), "turned": torch.arange(6).reshape(2, 3).t(), "one": torch.tensor(5)}, path("types.pth"))
    convert(path("types.pth"), path("types.safetensors"))
    convert(path("types.safetensors"), path("again.pth"))
    before, after = torch.load(path("types.pth")), torch.load(path("again.pth"))
    check(all(torch.equal(before[n], after[n]) and before[n].dtype == after[n].dtype for n in before) and len(before) == len(after), "all types")
    torch.save({"a": [1, 2]}, path("list.pth"))
    for given, wanted, words in (("list.pth", "x.safetensors", "not a state dict"), ("types.pth", "x.pth", "one of the two files")):
        code, output = convert(path(given), path(wanted))
        check(code == 1 and words in output, f"refused: {words}")
