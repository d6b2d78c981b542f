"""Building plans from ONNX: settings, profiles, the parser's complaints, attention, progress."""
