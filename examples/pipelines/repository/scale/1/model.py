"""Grey values of 0 to 255 become the 0 to 16 that the digits model was trained with."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.scale(pb_utils.get_input_tensor_by_name(request, "bytes").as_numpy()) for request in requests]

    def scale(self, values):
        scaled = pb_utils.Tensor("scaled", values.astype(np.float32) * np.float32(16 / 255))
        return pb_utils.InferenceResponse([scaled])
