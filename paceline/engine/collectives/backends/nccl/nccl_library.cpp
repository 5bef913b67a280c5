#include <optional>
#include <string>
#include <utility>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "paceline/engine/collectives/backends/blocking_calls.h"
#include "paceline/engine/collectives/backends/library.h"
#include "paceline/engine/collectives/backends/library_list.h"
#include "paceline/engine/collectives/device_order.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/collectives/work.h"
#include "paceline/engine/core/check.h"

namespace paceline {
namespace {

void require(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  fail(ErrorCode::kSystem, "{} failed: {}", what, cudaGetErrorString(code));
}

void require(ncclResult_t code, const char* what) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  const ErrorCode kind = code == ncclRemoteError ? ErrorCode::kPeerLost : ErrorCode::kSystem;
  fail(kind, "{} failed: {}", what, ncclGetErrorString(code));
}

std::optional<ncclDataType_t> type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return ncclFloat32;
    case Dtype::kFloat64:
      return ncclFloat64;
    case Dtype::kFloat16:
      return ncclFloat16;
    case Dtype::kBfloat16:
      return ncclBfloat16;
    case Dtype::kInt8:
      return ncclInt8;
    case Dtype::kInt32:
      return ncclInt32;
    case Dtype::kInt64:
      return ncclInt64;
    case Dtype::kUint8:
    case Dtype::kBool:
      return ncclUint8;
    case Dtype::kInt16:
      return {};
  }
  return {};
}

// A bool is 0 or 1, so the maximum is the "or".
std::optional<ncclRedOp_t> reduction_of(ReduceOp op, Dtype dtype) {
  const bool is_bool = dtype == Dtype::kBool;
  switch (op) {
    case ReduceOp::kSum:
      return is_bool ? ncclMax : ncclSum;
    case ReduceOp::kMean:
      return ncclAvg;
    case ReduceOp::kProduct:
      return is_bool ? ncclMin : ncclProd;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
    default:
      return {};
  }
}

