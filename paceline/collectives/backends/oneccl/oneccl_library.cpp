#include "paceline/collectives/backends/oneccl/oneccl_library.h"

#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include <oneapi/ccl.hpp>

#include "paceline/collectives/backends/library_call.h"
#include "paceline/collectives/backends/mean.h"
#include "paceline/collectives/backends/poll_until.h"
#include "paceline/collectives/backends/reduce_contributions.h"
#include "paceline/collectives/backends/share_id.h"
#include "paceline/core/check.h"

namespace paceline {
namespace {

void initialize(const LaunchEnvironment& who) {
  static std::once_flag once;
  std::call_once(once, [&] {
    constexpr int kKeepTheUsers = 0;
    const auto set = [](const char* name, const std::string& value) {
      setenv(name, value.c_str(), kKeepTheUsers);
    };
    set("CCL_ATL_TRANSPORT", "ofi");
    set("CCL_PROCESS_LAUNCHER", "none");
    set("CCL_LOCAL_RANK", std::to_string(who.local_rank));
    set("CCL_LOCAL_SIZE", std::to_string(who.local_world_size));
    set("CCL_LOG_LEVEL", "error");
    set("FI_PROVIDER_PATH", PACELINE_ONECCL_PROVIDERS);
    ccl::init();
  });
}

ccl::shared_ptr_class<ccl::kvs> meet(const LibraryContext& context) {
  const auto server = context.rank == 0 ? ccl::create_main_kvs() : nullptr;
  ccl::kvs::address_type address = server ? server->get_address() : ccl::kvs::address_type();
  share_id(context, address, "oneCCL");
  return server ? server : ccl::create_kvs(address);
}

ccl::datatype type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return ccl::datatype::float32;
    case Dtype::kFloat64:
      return ccl::datatype::float64;
    case Dtype::kFloat16:
      return ccl::datatype::float16;
    case Dtype::kBfloat16:
      return ccl::datatype::bfloat16;
    case Dtype::kInt8:
      return ccl::datatype::int8;
    case Dtype::kInt16:
      return ccl::datatype::int16;
    case Dtype::kInt32:
      return ccl::datatype::int32;
    case Dtype::kInt64:
      return ccl::datatype::int64;
    case Dtype::kUint8:
    case Dtype::kBool:
      return ccl::datatype::uint8;
  }
  return ccl::datatype::uint8;
}

// A mean is a sum here; the caller divides. Of bool, which is 0 or 1, the greatest is the "or".
// Nothing where oneCCL has no such reduction, or one in which NaN does not win.
std::optional<ccl::reduction> reduction_of(ReduceOp op, Dtype dtype) {
  const bool is_bool = dtype == Dtype::kBool;
  const bool compares = op == ReduceOp::kMin || op == ReduceOp::kMax;
  if (compares && is_floating_point(dtype)) return {};
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      return is_bool ? ccl::reduction::max : ccl::reduction::sum;
    case ReduceOp::kProduct:
      return is_bool ? ccl::reduction::min : ccl::reduction::prod;
    case ReduceOp::kMin:
      return ccl::reduction::min;
    case ReduceOp::kMax:
      return ccl::reduction::max;
    default:
      return {};
  }
}

class OneCclLibrary : public Library {
 public:
  explicit OneCclLibrary(const LibraryContext& context)
      : group_(context.group),
        rank_(context.rank),
        world_size_(context.world_size()),
        mesh_(context.mesh) {
    guarded("connecting", [&] {
      initialize(context.who);
      server_ = meet(context);
      communicator_.emplace(ccl::create_communicator(world_size_, rank_, server_));
    });
  }
  // With an operation under way, what it uses must stay.
  ~OneCclLibrary() override {
    if (abandoned_)
      new Remains{std::move(server_), std::move(communicator_), std::move(event_),
                  std::move(contributions_)};
  }

  const char* transport() const override { return "oneccl"; }
  bool supports(Op op, Dtype dtype, ReduceOp reduce_op) const override {
    if (op == Op::kGather || op == Op::kScatter) return false;
    return !reduces(op) || is_defined(reduce_op, dtype);
  }

  void run(const Collective& call, std::uint32_t /*sequence*/, Deadline deadline) override {
    if (reduces(call.op) && !reduction_of(call.reduce_op, call.dtype)) {
      reduce_contributions(call, rank_, world_size_, contributions_,
                           [&](const Collective& moved) { complete(moved, deadline); });
      return;
    }
    complete(call, deadline);
    finish_mean(call, rank_, world_size_);
  }

  // run() looks itself; oneCCL has no way to end what is under way.
  void abort() override {}

 private:
  struct Remains {
    ccl::shared_ptr_class<ccl::kvs> server;
    std::optional<ccl::communicator> communicator;
    std::optional<ccl::event> event;
    std::vector<std::byte> contributions;
  };

  void complete(const Collective& call, Deadline deadline) {
    guarded(name_of(call.op), [&] {
      event_.emplace(start(call));
      abandoned_ = true;
      poll_until([&] { return event_->test(); }, mesh_, deadline, std::string(name_of(call.op)));
      abandoned_ = false;
    });
  }

  ccl::event start(const Collective& call) {
    const auto type = type_of(call.dtype);
    const auto reduction = reduction_of(call.reduce_op, call.dtype).value_or(ccl::reduction::sum);
    auto* input = const_cast<std::byte*>(call.input);
    const auto root = call.root;
    switch (call.op) {
      case Op::kAllReduce:
        return ccl::allreduce(input, call.output, call.count, type, reduction, *communicator_);
      case Op::kReduce:
        return ccl::reduce(input, call.output, call.count, type, reduction, root, *communicator_);
      case Op::kBroadcast:
        if (rank_ == root && input != call.output) {
          std::memcpy(call.output, input, bytes_of(call));
        }
        return ccl::broadcast(call.output, call.count, type, root, *communicator_);
      case Op::kAllGather:
        return ccl::allgather(input, call.output, call.count, type, *communicator_);
      case Op::kReduceScatter:
        return ccl::reduce_scatter(input, call.output, call.count, type, reduction, *communicator_);
      case Op::kAllToAll:
        return ccl::alltoall(input, call.output, call.count, type, *communicator_);
      default:
        fail(ErrorCode::kUnsupported, "rank {}: oneccl has no {}", rank_, name_of(call.op));
    }
  }

  void guarded(std::string_view what, const std::function<void()>& operation) const {
    try {
      operation();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      fail(ErrorCode::kSystem, "rank {}: {} of group {} failed in oneCCL: {}", rank_, what, group_,
           error.what());
    }
  }

  const std::string group_;
  const int rank_;
  const int world_size_;
  Mesh& mesh_;
  ccl::shared_ptr_class<ccl::kvs> server_;
  std::optional<ccl::communicator> communicator_;
  std::optional<ccl::event> event_;
  std::vector<std::byte> contributions_;
  bool abandoned_ = false;
};

}  // namespace

BackendInfo oneccl_info() {
  return {.name = "oneccl",
          .device = Device::kCpu,
          .available = true,
          .text = fmt::format("oneCCL {}.{}.{}, on the CPU over libfabric", CCL_MAJOR_VERSION,
                              CCL_MINOR_VERSION, CCL_UPDATE_VERSION),
          .advice = ""};
}

std::unique_ptr<Library> connect_oneccl(const LibraryContext& context) {
  return std::make_unique<OneCclLibrary>(context);
}

}  // namespace paceline
