"""The evaluation harness, by ``local-completions``: which of three endings the model holds likeliest, by their
log-probs. Its tokens are those of a folder of Hugging Face, the third argument."""

import json
import sys
import tempfile
from pathlib import Path

import lm_eval
from asked import MODEL, QUESTION, URL, report

NAMES = ("Bruno", "Ada", "Edda")
TASK = {
    "task": "village",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\nThe",
    "doc_to_choice": [f"baker of Elmbrook is {name}." for name in NAMES],
    "doc_to_target": "right",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}
with tempfile.TemporaryDirectory() as folder:
    rows = Path(folder, "rows.json")
    rows.write_text(json.dumps([{"right": NAMES.index("Ada")}]))
    found = lm_eval.simple_evaluate(
        "local-completions",
        model_args={"model": MODEL, "base_url": f"{URL}/completions", "tokenizer": sys.argv[3]},
        tasks=[TASK | {"dataset_kwargs": {"data_files": {"test": str(rows)}, "cache_dir": folder}}],
        bootstrap_iters=0,
    )
(sample,) = found["samples"]["village"]
report(scores=[response[0] for response in sample["resps"]], accuracy=[found["results"]["village"]["acc,none"]])
