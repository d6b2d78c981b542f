"""Converters of decision trees: the files of XGBoost and LightGBM, read and written without their libraries."""
