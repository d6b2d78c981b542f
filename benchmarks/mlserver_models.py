"""MLServer's runtimes for its comparisons with us. They run in its own environment; nothing of repoagent is there."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput


class Identity(MLModel):  # type: ignore[misc]  # MLServer is not installed where types are checked
    """One FP32 tensor, as it came."""

    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        given = payload.inputs[0]
        output = ResponseOutput(name="OUTPUT0", shape=given.shape, datatype=given.datatype, data=given.data)
        return InferenceResponse(model_name=self.name, outputs=[output])


class OnnxModel(MLModel):  # type: ignore[misc]
    """The ONNX file at ``uri`` on ONNX Runtime with one thread, as repoagent runs it; answers with all outputs."""

    async def load(self) -> bool:
        import onnxruntime

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
