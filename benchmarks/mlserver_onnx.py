"""An MLServer runtime for serving_peers.py: runs an ONNX file on ONNX Runtime with one thread, as repoagent does.

Runs in MLServer's own virtual environment; nothing of repoagent is there.
"""

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class OnnxModel(MLModel):  # type: ignore[misc]  # MLServer is not installed where types are checked
    """The model whose file is at ``uri``; answers with all outputs."""

    async def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            self.settings.parameters.uri, options, providers=["CPUExecutionProvider"]
        )
        self._outputs = [output.name for output in self._session.get_outputs()]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        feeds = {item.name: NumpyCodec.decode_input(item) for item in payload.inputs}
        results = zip(self._outputs, self._session.run(self._outputs, feeds), strict=True)
        outputs = [NumpyCodec.encode_output(name, array) for name, array in results]
        return InferenceResponse(model_name=self.name, outputs=outputs)
