"""A script that owns its loop and marks its steps.

hostgap profile benchmarks/targets/script.py -- --tokens 100000
"""

from __future__ import annotations

import argparse

import torch

import hostgap

parser = argparse.ArgumentParser()
parser.add_argument("--tokens", type=int, default=100_000)
tokens = parser.parse_args().tokens

model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(32))).cuda()
x = torch.randn(1, 256, device="cuda")
for _ in range(tokens):
    hostgap.step()
    with torch.no_grad():
        x = torch.tanh(model(x))
    if x.sum().item() > 1e9:
        break
