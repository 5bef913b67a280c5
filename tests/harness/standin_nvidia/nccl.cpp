// A stand-in for NCCL (libnccl.so.2), for tests on machines without a GPU: the functions that
// Paceline calls, with NCCL's names and numbers, among threads and processes of one host, on the
// stand-in for the CUDA runtime.
//
// Environment variables choose the version and the faults; RANK is a number or "any":
//   STANDIN_NCCL_VERSION      22103 by default
//   STANDIN_NCCL_IN_PROGRESS  how many times a communicator answers that it is busy; 2 by default
//   STANDIN_NCCL_ASYNC        RANK whose communicator reports an error after its next operation
//   STANDIN_NCCL_SKIP         RANK that never joins its operations
//   STANDIN_NCCL_ABORT_HANGS  RANK on which ncclCommAbort never returns

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include "tests/harness/standin_nvidia/communicator.h"
#include "tests/harness/standin_nvidia/faults.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

extern "C" int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* data);
extern "C" int cudaGetDevice(int* device);
extern "C" int cudaDeviceGetPCIBusId(char* text, int length, int device);

namespace paceline::standin {
namespace {

constexpr int kSystemError = 2, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7;

struct Id {
  char bytes[128];
};

std::mutex last_error_mutex;
std::string last_error;
int fail_with(int code, const std::string& text) {
  const std::lock_guard lock(last_error_mutex);
  last_error = text;
  return code;
}

int version() { return number("STANDIN_NCCL_VERSION", 22103); }
int late_answers() { return number("STANDIN_NCCL_IN_PROGRESS", 2); }

// Operations between ncclGroupStart and ncclGroupEnd, in the order of the calls.
struct Called {
  Communicator* communicator;
  void* stream;
  Operation operation;
};
thread_local int depth = 0;
thread_local std::vector<Called> called;

struct Task {
  Communicator* communicator;
  std::vector<Operation> operations;
};

// Queues operations of one communicator and stream. The task is not deleted, because a graph may
// carry it out again.
void launch(Communicator& communicator, void* stream, std::vector<Operation> operations) {
  ++communicator.calls;
  communicator.still_late = late_answers();
  if (applies_to("STANDIN_NCCL_ASYNC", communicator.rank)) communicator.state = kRemoteError;
  if (applies_to("STANDIN_NCCL_SKIP", communicator.rank)) return;
  auto* const task = new Task{&communicator, std::move(operations)};
  ++communicator.under_way;
  cudaLaunchHostFunc(
      stream,
      [](void* data) {
        const auto* const queued = static_cast<const Task*>(data);
        carry_out(*queued->communicator, queued->operations);
        --queued->communicator->under_way;
      },
      task);
}

int close_group() {
  std::map<std::pair<Communicator*, void*>, std::vector<Operation>> all;
  std::vector<std::pair<Communicator*, void*>> order;
  for (const Called& one : called) {
    const std::pair key(one.communicator, one.stream);
    if (!all.contains(key)) order.push_back(key);
    all[key].push_back(one.operation);
  }
  called.clear();
  for (const auto& key : order) launch(*key.first, key.second, std::move(all[key]));
  return order.empty() ? 0 : kInProgress;
}

int add(Communicator* communicator, void* stream, const Operation& operation) {
  if (communicator->is_connecting || communicator->still_late > 0) {
    return fail_with(kInvalidUsage, "a call on a communicator that is still in progress");
  }
  called.push_back({communicator, stream, operation});
  return depth > 0 ? 0 : close_group();
}

// Connects the communicator with the other ranks; runs in a thread of its own.
void connect(Communicator* communicator, const std::string& path, const std::string& bus_id) {
  std::string why;
  Segment* const segment = map_segment(path, false, &why);
  if (segment == nullptr) {
    communicator->state = fail_with(kSystemError, why);
    communicator->is_connecting = false;
    return;
  }
  const auto self = static_cast<std::size_t>(communicator->rank);
  segment->versions[self] = version();
  std::snprintf(segment->bus_ids[self].data(), segment->bus_ids[self].size(), "%s", bus_id.c_str());
  communicator->segment = segment;
  ++segment->attached;
  const bool all_are_here =
      wait_until(communicator->is_aborted, [&] { return segment->attached == communicator->size; });
  if (all_are_here && communicator->rank == 0) unlink(path.c_str());
  for (std::size_t a = 0; all_are_here && a < static_cast<std::size_t>(communicator->size); ++a) {
    if (segment->versions[a] != version()) {
      communicator->state = fail_with(kSystemError, "Mismatched collective detected");
    }
    for (std::size_t b = 0; b < a; ++b) {
      if (segment->bus_ids[a] != segment->bus_ids[b]) continue;
      communicator->state =
          fail_with(kInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(b) +
                                       " and rank " + std::to_string(a) + " both on CUDA device");
    }
  }
  communicator->is_connecting = false;
}

// The count may be negative: a task of a graph is queued once, but may be carried out many times.
void wait_for_tasks(Communicator& communicator) {
  const std::atomic<bool> never = false;
  wait_until(never, [&] { return communicator.under_way <= 0 && !communicator.is_connecting; });
}

}  // namespace
}  // namespace paceline::standin

using namespace paceline::standin;

