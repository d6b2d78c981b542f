"""Models of tables: scikit-learn, CatBoost and folders of MLflow become ONNX."""