class NcclLibrary : public Library {
 public:
  explicit NcclLibrary(const LibraryContext& context)
      : self_(context.self()),
        rank_(context.rank),
        world_size_(context.world_size()),
        mesh_(context.mesh) {
    require(cudaGetDevice(&device_), "cudaGetDevice");
    connect(context);
    // This stream does not synchronise with the default stream; an event orders it after the call's
    // place instead.
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    require(cudaEventCreateWithFlags(&ready_, cudaEventDisableTiming), "cudaEventCreate");
  }
  ~NcclLibrary() override {
    if (communicator_ != nullptr) ncclCommAbort(communicator_);
    if (ready_ != nullptr) cudaEventDestroy(ready_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  const char* transport() const override { return "nccl"; }
  bool supports(Op op, Dtype dtype, ReduceOp reduce_op) const override {
    if (!reduces(op)) return true;  // elements that are only moved are bytes
    return is_defined(reduce_op, dtype) && type_of(dtype) && reduction_of(reduce_op, dtype);
  }

  void run(const Collective& call, std::uint32_t /*sequence*/, Deadline deadline) override {
    try {
      carry_out(call, deadline);
    } catch (...) {
      // Aborting also ends the wait of streams that wait for the communicator's work.
      ncclCommAbort(std::exchange(communicator_, nullptr));
      throw;
    }
  }

  // Does nothing: run() checks the mesh by itself.
  void abort() override {}

 private:
  void carry_out(const Collective& call, Deadline deadline) {
    // The current device is a setting of the thread.
    require(cudaSetDevice(device_), "cudaSetDevice");
    require_here(call);
    if (call.order == nullptr) require(cudaEventRecord(ready_, nullptr), "cudaEventRecord");
    const auto ready =
        call.order == nullptr ? ready_ : static_cast<cudaEvent_t>(call.order->ready());
    require(cudaStreamWaitEvent(stream_, ready, 0), "cudaStreamWaitEvent");
    const std::string what(name_of(call.op));
    start(call);
    wait_for_host(deadline, what);  // afterwards the stream has the whole call
    if (call.work != nullptr) call.work->queue(end_of_stream());
    poll_until([&] { return is_done(); }, mesh_, deadline, what);
  }

  // Refuses buffers of another GPU, which would cause an error of the device long after the call.
  void require_here(const Collective& call) const {
    for (const std::byte* data : {call.input, static_cast<const std::byte*>(call.output)}) {
      if (data == nullptr) continue;
      cudaPointerAttributes attributes{};
      require(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
      const bool is_on_device = attributes.type == cudaMemoryTypeDevice;
      check(is_on_device || attributes.type == cudaMemoryTypeManaged,
            "{}: {}: a buffer is declared to be in CUDA memory, but is not", self_,
            name_of(call.op));
      check(!is_on_device || attributes.device == device_,
            "{}: {}: a buffer is on GPU {}, but the group works on GPU {}, which was the "
            "current one when it formed; choose the rank's GPU (cudaSetDevice) before",
            self_, name_of(call.op), attributes.device, device_);
    }
  }

  DeviceEvent end_of_stream() const {
    cudaEvent_t event = nullptr;
    require(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    DeviceEvent end(event, [](void* last) { cudaEventDestroy(static_cast<cudaEvent_t>(last)); });
    require(cudaEventRecord(event, stream_), "cudaEventRecord");
    return end;
  }

  void connect(const LibraryContext& context) {
    ncclUniqueId id;
    if (rank_ == 0) require(ncclGetUniqueId(&id), "ncclGetUniqueId");
    share_id(context, id.internal, "NCCL");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    require(ncclCommInitRankConfig(&communicator_, world_size_, id, rank_, &config),
            "ncclCommInitRank");
    wait_for_host(context.deadline, "connecting with NCCL");
  }

  void start(const Collective& call) {
    const bool moves = !reduces(call.op);
    const auto type = moves ? ncclUint8 : *type_of(call.dtype);
    const std::size_t count = moves ? bytes_of(call) : call.count;
    const auto reduction = reduction_of(call.reduce_op, call.dtype).value_or(ncclSum);
    switch (call.op) {
      case Op::kAllReduce:
        require(
            ncclAllReduce(call.input, call.output, count, type, reduction, communicator_, stream_),
            "ncclAllReduce");
        break;
      case Op::kReduce:
        require(ncclReduce(call.input, call.output, count, type, reduction, call.root,
                           communicator_, stream_),
                "ncclReduce");
        break;
      case Op::kBroadcast:
        require(
            ncclBroadcast(call.input, call.output, count, type, call.root, communicator_, stream_),
            "ncclBroadcast");
        break;
      case Op::kAllGather:
        require(ncclAllGather(call.input, call.output, count, type, communicator_, stream_),
                "ncclAllGather");
        break;
      case Op::kReduceScatter:
        require(ncclReduceScatter(call.input, call.output, count, type, reduction, communicator_,
                                  stream_),
                "ncclReduceScatter");
        break;
      case Op::kGather:
      case Op::kScatter:
      case Op::kAllToAll:
        exchange(call, count);
        break;
      default:
        fail(ErrorCode::kUnsupported, "{}: nccl has no {}", self_, name_of(call.op));
    }
  }

  // Carries out gather, scatter and all-to-all as sends and receives of one block of `bytes` each.
  void exchange(const Collective& call, std::size_t bytes) {
    const bool gives_all = call.op != Op::kGather;
    const bool gets_all = call.op != Op::kScatter;
    const auto takes_part = [&](int giver, int taker) {
      if (call.op == Op::kGather) return taker == call.root;
      if (call.op == Op::kScatter) return giver == call.root;
      return true;
    };
    require(ncclGroupStart(), "ncclGroupStart");
    for (int peer = 0; peer < world_size_; ++peer) {
      const std::size_t block = static_cast<std::size_t>(peer) * bytes;
      if (takes_part(rank_, peer)) {
        require(ncclSend(call.input + (gives_all ? block : 0), bytes, ncclUint8, peer,
                         communicator_, stream_),
                "ncclSend");
      }
      if (takes_part(peer, rank_)) {
        require(ncclRecv(call.output + (gets_all ? block : 0), bytes, ncclUint8, peer,
                         communicator_, stream_),
                "ncclRecv");
      }
    }
    require(ncclGroupEnd(), "ncclGroupEnd");
  }

  bool is_done() {
    if (!host_is_done()) return false;
    const cudaError_t code = cudaStreamQuery(stream_);
    if (code == cudaErrorNotReady) return false;
    require(code, "cudaStreamQuery");
    return true;
  }

  bool host_is_done() {
    ncclResult_t state = ncclSuccess;
    require(ncclCommGetAsyncError(communicator_, &state), "ncclCommGetAsyncError");
    require(state, "NCCL");
    return state == ncclSuccess;
  }

  void wait_for_host(Deadline deadline, const std::string& what) {
    poll_until([&] { return host_is_done(); }, mesh_, deadline, what);
  }

  const std::string self_;
  const int rank_;
  const int world_size_;
  Mesh& mesh_;
  int device_ = 0;
  ncclComm_t communicator_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ready_ = nullptr;
};

}  // namespace

BackendInfo nccl_info() {
  return {.name = "nccl",
          .device = Device::kCuda,
          .available = true,
          .text = fmt::format("NCCL {}.{}.{}, CUDA {}.{}", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH,
                              CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10),
          .advice = ""};
}

std::unique_ptr<Library> connect_nccl(const LibraryContext& context) {
  return std::make_unique<NcclLibrary>(context);
}

}  // namespace paceline
