#include "paceline/engine/collectives/backends/nccl/nccl_communicator.h"

#include <optional>
#include <thread>
#include <utility>

#include "paceline/engine/collectives/backends/blocking_calls.h"
#include "paceline/engine/collectives/backends/library.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/thread.h"

namespace paceline {
namespace {

constexpr std::chrono::microseconds kPollNap{200};

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

// All communicators begin to close before this function waits for the first one: otherwise ranks
// that wait in different orders would wait for each other.
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
      std::this_thread::sleep_for(kPollNap);
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
  return run_bounded("ncclCommAbort", Deadline::after(kAbortLimit),
                     [&api = api_, handle] { return api.ncclCommAbort(handle); });
}

void NcclCommunicator::abort(const Several& all) {
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < all.size(); ++i) {
    others.push_back(start_thread("paceline-nccl", [one = all[i]] { one->abort(); }));
  }
  if (!all.empty()) all.front()->abort();
}

// `call` may outlive this object, so `call` must not refer to the object.
bool NcclCommunicator::run_bounded(const char* what, Deadline deadline, std::function<int()> call) {
  BlockingCalls calls("paceline-nccl");
  if (calls.run_until(deadline, [call = std::move(call)] { call(); })) return true;
  log::warning(
      fmt::format("{}: {} has not returned within {} ms; the GPU memory that NCCL holds is freed "
                  "when the process ends",
                  self_, what, deadline.timeout().value_or(std::chrono::milliseconds()).count()));
  return false;
}

namespace {

std::optional<nccl::Type> type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return nccl::kFloat32;
    case Dtype::kFloat64:
      return nccl::kFloat64;
    case Dtype::kFloat16:
      return nccl::kFloat16;
    case Dtype::kBfloat16:
      return nccl::kBfloat16;
    case Dtype::kInt8:
      return nccl::kInt8;
    case Dtype::kInt32:
      return nccl::kInt32;
    case Dtype::kInt64:
      return nccl::kInt64;
    case Dtype::kUint8:
    case Dtype::kBool:
      return nccl::kUint8;
    case Dtype::kInt16:
      return {};
  }
  return {};
}

std::optional<nccl::Reduction> reduction_of(ReduceOp op, Dtype dtype) {
  const bool is_bool = dtype == Dtype::kBool;
  switch (op) {
    case ReduceOp::kSum:
      return is_bool ? nccl::kMax : nccl::kSum;
    case ReduceOp::kMean:
      return nccl::kMean;
    case ReduceOp::kProduct:
      return is_bool ? nccl::kMin : nccl::kProduct;
    case ReduceOp::kMin:
      return nccl::kMin;
    case ReduceOp::kMax:
      return nccl::kMax;
    default:
      return {};
  }
}

// Queues one call with NCCL's types and functions.
class CallQueuer {
 public:
  CallQueuer(const Collective& call, const NcclEndpoint& place)
      : call_(call),
        place_(place),
        api_(place.api),
        moves_(!reduces(call.op)),
        type_(moves_ ? nccl::kUint8 : *type_of(call.dtype)),
        reduction_(reduction_of(call.reduce_op, call.dtype).value_or(nccl::kSum)),
        // Elements that are only moved are sent as bytes.
        unit_(moves_ ? size_of(call.dtype) : 1) {}

  void queue() const {
    const std::size_t count = call_.count * unit_;
    switch (call_.op) {
      case Op::kAllReduce:
        return require(api_.ncclAllReduce(call_.input, call_.output, count, type_, reduction_,
                                          place_.communicator, place_.stream),
                       "ncclAllReduce");
      case Op::kReduce:
        return reduce(call_.input, call_.output, count, call_.root);
      case Op::kBroadcast:
        return broadcast(call_.input, call_.output, count, call_.root);
      case Op::kAllGather:
        return require(api_.ncclAllGather(call_.input, call_.output, count, type_,
                                          place_.communicator, place_.stream),
                       "ncclAllGather");
      case Op::kReduceScatter:
        return require(api_.ncclReduceScatter(call_.input, call_.output, count, type_, reduction_,
                                              place_.communicator, place_.stream),
                       "ncclReduceScatter");
      case Op::kGather:
      case Op::kScatter:
      case Op::kAllToAll:
        return exchange_blocks();
      case Op::kAllGatherV:
      case Op::kReduceScatterV:
        return for_each_owner();
      case Op::kAllToAllV:
        return exchange_counts();
      default:
        fail(ErrorCode::kUnsupported, "{}: nccl has no {}", place_.self, name_of(call_.op));
    }
  }

 private:
  void require(int code, const char* what) const { api_.require(code, place_.self, what); }

