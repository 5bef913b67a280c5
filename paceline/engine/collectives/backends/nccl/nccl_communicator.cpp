#include "paceline/engine/collectives/backends/nccl/nccl_communicator.h"

#include <thread>
#include <utility>

#include "paceline/engine/collectives/backends/blocking_calls.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/thread.h"

namespace paceline {
namespace {

constexpr std::chrono::microseconds kNap{200};

}  // namespace

NcclCommunicator::NcclCommunicator(const NcclApi& api, int size, const nccl::Id& id, int rank,
                                   std::string self)
    : api_(api), self_(std::move(self)) {
  nccl::Config config;
  api_.require(api_.ncclCommInitRankConfig(&handle_, size, id, rank, &config), self_,
               "connecting with NCCL");
}

NcclCommunicator::~NcclCommunicator() { abort(); }

void NcclCommunicator::call(const char* what, const std::function<int(NcclHandle)>& call) {
  const std::lock_guard lock(mutex_);
  if (handle_ == nullptr) fail(ErrorCode::kAborted, "{}: {}: NCCL was aborted", self_, what);
  api_.require(call(handle_), self_, what);
}

bool NcclCommunicator::is_ready() {
  const std::lock_guard lock(mutex_);
  if (handle_ == nullptr) fail(ErrorCode::kAborted, "{}: NCCL was aborted", self_);
  int state = nccl::kSuccess;
  api_.require(api_.ncclCommGetAsyncError(handle_, &state), self_, "ncclCommGetAsyncError");
  api_.require(state, self_, "an operation of NCCL");
  return state == nccl::kSuccess;
}

// All begin before the first one is waited for: otherwise ranks that wait in different orders would
// wait for each other.
void NcclCommunicator::close(const Several& all, Deadline deadline) {
  Several closing;
  for (const auto& one : all) {
    if (one->begin_to_close()) closing.push_back(one);
  }
  for (const auto& one : closing) one->end_closing(deadline);
}

bool NcclCommunicator::begin_to_close() {
  try {
    call("ncclCommFinalize", [&](NcclHandle handle) { return api_.ncclCommFinalize(handle); });
    return true;
  } catch (const Error&) {  // another rank has failed or left, which is reported elsewhere
    abort();
    return false;
  }
}

void NcclCommunicator::end_closing(Deadline deadline) {
  try {
    while (!is_ready()) {
      if (deadline.expired()) fail(ErrorCode::kTimeout, "{}: ncclCommFinalize is late", self_);
      std::this_thread::sleep_for(kNap);
    }
  } catch (const Error&) {
    abort();
    return;
  }
  const std::lock_guard lock(mutex_);
  NcclHandle handle = std::exchange(handle_, nullptr);
  run_bounded("ncclCommDestroy", deadline,
              [&api = api_, handle] { return api.ncclCommDestroy(handle); });
}

bool NcclCommunicator::abort() {
  const std::lock_guard lock(mutex_);
  if (handle_ == nullptr) return true;
  NcclHandle handle = std::exchange(handle_, nullptr);
  return run_bounded("ncclCommAbort", Deadline::after(kMostToAbort),
                     [&api = api_, handle] { return api.ncclCommAbort(handle); });
}

void NcclCommunicator::abort(const Several& all) {
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < all.size(); ++i) {
    others.push_back(start_thread("paceline-nccl", [one = all[i]] { one->abort(); }));
  }
  if (!all.empty()) all.front()->abort();
}

// `call` may outlive this object, so it must not refer to it.
bool NcclCommunicator::run_bounded(const char* what, Deadline deadline, std::function<int()> call) {
  BlockingCalls calls("paceline-nccl");
  if (calls.run_until(deadline, [call = std::move(call)] { call(); })) return true;
  log::warning(
      fmt::format("{}: {} has not come back within {} ms; the GPU's memory that NCCL holds is "
                  "freed when the process ends",
                  self_, what, deadline.timeout().value_or(std::chrono::milliseconds()).count()));
  return false;
}

}  // namespace paceline
