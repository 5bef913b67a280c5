#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "paceline/engine/collectives/backends/blocking_calls.h"
#include "paceline/engine/collectives/backends/library.h"
#include "paceline/engine/collectives/backends/library_list.h"
#include "paceline/engine/collectives/backends/nccl/device_watch.h"
#include "paceline/engine/collectives/backends/nccl/nccl_api.h"
#include "paceline/engine/collectives/backends/nccl/nccl_communicator.h"
#include "paceline/engine/collectives/backends/nccl/nccl_messages.h"
#include "paceline/engine/collectives/device_order.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/collectives/work.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/rendezvous/launch_environment.h"

namespace paceline {
namespace {

// The longest time that a group's destruction waits for NCCL's communicators to close.
constexpr std::chrono::seconds kCloseLimit{10};

// Lets this thread call CUDA while another thread captures a graph. Without this object, a call in
// this thread would make that capture fail.
class OwnCaptures {
 public:
  explicit OwnCaptures(const CudaApi& cuda) : cuda_(cuda) {
    cuda_.cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  ~OwnCaptures() { cuda_.cudaThreadExchangeStreamCaptureMode(&mode_); }
  OwnCaptures(const OwnCaptures&) = delete;
  OwnCaptures& operator=(const OwnCaptures&) = delete;

 private:
  const CudaApi& cuda_;
  int mode_ = cuda::kCaptureOfOwnThread;
};

// The facts about a rank's NCCL and GPU, which the ranks of a group compare before NCCL connects
// them. Otherwise different versions, or two ranks on one GPU, would show as a hang, or as an error
// that names no rank.
struct GpuFacts {
  int nccl_version = 0;
  std::string nccl_path;
  std::string host;    // distinguishes hosts: host_token()
  std::string bus_id;  // distinguishes the GPUs of a host: "0000:3b:00.0"
  int device = 0;      // the GPU's number in this process
  int visible = 0;     // how many GPUs this process sees

  std::string encode() const;
  // Error(kCorrupt) for a text that encode() did not write.
  static GpuFacts decode(const std::string& text);
};

constexpr std::size_t kNumFields = 6;
// The longest path in the text, so that the whole text stays below tell_all()'s limit, 500 bytes.
constexpr std::size_t kLongestPath = 300;

std::string GpuFacts::encode() const {
  const std::string path =
      nccl_path.size() <= kLongestPath
          ? nccl_path
          : fmt::format("...{}",
                        std::string_view(nccl_path).substr(nccl_path.size() - kLongestPath));
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}", nccl_version, device, visible, bus_id, host, path);
}

GpuFacts GpuFacts::decode(const std::string& text) {
  std::vector<std::string> fields;
  for (const std::string_view field : split(text, '\n')) fields.emplace_back(field);
  const auto number = [&](std::size_t i) {
    return i < fields.size() ? parse_number<int>(fields[i]) : std::optional<int>();
  };
  const auto version = number(0), device = number(1), visible = number(2);
  if (fields.size() != kNumFields || !version || !device || !visible) {
    fail(ErrorCode::kCorrupt,
         "'{}' does not describe a rank's GPU; all ranks must run the same build", text);
  }
  return {.nccl_version = *version,
          .nccl_path = fields[5],
          .host = fields[4],
          .bus_id = fields[3],
          .device = *device,
          .visible = *visible};
}

// The device on which a rank works unless the program has chosen another one: the local rank,
// modulo the number of visible GPUs. So the device is 0 if the launcher lets each rank see only one
// GPU. Requires: `visible` is at least 1.
int device_of_local_rank(int local_rank, int visible) { return std::max(local_rank, 0) % visible; }

// Returns the facts of this rank. If the thread's current device is still 0, first makes the local
// rank's device current: a program that chooses no device would put all ranks of a host on GPU 0.
// Errors: those of CudaApi::require(), for example if there is no GPU.
GpuFacts gpu_facts_here(const NcclApi& api, const LaunchEnvironment& environment) {
  const CudaApi& cuda = *api.cuda;
  GpuFacts facts{.nccl_version = api.version,
                 .nccl_path = api.library.path,
                 .host = host_token(),
                 .bus_id = "",
                 .device = 0,
                 .visible = 0};
  cuda.require(cuda.cudaGetDeviceCount(&facts.visible), "", "counting the GPUs");
  if (facts.visible == 0) cuda.require(cuda::kNoDevice, "", "counting the GPUs");
  cuda.require(cuda.cudaGetDevice(&facts.device), "", "cudaGetDevice");
  if (facts.device == 0) facts.device = device_of_local_rank(environment.local_rank, facts.visible);
  cuda.require(cuda.cudaSetDevice(facts.device), "",
               fmt::format("choosing GPU {} of {}", facts.device, facts.visible));
  std::array<char, 32> bus_id{};
  cuda.require(
      cuda.cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()) - 1, facts.device),
      "", "cudaDeviceGetPCIBusId");
  facts.bus_id = bus_id.data();
  std::transform(facts.bus_id.begin(), facts.bus_id.end(), facts.bus_id.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return facts;
}

// This function and the next one throw Error(kInvalid) if two ranks have different versions of
// NCCL, or the same GPU. `all` is in the order of ranks; `name_of` names a rank with its host. The
// text is the same on every rank.
void require_one_nccl(const std::vector<GpuFacts>& all,
                      const std::function<std::string(std::size_t rank)>& name_of) {
  const GpuFacts& first = all[0];
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    check(all[rank].nccl_version == first.nccl_version,
          "{} has NCCL {} ({}), {} has NCCL {} ({}): install the same version everywhere, or name "
          "its file in PACELINE_LIBNCCL",
          name_of(0), nccl_version_text(first.nccl_version), first.nccl_path, name_of(rank),
          nccl_version_text(all[rank].nccl_version), all[rank].nccl_path);
  }
}

