"""Models that call models: an ensemble, and one with logic of its own in Python. Run it from anywhere.

``read_digit`` is an ensemble of ``scale`` (Python) and ``digits_checked`` (ONNX, from the other example, whose agent
compares checksums first). ``vote`` asks ``read_digit`` three times.
"""

import json
from pathlib import Path

import numpy as np

from repoagent.server import ModelControlMode, Server

here = Path(__file__).parent
digits = here.parent / "digits"
samples = json.loads((digits / "test_digits.json").read_text())[:10]
images = [np.array(sample["pixels"], np.float32) * (255 / 16) for sample in samples]

repositories = [str(here / "repository"), str(digits / "repository")]
with Server(model_repository=repositories, model_control_mode=ModelControlMode.EXPLICIT) as server:
    pipeline = server.load("read_digit")  # Brings its two members with it.
    vote = server.load("vote")
    print("expected:", [sample["label"] for sample in samples])
    batches = [image.astype(np.uint8)[np.newaxis] for image in images]
    print("pipeline:", [int(pipeline.run({"image": batch})["digit"].item()) for batch in batches])
    print("vote:", [int(vote.run({"image": batch[0]})["digit"].item()) for batch in batches])
    server.unload("vote")
    server.unload("read_digit", unload_dependents=True)
    print("left:", [entry["name"] for entry in server.core.index(ready_only=True)])