  void reduce(const std::byte* from, std::byte* to, std::size_t count, int root) const {
    require(api_.ncclReduce(from, to, count, type_, reduction_, root, place_.communicator,
                            place_.stream),
            "ncclReduce");
  }
  void broadcast(const std::byte* from, std::byte* to, std::size_t count, int root) const {
    require(api_.ncclBroadcast(from, to, count, type_, root, place_.communicator, place_.stream),
            "ncclBroadcast");
  }
  void send(const std::byte* data, std::size_t elements, int peer) const {
    if (elements == 0) return;
    require(api_.ncclSend(data, elements * size_of(call_.dtype), nccl::kUint8, peer,
                          place_.communicator, place_.stream),
            "ncclSend");
  }
  void receive(std::byte* data, std::size_t elements, int peer) const {
    if (elements == 0) return;
    require(api_.ncclRecv(data, elements * size_of(call_.dtype), nccl::kUint8, peer,
                          place_.communicator, place_.stream),
            "ncclRecv");
  }

  // Gather, scatter and all-to-all: sends at most one block to each rank, and receives at most one
  // from it.
  void exchange_blocks() const {
    const bool gives_all = call_.op != Op::kGather;
    const bool gets_all = call_.op != Op::kScatter;
    const auto takes_part = [&](int giver, int taker) {
      if (call_.op == Op::kGather) return taker == call_.root;
      if (call_.op == Op::kScatter) return giver == call_.root;
      return true;
    };
    NcclBatch batch(api_, place_.self);
    for (int peer = 0; peer < place_.world_size; ++peer) {
      if (takes_part(place_.rank, peer)) {
        send(gives_all ? block_of(call_.input, call_, peer) : call_.input, call_.count, peer);
      }
      if (takes_part(peer, place_.rank)) {
        receive(gets_all ? block_of(call_.output, call_, peer) : call_.output, call_.count, peer);
      }
    }
    batch.end();
  }

  // Operations with a count for each rank: a broadcast from, or a reduction to, every rank.
  void for_each_owner() const {
    const std::size_t element = size_of(call_.dtype);
    NcclBatch batch(api_, place_.self);
    std::size_t begin = 0;
    for (int owner = 0; owner < place_.world_size; ++owner) {
      const std::size_t count = call_.counts[static_cast<std::size_t>(owner)];
      if (count > 0 && call_.op == Op::kAllGatherV) {
        broadcast(call_.input, call_.output + begin * element, count * unit_, owner);
      } else if (count > 0) {
        reduce(call_.input + begin * element, call_.output, count, owner);
      }
      begin += count;
    }
    batch.end();
  }

  // All-to-all with a matrix of counts: row r has the counts that rank r sends to each rank.
  void exchange_counts() const {
    const auto world = static_cast<std::size_t>(place_.world_size);
    const auto self = static_cast<std::size_t>(place_.rank);
    const std::size_t element = size_of(call_.dtype);
    NcclBatch batch(api_, place_.self);
    std::size_t given = 0, taken = 0;
    for (std::size_t peer = 0; peer < world; ++peer) {
      const std::size_t gives = call_.counts[self * world + peer];
      const std::size_t takes = call_.counts[peer * world + self];
      send(call_.input + given * element, gives, static_cast<int>(peer));
      receive(call_.output + taken * element, takes, static_cast<int>(peer));
      given += gives;
      taken += takes;
    }
    batch.end();
  }

  const Collective& call_;
  const NcclEndpoint& place_;
  const NcclApi& api_;
  const bool moves_;
  const nccl::Type type_;
  const nccl::Reduction reduction_;
  const std::size_t unit_;
};

}  // namespace

bool nccl_supports(Op op, Dtype dtype, ReduceOp reduce_op) {
  if (op == Op::kVisit || op == Op::kAllocate) return false;
  if (!reduces(op)) return true;
  return is_defined(reduce_op, dtype) && type_of(dtype) && reduction_of(reduce_op, dtype);
}

void queue_call(const Collective& call, const NcclEndpoint& place) {
  if (call.parts.empty()) return CallQueuer(call, place).queue();
  NcclBatch batch(place.api, place.self);
  for (const CollectivePart& part : call.parts) {
    Collective one = call;
    one.parts = {};
    one.input = part.input;
    one.output = part.output;
    one.count = part.count;
    if (part.count > 0) CallQueuer(one, place).queue();
  }
  batch.end();
}

NcclBatch::NcclBatch(const NcclApi& api, std::string_view self) : api_(api), self_(self) {
  api_.require(api_.ncclGroupStart(), self_, "ncclGroupStart");
}

NcclBatch::~NcclBatch() {
  if (is_open_) api_.ncclGroupEnd();
}

void NcclBatch::end() {
  is_open_ = false;
  api_.require(api_.ncclGroupEnd(), self_, "ncclGroupEnd");
}

}  // namespace paceline