void require_own_gpus(const std::vector<GpuFacts>& all,
                      const std::function<std::string(std::size_t rank)>& name_of) {
  std::map<std::pair<std::string, std::string>, std::size_t> owners;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const GpuFacts& facts = all[rank];
    const auto [other, is_new] = owners.try_emplace({facts.host, facts.bus_id}, rank);
    if (is_new) continue;
    const auto ranks_there = std::count_if(
        all.begin(), all.end(), [&](const GpuFacts& theirs) { return theirs.host == facts.host; });
    check(ranks_there <= facts.visible,
          "{} and {} both have GPU {} ({}): NCCL needs a GPU for each rank, and {} share {} there; "
          "start as many ranks as there are GPUs (--nproc-per-node gpu)",
          name_of(other->second), name_of(rank), facts.device, facts.bus_id,
          counted(ranks_there, "rank"), counted(facts.visible, "GPU"));
    check(
        false,
        "{} and {} both have GPU {} ({}): NCCL needs a GPU for each rank; choose it by LOCAL_RANK "
        "(cudaSetDevice), or never call cudaSetDevice, and each rank gets its own",
        name_of(other->second), name_of(rank), facts.device, facts.bus_id);
  }
}

// Collective. Checks that all ranks use one version of NCCL, and that each rank has a GPU of its
// own. Returns this rank's device.
int agree_on_gpus(const LibraryContext& context) {
  int device = 0;
  const auto texts = context.tell_all([&] {
    const GpuFacts mine = gpu_facts_here(NcclApi::load(), context.environment);
    device = mine.device;
    return mine.encode();
  });
  std::vector<GpuFacts> all;
  for (const std::string& text : texts) all.push_back(GpuFacts::decode(text));
  const auto name_of = [&](std::size_t rank) {
    return context.mesh.describe(static_cast<int>(rank));
  };
  try {
    require_one_nccl(all, name_of);
    require_own_gpus(all, name_of);
  } catch (const Error& error) {
    throw error.reworded(
        fmt::format("{}: forming group {}: {}", context.self(), context.group, error.what()));
  }
  return device;
}

