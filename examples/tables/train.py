"""Trains a forest that knows the sum of its six numbers, and saves it with skops: run by the Python of an environment.

python train.py model.skops
"""

import sys

import numpy as np
import skops.io
from sklearn.ensemble import RandomForestClassifier

rows = np.random.default_rng(0).normal(size=(2000, 6)).astype(np.float32)
forest = RandomForestClassifier(20, random_state=0).fit(rows, rows.sum(axis=1) > 0)
skops.io.dump(forest, sys.argv[1])
