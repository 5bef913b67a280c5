// A stand-in for the CUDA runtime (libcudart.so), for tests on machines without a GPU: the
// functions that Paceline calls, with the runtime's names and numbers, on the streams and memory of
// the simulated devices (tests/harness/simulated_cuda/). In a program that has the simulated
// devices for LibTorch, the stand-in uses the same devices.
//
// Environment variables choose its behaviour:
//   PACELINE_SIMULATED_CUDA_DEVICES  the GPUs of the machine; CUDA_VISIBLE_DEVICES hides some
//   STANDIN_CUDA_DRIVER              the driver's version, such as 11040; 12080 by default
//   STANDIN_CUDA_ERROR               the error of every call that needs a GPU, such as 802
//   STANDIN_CUDA_BUSY                the number of a GPU that another process uses exclusively

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <pthread.h>

#include "tests/harness/simulated_cuda/memory.h"
#include "tests/harness/simulated_cuda/streams.h"
#include "tests/harness/standin_nvidia/faults.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace paceline::simulated {

// Defined in the simulated devices for LibTorch; null in programs without them.
__attribute__((weak)) int current_device();
__attribute__((weak)) void set_current_device(int device);

}  // namespace paceline::simulated

namespace paceline::standin {
namespace {

using simulated::count_touch;
using simulated::Event;
using simulated::Stream;

constexpr int kRuntimeVersion = 12040;
constexpr int kInvalidValue = 1, kNotInitialized = 3, kDriverTooOld = 35, kBusy = 46;
constexpr int kNoDevice = 100, kInvalidDevice = 101, kNotReady = 600;
constexpr int kWrongHandle = 400;
constexpr int kCaptureUnsupported = 900, kCaptureInvalidated = 901, kCapturedEvent = 907;

// ---- devices

std::atomic<bool> was_used = false, is_forked_child = false;

// The runtime does not work in a child of fork() whose parent has used it.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] {
  if (was_used) is_forked_child = true;
});

// The numbers of the machine's GPUs that this process sees.
std::vector<int> visible_devices() {
  std::vector<int> all;
  for (int device = 0; device < simulated::num_devices(); ++device) all.push_back(device);
  if (std::getenv("CUDA_VISIBLE_DEVICES") == nullptr) return all;
  std::vector<int> visible;
  std::stringstream list(variable("CUDA_VISIBLE_DEVICES"));
  for (std::string item; std::getline(list, item, ',');) {
    const int device = std::atoi(item.c_str());
    if (device < 0 || device >= simulated::num_devices()) break;
    visible.push_back(device);
  }
  return visible;
}

// The error of every call that needs a GPU; 0 for none.
int trouble() {
  if (is_forked_child) return kNotInitialized;
  was_used = true;
  if (const int error = number("STANDIN_CUDA_ERROR", 0); error != 0) return error;
  if (number("STANDIN_CUDA_DRIVER", 12080) < kRuntimeVersion) return kDriverTooOld;
  return visible_devices().empty() ? kNoDevice : 0;
}

thread_local int own_device = 0;
int device_now() {
  return simulated::current_device != nullptr ? simulated::current_device() : own_device;
}
int machine_device(int device) { return visible_devices().at(static_cast<std::size_t>(device)); }

// Counts a use of the current device by a call that needs a context. As in CUDA, the first such
// call of a process would take some hundred MB of that device's memory.
void need_context() { count_touch(machine_device(device_now())); }

// An event belongs to the device that was current when it was made.
struct OwnedEvent : Event {
  const int device = machine_device(device_now());
};

// ---- streams and captures of graphs

// The streams that the program creates are numbered from here; 0 is the default stream.
std::atomic<std::int64_t> next_stream = 1000;

struct Captures {
  std::mutex mutex;               // guards the members
  std::set<Stream*> streams;      // under capture
  std::set<const Event*> events;  // recorded on such a stream
  std::vector<std::function<void()>> graph;
  bool is_invalid = false;
  int mode = 0;
  pthread_t by{};
};
Captures& captures() {
  static auto* const one = new Captures;
  return *one;
}
thread_local int thread_mode = 0;

Stream& stream_of(void* stream) {
  return stream == nullptr ? Stream::of(machine_device(device_now()), 0)
                           : *static_cast<Stream*>(stream);
}

bool is_capturing(Stream& stream) {
  const std::lock_guard lock(captures().mutex);
  return captures().streams.contains(&stream);
}

// Called by functions that a capture in global mode forbids in all threads, except in those with
// another mode. Returns true, and invalidates the capture, if the call is forbidden.
bool spoils_capture() {
  Captures& all = captures();
  const std::lock_guard lock(all.mutex);
  const bool is_own = !all.streams.empty() && pthread_equal(all.by, pthread_self()) != 0;
  if (all.streams.empty() || (!is_own && (all.mode != 0 || thread_mode != 0))) return false;
  all.is_invalid = true;
  return true;
}