EXPORTED int ncclGetVersion(int* known) {
  *known = version();
  return 0;
}
EXPORTED const char* ncclGetErrorString(int code) {
  static const char* const texts[] = {"no error",
                                      "unhandled cuda error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress"};
  return code >= 0 && code < 8 ? texts[code] : "unknown result code";
}
EXPORTED const char* ncclGetLastError(void* /*communicator*/) {
  thread_local std::string copy;
  const std::lock_guard lock(last_error_mutex);
  copy = last_error;
  return copy.c_str();
}

EXPORTED int ncclGetUniqueId(Id* id) {
  static std::atomic<int> next = 0;
  std::snprintf(id->bytes, sizeof id->bytes, "/dev/shm/standin-nccl-%d-%d", getpid(), ++next);
  unlink(id->bytes);  // an ended process with the same pid may have left it
  std::string why;
  Segment* const segment = map_segment(id->bytes, true, &why);
  if (segment == nullptr) return fail_with(kSystemError, why);
  unmap_segment(segment);
  return 0;
}
EXPORTED int ncclCommInitRankConfig(Communicator** communicator, int size, Id id, int rank,
                                    void* /*config*/) {
  if (size > kMaxRanks) return fail_with(kInvalidUsage, "too many ranks for the stand-in");
  auto* const made = new Communicator;
  made->rank = rank;
  made->size = size;
  made->still_late = late_answers();
  *communicator = made;
  int device = 0;
  char bus_id[32] = {};
  cudaGetDevice(&device);
  cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device);
  std::thread(connect, made, std::string(id.bytes), std::string(bus_id)).detach();
  return kInProgress;
}
EXPORTED int ncclCommGetAsyncError(Communicator* communicator, int* state) {
  const bool is_late = communicator->is_connecting || communicator->still_late > 0;
  if (communicator->still_late > 0) --communicator->still_late;
  *state = communicator->state != 0 ? communicator->state.load() : is_late ? kInProgress : 0;
  return 0;
}
EXPORTED int ncclCommFinalize(Communicator* communicator) {
  communicator->still_late = late_answers();
  return kInProgress;
}
// The communicator is not deleted: a graph may still contain its operations.
EXPORTED int ncclCommDestroy(Communicator* communicator) {
  wait_for_tasks(*communicator);
  if (communicator->segment != nullptr)
    unmap_segment(std::exchange(communicator->segment, nullptr));
  return 0;
}
EXPORTED int ncclCommAbort(Communicator* communicator) {
  while (applies_to("STANDIN_NCCL_ABORT_HANGS", communicator->rank)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  communicator->is_aborted = true;
  return ncclCommDestroy(communicator);
}

EXPORTED int ncclAllReduce(const std::byte* input, std::byte* output, std::size_t count, int type,
                           int reduction, Communicator* communicator, void* stream) {
  return add(communicator, stream, {Kind::kAllReduce, input, output, count, type, reduction, 0});
}
EXPORTED int ncclReduce(const std::byte* input, std::byte* output, std::size_t count, int type,
                        int reduction, int root, Communicator* communicator, void* stream) {
  return add(communicator, stream, {Kind::kReduce, input, output, count, type, reduction, root});
}
EXPORTED int ncclBroadcast(const std::byte* input, std::byte* output, std::size_t count, int type,
                           int root, Communicator* communicator, void* stream) {
  return add(communicator, stream, {Kind::kBroadcast, input, output, count, type, 0, root});
}
EXPORTED int ncclAllGather(const std::byte* input, std::byte* output, std::size_t count, int type,
                           Communicator* communicator, void* stream) {
  return add(communicator, stream, {Kind::kAllGather, input, output, count, type, 0, 0});
}
EXPORTED int ncclReduceScatter(const std::byte* input, std::byte* output, std::size_t count,
                               int type, int reduction, Communicator* communicator, void* stream) {
  return add(communicator, stream,
             {Kind::kReduceScatter, input, output, count, type, reduction, 0});
}
EXPORTED int ncclSend(const std::byte* data, std::size_t count, int type, int peer,
                      Communicator* communicator, void* stream) {
  return add(communicator, stream, {Kind::kSend, data, nullptr, count, type, 0, peer});
}
EXPORTED int ncclRecv(std::byte* data, std::size_t count, int type, int peer,
                      Communicator* communicator, void* stream) {
  return add(communicator, stream, {Kind::kReceive, nullptr, data, count, type, 0, peer});
}
EXPORTED int ncclGroupStart() {
  ++depth;
  return 0;
}
EXPORTED int ncclGroupEnd() { return --depth > 0 ? 0 : close_group(); }

// Functions that no test needs. They end the program, because doing nothing would hide a mistake.
#define ABSENT(name)                                                 \
  EXPORTED void name() {                                             \
    std::fprintf(stderr, "the stand-in of NCCL has no " #name "\n"); \
    std::abort();                                                    \
  }
ABSENT(ncclCommInitRank)
ABSENT(ncclCommInitAll)
ABSENT(ncclCommSplit)
ABSENT(ncclCommCount)
ABSENT(ncclRedOpCreatePreMulSum)
ABSENT(ncclMemAlloc)
ABSENT(ncclCommRegister)