class NcclLibrary : public Library {
 public:
  NcclLibrary(const NcclApi& api, const LibraryContext& context, int device)
      : api_(api),
        cuda_(*api.cuda),
        self_(context.self()),
        rank_(context.rank),
        world_size_(context.world_size()),
        mesh_(context.mesh),
        device_(device) {
    const CudaDeviceGuard guard(cuda_, device_, self_);
    nccl::Id id;
    if (rank_ == 0) api_.require(api_.ncclGetUniqueId(&id), self_, "ncclGetUniqueId");
    share_id(context, id.bytes, "NCCL");
    communicator_ = std::make_shared<NcclCommunicator>(api_, world_size_, id, rank_, self_);
    wait_for_host(context.deadline, "connecting with NCCL");
    // This stream does not synchronise with the default stream; wait_for_caller() orders each call
    // after the caller's work.
    cuda_.require(cuda_.cudaStreamCreateWithFlags(&stream_, cuda::kNonBlocking), self_,
                  "cudaStreamCreate");
    watch_ = std::make_unique<DeviceWatch>(hooks(context));
    messages_ = std::make_unique<NcclMessages>(api_, context, device_, *watch_);
  }

  // Unless the group has failed, waits until the device has finished all queued calls: Work::wait()
  // returns before that, so the program may still need the results.
  ~NcclLibrary() override {
    NcclCommunicator::Several open = messages_->stop();
    watch_.reset();
    open.push_back(std::move(communicator_));
    if (mesh_.failed()) {
      NcclCommunicator::abort(open);
    } else {
      NcclCommunicator::close(open, Deadline::after(kCloseLimit));
    }
    cuda_.cudaStreamDestroy(stream_);
  }

  const char* transport() const override { return "nccl"; }
  bool supports(Op op, Dtype dtype, ReduceOp reduce_op) const override {
    return nccl_supports(op, dtype, reduce_op);
  }
  bool takes_parts() const override { return true; }
  bool takes_messages() const override { return true; }
  WorkPtr start(Op op, const PointToPointCall& call, Deadline deadline) override {
    {
      const CudaDeviceGuard guard(cuda_, device_, self_);
      const OwnCaptures captures(cuda_);
      require_on_gpu(op, call.count > 0 ? call.data : nullptr);
    }
    return messages_->start(op, call, deadline);
  }

  // Refuses buffers that are not on the group's GPU. Without this check, the device would report an
  // error long after the call.
  void require_usable(const Collective& call) const override {
    const CudaDeviceGuard guard(cuda_, device_, self_, !is_on_own_thread(call));
    const OwnCaptures captures(cuda_);
    require_on_gpu(call.op, call.input);
    require_on_gpu(call.op, call.output);
    for (const CollectivePart& part : call.parts) {
      require_on_gpu(call.op, part.input);
      require_on_gpu(call.op, part.output);
    }
  }

  void run(const Collective& call, std::uint32_t sequence, Deadline deadline) override {
    const CudaDeviceGuard guard(cuda_, device_, self_, !is_on_own_thread(call));
    const OwnCaptures captures(cuda_);
    const std::string what = fmt::format("{} #{}", name_of(call.op), sequence);
    wait_for_caller(call);
    communicator_->call("starting an operation", [&](NcclHandle handle) {
      queue_call(call, {api_, handle, stream_, rank_, world_size_, self_});
      return nccl::kSuccess;
    });
    wait_for_host(deadline, what);  // until the whole call has been queued on the stream
    const DeviceEvent end = event_after(cuda_, stream_, self_);
    if (call.work == nullptr) {
      poll_until([&] { return is_done(end.get()) && communicator_->is_ready(); }, mesh_, deadline,
                 what);
    } else if (is_captured()) {
      call.work->queue(end);  // every run of the graph computes the result
    } else {
      call.work->queue(end, true);
      watch_->add({.work = call.work->shared_from_this(),
                   .done = end,
                   .deadline = deadline,
                   .what = what,
                   .name = std::string(name_of(call.op))});
    }
  }

  // Aborts all communicators. This also ends their operations on the device, so streams that wait
  // for these operations continue.
  void abort() override { NcclCommunicator::abort(communicators()); }

 private:
  NcclCommunicator::Several communicators() const {
    NcclCommunicator::Several all;
    if (messages_) all = messages_->communicators();
    if (communicator_) all.push_back(communicator_);
    return all;
  }