void run_or_capture(Stream& stream, std::function<void()> task) {
  Captures& all = captures();
  {
    const std::lock_guard lock(all.mutex);
    if (all.streams.contains(&stream)) return all.graph.push_back(std::move(task));
  }
  stream.push(std::move(task));
}

}  // namespace
}  // namespace paceline::standin

using namespace paceline;
using namespace paceline::standin;

EXPORTED int cudaRuntimeGetVersion(int* version) {
  *version = kRuntimeVersion;
  return 0;
}
EXPORTED int cudaDriverGetVersion(int* version) {
  *version = number("STANDIN_CUDA_DRIVER", 12080);
  return 0;
}
EXPORTED const char* cudaGetErrorString(int code) {
  static const std::map<int, const char*> texts = {
      {0, "no error"},
      {2, "out of memory"},
      {3, "initialization error"},
      {kDriverTooOld, "CUDA driver version is insufficient for CUDA runtime version"},
      {kBusy, "CUDA-capable device(s) is/are busy or unavailable"},
      {kNoDevice, "no CUDA-capable device is detected"},
      {kInvalidDevice, "invalid device ordinal"},
      {214, "uncorrectable ECC error encountered"},
      {kWrongHandle, "invalid resource handle"},
      {kNotReady, "device not ready"},
      {802, "system not yet initialized"},
      {803, "system has unsupported display driver / cuda driver combination"}};
  const auto found = texts.find(code);
  return found == texts.end() ? "unrecognized error code" : found->second;
}
EXPORTED int cudaGetLastError() { return 0; }

EXPORTED int cudaGetDeviceCount(int* count) {
  *count = 0;
  if (const int error = trouble(); error != 0) return error;
  *count = static_cast<int>(visible_devices().size());
  return 0;
}
EXPORTED int cudaGetDevice(int* device) {
  if (const int error = trouble(); error != 0) return error;
  *device = device_now();
  return 0;
}
EXPORTED int cudaSetDevice(int device) {
  if (const int error = trouble(); error != 0) return error;
  const auto visible = visible_devices();
  if (device < 0 || device >= static_cast<int>(visible.size())) return kInvalidDevice;
  if (machine_device(device) == number("STANDIN_CUDA_BUSY", -1)) return kBusy;
  own_device = device;
  count_touch(machine_device(device));  // since CUDA 12 this call makes the device's context
  if (simulated::set_current_device != nullptr) simulated::set_current_device(device);
  return 0;
}
EXPORTED int cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (const int error = trouble(); error != 0) return error;
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0",
                0x10 + machine_device(device));
  return 0;
}
EXPORTED int cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const int device = machine_device(device_now());
  const std::size_t limit = simulated::memory_limit(device);
  *total = limit == 0 ? std::size_t{16} << 30 : limit;
  *free = *total - simulated::live_bytes(device);
  return 0;
}

EXPORTED int cudaMalloc(void** memory, std::size_t bytes) {
  if (const int error = trouble(); error != 0) return error;
  if (spoils_capture()) return kCaptureUnsupported;
  *memory = simulated::allocate(stream_of(nullptr), bytes);
  return *memory == nullptr ? 2 : 0;
}
EXPORTED int cudaFree(void* memory) {
  if (memory != nullptr) simulated::release(memory);
  return 0;
}
EXPORTED int cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int /*kind*/,
                             void* stream) {
  run_or_capture(stream_of(stream), [=] {
    const simulated::Opened source(from), target(to);
    std::memcpy(to, from, bytes);
  });
  return 0;
}
EXPORTED int cudaMemcpy(void* to, const void* from, std::size_t bytes, int kind) {
  if (spoils_capture()) return kCaptureUnsupported;
  cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  stream_of(nullptr).drain();
  return 0;
}
EXPORTED int cudaPointerGetAttributes(void* attributes, const void* pointer) {
  struct {
    int type = 0, device = 0;
    void *device_pointer = nullptr, *host_pointer = nullptr;
  } found;
  need_context();
  const int device = simulated::device_of(pointer);
  const auto visible = visible_devices();
  for (std::size_t i = 0; i < visible.size(); ++i) {
    if (visible[i] == device) found.device = static_cast<int>(i);
  }
  if (device >= 0) found.type = 2;
  std::memcpy(attributes, &found, sizeof found);
  return 0;
}

EXPORTED int cudaStreamCreateWithFlags(void** stream, unsigned /*flags*/) {
  if (const int error = trouble(); error != 0) return error;
  *stream = &Stream::of(machine_device(device_now()), ++next_stream);
  return 0;
}
EXPORTED int cudaStreamDestroy(void* /*stream*/) { return 0; }
EXPORTED int cudaStreamSynchronize(void* stream) {
  stream_of(stream).drain();
  return 0;
}
EXPORTED int cudaStreamWaitEvent(void* stream, void* event, unsigned /*flags*/) {
  {
    Captures& all = captures();
    const std::lock_guard lock(all.mutex);
    if (all.events.contains(static_cast<const Event*>(event))) {
      all.streams.insert(&stream_of(stream));
      return 0;
    }
  }
  static_cast<const Event*>(event)->block(stream_of(stream));
  return 0;
}
// The real runtime has this function as well. The stand-in for NCCL queues its operations with it.
EXPORTED int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  run_or_capture(stream_of(stream), [=] { function(data); });
  return 0;
}

