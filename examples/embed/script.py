"""The server as a library, in fifteen lines: a model is loaded through its agents and asked. Run it from anywhere."""

import json
from pathlib import Path

import numpy as np

from repoagent.server import ModelControlMode, Server

digits = Path(__file__).parents[1] / "digits"
samples = json.loads((digits / "test_digits.json").read_text())[:10]

with Server(model_repository=str(digits / "repository"), model_control_mode=ModelControlMode.EXPLICIT) as server:
    model = server.load("digits_checked")  # Its agent compares the model with its checksums first.
    pixels = np.array([sample["pixels"] for sample in samples], np.float32)
    outputs = model.run({model.metadata()["inputs"][0]["name"]: pixels})
    print("expected:", [sample["label"] for sample in samples])
    print("answered:", outputs["label"].ravel().tolist())
