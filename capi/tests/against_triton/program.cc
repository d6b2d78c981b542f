// A program over Triton's own header: loads models, infers, and prints what it gets. Arguments: a repository, a
// directory of agents, and models.
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "triton/core/tritonserver.h"

namespace {

struct Answer {
  std::mutex lock;
  std::condition_variable changed;
  TRITONSERVER_InferenceResponse* response = nullptr;
  bool released = false;
};

void Must(TRITONSERVER_Error* error)
{
  if (error != nullptr) {
    std::printf("error: %s: %s\n", TRITONSERVER_ErrorCodeString(error), TRITONSERVER_ErrorMessage(error));
    std::exit(1);
  }
}

TRITONSERVER_Error* Allocate(
    TRITONSERVER_ResponseAllocator*, const char*, size_t size, TRITONSERVER_MemoryType, int64_t, void*, void** buffer,
    void** userp, TRITONSERVER_MemoryType* type, int64_t* id)
{
  *buffer = std::malloc(size);
  *userp = nullptr;
  *type = TRITONSERVER_MEMORY_CPU;
  *id = 0;
  return nullptr;
}

TRITONSERVER_Error* Free(
    TRITONSERVER_ResponseAllocator*, void* buffer, void*, size_t, TRITONSERVER_MemoryType, int64_t)
{
  std::free(buffer);
  return nullptr;
}

void OnResponse(TRITONSERVER_InferenceResponse* response, const uint32_t, void* userp)
{
  auto* answer = static_cast<Answer*>(userp);
  std::lock_guard<std::mutex> guard(answer->lock);
  answer->response = response;
}

void OnRelease(TRITONSERVER_InferenceRequest*, const uint32_t, void* userp)
{
  auto* answer = static_cast<Answer*>(userp);
  std::lock_guard<std::mutex> guard(answer->lock);
  answer->released = true;
  answer->changed.notify_one();
}

void Print(TRITONSERVER_InferenceResponse* response)
{
  const char* name;
  TRITONSERVER_DataType type;
  const int64_t* shape;
  uint64_t rank;
  const void* base;
  size_t size;
  TRITONSERVER_MemoryType memory;
  int64_t id;
  void* userp;
  Must(TRITONSERVER_InferenceResponseError(response));
  Must(TRITONSERVER_InferenceResponseOutput(
      response, 0, &name, &type, &shape, &rank, &base, &size, &memory, &id, &userp));
  std::printf("%s %s", name, TRITONSERVER_DataTypeString(type));
  for (size_t index = 0; index < size / sizeof(float); ++index) {
    std::printf(" %g", static_cast<const float*>(base)[index]);
  }
  std::printf("\n");
}

void Infer(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator, const char* model)
{
  const std::vector<float> values = {1, 2, 3, 4};
  const int64_t shape[] = {4};
  Answer answer;
  TRITONSERVER_InferenceRequest* request = nullptr;
  Must(TRITONSERVER_InferenceRequestNew(&request, server, model, -1));
  Must(TRITONSERVER_InferenceRequestSetId(request, "one"));
  Must(TRITONSERVER_InferenceRequestAddInput(request, "IN", TRITONSERVER_TYPE_FP32, shape, 1));
  Must(TRITONSERVER_InferenceRequestAppendInputData(
      request, "IN", values.data(), values.size() * sizeof(float), TRITONSERVER_MEMORY_CPU, 0));
  Must(TRITONSERVER_InferenceRequestAddRequestedOutput(request, "OUT"));
  Must(TRITONSERVER_InferenceRequestSetReleaseCallback(request, OnRelease, &answer));
  Must(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, nullptr, OnResponse, &answer));
  Must(TRITONSERVER_ServerInferAsync(server, request, nullptr));
  {
    std::unique_lock<std::mutex> guard(answer.lock);
    answer.changed.wait(guard, [&answer] { return answer.released && answer.response != nullptr; });
  }
  Print(answer.response);
  Must(TRITONSERVER_InferenceResponseDelete(answer.response));
  Must(TRITONSERVER_InferenceRequestDelete(request));
}

void Load(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator, const char* model)
{
  TRITONSERVER_Error* error = TRITONSERVER_ServerLoadModel(server, model);
  bool ready = false;
  if (error != nullptr) {
    std::printf("%s: refused: %s\n", model, TRITONSERVER_ErrorCodeString(error));
    std::fprintf(stderr, "%s: %s\n", model, TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(error);
    return;
  }
  Must(TRITONSERVER_ServerModelIsReady(server, model, -1, &ready));
  std::printf("%s: ready %d: ", model, static_cast<int>(ready));
  Infer(server, allocator, model);
  Must(TRITONSERVER_ServerUnloadModel(server, model));
}

}  // namespace

int main(int argc, char** argv)
{
  uint32_t major = 0, minor = 0;
  TRITONSERVER_ServerOptions* options = nullptr;
  TRITONSERVER_Server* server = nullptr;
  TRITONSERVER_ResponseAllocator* allocator = nullptr;
  Must(TRITONSERVER_ApiVersion(&major, &minor));
  // The check that the header asks every client for.
  std::printf("version fits: %d\n", major == TRITONSERVER_API_VERSION_MAJOR && minor >= TRITONSERVER_API_VERSION_MINOR);
  Must(TRITONSERVER_ServerOptionsNew(&options));
  Must(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, argv[1]));
  Must(TRITONSERVER_ServerOptionsSetRepoAgentDirectory(options, argv[2]));
  if (const char* backends = std::getenv("BACKENDS")) {
    Must(TRITONSERVER_ServerOptionsSetBackendDirectory(options, backends));
  }
  Must(TRITONSERVER_ServerOptionsSetModelControlMode(options, TRITONSERVER_MODEL_CONTROL_EXPLICIT));
  Must(TRITONSERVER_ServerOptionsSetGpuMetrics(options, false));
  Must(TRITONSERVER_ServerNew(&server, options));
  Must(TRITONSERVER_ServerOptionsDelete(options));
  Must(TRITONSERVER_ResponseAllocatorNew(&allocator, Allocate, Free, nullptr));
  for (int index = 3; index < argc; ++index) {
    Load(server, allocator, argv[index]);
  }
  Must(TRITONSERVER_ServerStop(server));
  Must(TRITONSERVER_ServerDelete(server));
  Must(TRITONSERVER_ResponseAllocatorDelete(allocator));
  return 0;
}