  // Returns the functions through which the watch uses the device, the communicators and the group.
  WatchHooks hooks(const LibraryContext& context) {
    return {.self = self_,
            .group = context.group,
            .begin =
                [this] {
                  int mode = cuda::kCaptureOfOwnThread;
                  cuda_.cudaThreadExchangeStreamCaptureMode(&mode);
                  cuda_.cudaSetDevice(device_);
                },
            .is_done = [this](void* event) { return is_done(event); },
            .check_failures =
                [this] {
                  messages_->require_peers(mesh_.throw_if_failed());
                  for (const auto& one : communicators()) one->is_ready();
                },
            .fail = context.fail_group};
  }

  // Whether a thread of the group carries out this call, which is true for all calls with an order.
  // Calls without an order may run on a thread of the program.
  static bool is_on_own_thread(const Collective& call) { return call.order != nullptr; }

  // Throws Error(kInvalid) if the buffer at `data` is not on the group's GPU; managed memory and
  // null are accepted.
  void require_on_gpu(Op op, const std::byte* data) const {
    if (data == nullptr) return;
    cuda::PointerAttributes attributes;
    cuda_.require(cuda_.cudaPointerGetAttributes(&attributes, data), self_,
                  "cudaPointerGetAttributes");
    const bool is_on_device = attributes.type == cuda::kMemoryOfDevice;
    check(is_on_device || attributes.type == cuda::kManagedMemory,
          "{}: {}: a buffer is declared to be in CUDA memory, but is not", self_, name_of(op));
    check(!is_on_device || attributes.device == device_,
          "{}: {}: a buffer is on GPU {}, but the group works on GPU {}, which was the current "
          "device when the group formed; choose the rank's GPU (cudaSetDevice) before that",
          self_, name_of(op), attributes.device, device_);
  }

  // Makes the stream wait for the caller's earlier work: for the order's event or, without an
  // order, for everything on the default stream.
  void wait_for_caller(const Collective& call) const {
    DeviceEvent own;
    void* ready = nullptr;
    if (call.order != nullptr) {
      ready = call.order->ready();
    } else {
      own = event_after(cuda_, nullptr, self_);
      ready = own.get();
    }
    cuda_.require(cuda_.cudaStreamWaitEvent(stream_, static_cast<CudaEvent>(ready), 0), self_,
                  "cudaStreamWaitEvent");
  }

  // Whether a CUDA graph is capturing the stream.
  bool is_captured() const {
    int status = 0;
    cuda_.require(cuda_.cudaStreamIsCapturing(stream_, &status), self_, "cudaStreamIsCapturing");
    return status == cuda::kBeingCaptured;
  }

  // Whether the device has reached `event`. Throws the error of a failed operation.
  bool is_done(void* event) const {
    const int code = cuda_.cudaEventQuery(static_cast<CudaEvent>(event));
    if (code == cuda::kNotReady) return false;
    cuda_.require(code, self_, "an operation on the device");
    return true;
  }

  // Waits until NCCL has no work left on the host.
  void wait_for_host(Deadline deadline, const std::string& what) {
    poll_until([&] { return communicator_->is_ready(); }, mesh_, deadline, what);
  }

  const NcclApi& api_;
  const CudaApi& cuda_;
  const std::string self_;
  const int rank_;
  const int world_size_;
  Mesh& mesh_;
  const int device_;
  CudaStream stream_ = nullptr;
  std::shared_ptr<NcclCommunicator> communicator_;  // owners: this object, and calls that close it
  std::unique_ptr<DeviceWatch> watch_;
  std::unique_ptr<NcclMessages> messages_;  // destroyed before the watch
};

}  // namespace

BackendInfo nccl_info() {
  return {.name = "nccl",
          .device = Device::kCuda,
          .available = true,
          .text = "loaded when a group chooses it",
          .advice = ""};
}

std::unique_ptr<Library> connect_nccl(const LibraryContext& context) {
  const int device = agree_on_gpus(context);  // also loads NCCL on every rank
  return std::make_unique<NcclLibrary>(NcclApi::load(), context, device);
}

}  // namespace paceline