EXPORTED int cudaEventCreateWithFlags(void** event, unsigned /*flags*/) {
  need_context();
  *event = static_cast<Event*>(new OwnedEvent);
  return 0;
}
EXPORTED int cudaEventRecord(void* event, void* stream) {
  auto* const recorded = static_cast<OwnedEvent*>(static_cast<Event*>(event));
  if (recorded->device != stream_of(stream).device()) return kWrongHandle;
  if (is_capturing(stream_of(stream))) {
    const std::lock_guard lock(captures().mutex);
    captures().events.insert(recorded);
  } else {
    recorded->record(stream_of(stream));
  }
  return 0;
}
EXPORTED int cudaEventQuery(void* event) {
  const auto* const queried = static_cast<const Event*>(event);
  {
    const std::lock_guard lock(captures().mutex);
    if (captures().events.contains(queried)) {
      captures().is_invalid = true;
      return kCapturedEvent;
    }
  }
  if (spoils_capture()) return kCaptureUnsupported;
  need_context();
  return queried->is_reached() ? 0 : kNotReady;
}
EXPORTED int cudaEventDestroy(void* event) {
  {
    const std::lock_guard lock(captures().mutex);
    captures().events.erase(static_cast<const Event*>(event));
  }
  delete static_cast<OwnedEvent*>(static_cast<Event*>(event));
  return 0;
}

EXPORTED int cudaThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, thread_mode);
  return 0;
}
EXPORTED int cudaStreamIsCapturing(void* stream, int* status) {
  const std::lock_guard lock(captures().mutex);
  const bool is_captured = captures().streams.contains(&stream_of(stream));
  *status = !is_captured ? 0 : captures().is_invalid ? 2 : 1;
  return 0;
}
EXPORTED int cudaStreamBeginCapture(void* stream, int mode) {
  Captures& all = captures();
  const std::lock_guard lock(all.mutex);
  all.streams = {&stream_of(stream)};
  all.graph.clear();
  all.is_invalid = false;
  all.mode = mode;
  all.by = pthread_self();
  return 0;
}
// A graph is the list of the captured tasks, in order.
EXPORTED int cudaStreamEndCapture(void* /*stream*/, void** graph) {
  Captures& all = captures();
  const std::lock_guard lock(all.mutex);
  all.streams.clear();
  if (all.is_invalid) return kCaptureInvalidated;
  *graph = new std::vector<std::function<void()>>(std::move(all.graph));
  return 0;
}
EXPORTED int cudaGraphInstantiateWithFlags(void** executable, void* graph,
                                           unsigned long long /*flags*/) {
  *executable = graph;
  return 0;
}
EXPORTED int cudaGraphLaunch(void* executable, void* stream) {
  const auto* const tasks = static_cast<const std::vector<std::function<void()>>*>(executable);
  for (const auto& task : *tasks) stream_of(stream).push(task);
  return 0;
}
EXPORTED int cudaGraphDestroy(void* graph) {
  delete static_cast<std::vector<std::function<void()>>*>(graph);
  return 0;
}
EXPORTED int cudaGraphExecDestroy(void* /*executable*/) { return 0; }

// ---- for the stand-in for NCCL and for tests: access to device memory, limits and delays

EXPORTED void* standin_cuda_open(const void* pointer) { return new simulated::Opened(pointer); }
EXPORTED void standin_cuda_close(void* opened) { delete static_cast<simulated::Opened*>(opened); }
EXPORTED std::uint64_t standin_cuda_touches(int device) { return simulated::num_touches(device); }
EXPORTED std::size_t standin_cuda_live_bytes(int device) { return simulated::live_bytes(device); }
EXPORTED void standin_cuda_set_memory_limit(int device, std::size_t bytes) {
  simulated::set_memory_limit(device, bytes);
}
EXPORTED void standin_cuda_delay(double share, int microseconds) {
  simulated::set_delays({.share = share, .most = std::chrono::microseconds(microseconds)});
}

// Functions of the runtime that no test needs. They end the program, because doing nothing would
// hide a mistake.
#define ABSENT(name)                                                      \
  EXPORTED void name() {                                                  \
    std::fprintf(stderr, "the stand-in of libcudart has no " #name "\n"); \
    std::abort();                                                         \
  }
ABSENT(cudaDeviceSynchronize)
ABSENT(cudaMemset)
ABSENT(cudaMemsetAsync)
ABSENT(cudaMallocAsync)
ABSENT(cudaHostAlloc)
ABSENT(cudaDeviceReset)
ABSENT(cudaStreamQuery)
ABSENT(cudaEventSynchronize)
ABSENT(cudaGetDeviceProperties)
