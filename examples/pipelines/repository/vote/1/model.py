"""Business logic in Python: asks another model three times, with a little noise, and takes the answer most given."""

import numpy as np
import triton_python_backend_utils as pb_utils

NOISE = (0, 20, 40)


class TritonPythonModel:
    def initialize(self, args):
        self.noise = np.random.default_rng(0)

    def execute(self, requests):
        return [self.vote(pb_utils.get_input_tensor_by_name(request, "image").as_numpy()) for request in requests]

    def vote(self, image):
        answers = [self.ask(image if not level else self.blurred(image, level)) for level in NOISE]
        digit = np.bincount(answers).argmax()
        return pb_utils.InferenceResponse([pb_utils.Tensor("digit", np.array([digit], np.int64))])

    def blurred(self, image, level):
        return np.clip(image.astype(np.int16) + self.noise.integers(-level, level + 1, image.shape), 0, 255)

    def ask(self, image):
        request = pb_utils.InferenceRequest(
            model_name="read_digit",
            requested_output_names=["digit"],
            inputs=[pb_utils.Tensor("image", image.astype(np.uint8)[np.newaxis])],
        )
        response = request.exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return int(pb_utils.get_output_tensor_by_name(response, "digit").as_numpy()[0, 0])
