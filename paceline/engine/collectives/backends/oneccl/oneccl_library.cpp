#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include <oneapi/ccl.hpp>

#include "paceline/engine/collectives/backends/blocking_calls.h"
#include "paceline/engine/collectives/backends/library.h"
#include "paceline/engine/collectives/backends/library_list.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/system/host.h"

namespace paceline {
namespace {

// Initialises oneCCL once in this process. Variables that the user has set keep their values.
void initialize(const LaunchEnvironment& environment) {
  static std::once_flag once;
  std::call_once(once, [&] {
    constexpr int kKeepUserValue = 0;
    const auto set = [](const char* name, const std::string& value) {
      setenv(name, value.c_str(), kKeepUserValue);
    };
    set("CCL_ATL_TRANSPORT", "ofi");
    set("CCL_PROCESS_LAUNCHER", "none");
    set("CCL_LOCAL_RANK", std::to_string(environment.local_rank));
    set("CCL_LOCAL_SIZE", std::to_string(environment.local_world_size));
    set("CCL_LOG_LEVEL", "error");
    // Two settings keep this process alive when a peer dies. A worker thread of oneCCL throws when
    // a connection breaks, and no handler catches the exception; without worker threads the calling
    // thread does the work. A communicator that is destroyed removes its names from its group's
    // server on rank 0 and ends the process if the server no longer exists; the second setting
    // prevents the removal.
    set("CCL_WORKER_OFFLOAD", "0");
    set("CCL_PMI_FORCE_FINALIZE", "1");
    set("FI_PROVIDER_PATH", PACELINE_ONECCL_PROVIDERS);
    ccl::init();
  });
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

// Returns oneCCL's counterpart of `op`; for a mean this is the sum, which finish_mean() divides.
// Bools are 0 or 1, so their sum ("or") is a maximum, and their product ("and") a minimum. Returns
// nullopt if oneCCL lacks the reduction, and for minima and maxima of floating-point numbers, where
// oneCCL may drop a NaN.
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

// The objects of oneCCL for one group. Only the group's thread uses them, because over libfabric
// oneCCL's operations block until they have completed. The thread must hold the process's turn
// (ProcessTurn), because without worker threads two threads would both change oneCCL's state.
class Connection {
 public:
  Connection(std::string self, int rank, int world_size)
      : self_(std::move(self)), rank_(rank), world_size_(world_size) {}

  // Call this on rank 0 only. Starts the group's server and returns its address for connect().
  ccl::kvs::address_type open() {
    server_ = ccl::create_main_kvs();
    return server_->get_address();
  }
  void connect(const ccl::kvs::address_type& address) {
    if (!server_) server_ = ccl::create_kvs(address);
    inside([&] { communicator_.emplace(ccl::create_communicator(world_size_, rank_, server_)); });
  }
  bool is_open() const { return server_ || communicator_; }
  // Returns whether a call has failed inside oneCCL. The failed call stays in oneCCL's queue, and
  // any later call would continue it.
  bool is_broken() const { return is_broken_; }
  // Closes the communicator, gives the turn back, and closes the server without the turn, because
  // closing the server on rank 0 waits until the other ranks have closed their connections.
  void close(std::shared_ptr<ProcessTurn> turn) {
    communicator_.reset();
    turn.reset();
    server_.reset();
  }

  void run(const Collective& call) {
    if (reduces(call.op) && !reduction_of(call.reduce_op, call.dtype)) {
      reduce_contributions(call, rank_, world_size_, contributions_,
                           [&](const Collective& moved) { carry_out(moved); });
      return;
    }
    carry_out(call);
    finish_mean(call, rank_, world_size_);
  }

 private:
  void carry_out(const Collective& call) {
    inside([&] { start(call).wait(); });
  }
  template <class Call>
  void inside(Call&& call) {
    try {
      call();
    } catch (const Error&) {  // Paceline throws this error, not oneCCL
      throw;
    } catch (...) {
      is_broken_ = true;
      throw;
    }
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
        fail(ErrorCode::kUnsupported, "{}: oneccl has no {}", self_, name_of(call.op));
    }
  }

  const std::string self_;
  const int rank_;
  const int world_size_;
  ccl::shared_ptr_class<ccl::kvs> server_;
  std::optional<ccl::communicator> communicator_;
  std::vector<std::byte> contributions_;
  bool is_broken_ = false;
};

// When a group ends, a call may still be under way, which all other ranks may have begun. The call
// gets this time to complete.
constexpr std::chrono::milliseconds kCatchUp{200};
// The longest wait for the turn that a close needs, and for the close itself. A close takes
// milliseconds, but rank 0 waits for the other ranks.
constexpr std::chrono::seconds kClose{5};
constexpr std::chrono::milliseconds kLookForTurn{2};

class OneCclLibrary : public Library {
 public:
  explicit OneCclLibrary(const LibraryContext& context)
      : group_(context.group),
        world_ranks_(context.world_ranks),
        self_(context.self()),
        rank_(context.rank),
        mesh_(context.mesh),
        agree_(context.agree),
        connection_(
            std::make_shared<Connection>(context.self(), context.rank, context.world_size())),
        calls_("paceline-oneccl") {
    try {
      connect(context);
    } catch (const Error& error) {
      mesh_.abort(error);  // tells the other ranks now, so that they do not wait
      leave();
      throw;
    }
  }
  ~OneCclLibrary() override { leave(); }

  const char* transport() const override { return "oneccl"; }
  bool supports(Op op, Dtype dtype, ReduceOp reduce_op) const override {
    if (op == Op::kGather || op == Op::kScatter) return false;
    return !reduces(op) || is_defined(reduce_op, dtype);
  }

  void run(const Collective& call, std::uint32_t /*sequence*/, Deadline deadline) override {
    const std::string what(name_of(call.op));
    const auto turn = take_turn(deadline, what);
    carry_out(
        *turn, [turn, connection = connection_, call] { connection->run(call); }, deadline, what);
  }

  // Does nothing: run() itself checks the mesh, and oneCCL cannot end a call that is under way.
  void abort() override {}

 private:
  void connect(const LibraryContext& context) {
    const std::string what = "the connection";  // messages continue with "of group NAME"
    const auto turn = take_turn(context.deadline, what);
    const auto address = std::make_shared<ccl::kvs::address_type>();
    const bool is_first = context.rank == 0;
    carry_out(
        *turn,
        [turn, connection = connection_, address, is_first, environment = context.environment] {
          initialize(environment);
          if (is_first) *address = connection->open();
        },
        context.deadline, what);
    share_id(context, *address, "oneCCL");
    carry_out(
        *turn, [turn, connection = connection_, address] { connection->connect(*address); },
        context.deadline, what);
  }

  // Closes the connection. In a child of fork(), or if closing fails, leaks the connection instead,
  // because an abandoned call may still use it.
  void leave() {
    if (!owner_.is_this() || !close()) new std::shared_ptr<Connection>(connection_);
  }

  // Closes the connection. Returns false if the close does not complete in time, or if a call of
  // oneCCL is still under way, in this group or in another one.
  bool close() {
    if (!calls_.catch_up(Deadline::after(kCatchUp))) return false;
    if (!connection_->is_open()) return true;
    std::shared_ptr<ProcessTurn> turn;
    const auto limit = Deadline::after(kClose);
    while (!(turn = ProcessTurn::take(kLookForTurn))) {
      if (ProcessTurn::is_lost() || limit.expired()) return false;
    }
    const std::weak_ptr<ProcessTurn> unless_given_back = turn;
    auto call = [connection = connection_, turn = std::move(turn)]() mutable {
      connection->close(std::move(turn));
    };
    const bool is_closed = calls_.run_until(Deadline::after(kClose), std::move(call));
    if (const auto held = is_closed ? nullptr : unless_given_back.lock()) held->give_up();
    return is_closed;
  }

  std::shared_ptr<ProcessTurn> take_turn(Deadline deadline, const std::string& what) {
    const auto agree = [&](bool mine) { return agree_(mine, deadline); };
    return take_turns(agree, world_ranks_, mesh_, deadline, what);
  }

  // Runs `call` on the group's thread. Errors: those of BlockingCalls::run(), and kSystem if oneCCL
  // throws; `what` names the call in messages. After a failure inside oneCCL the turn is kept
  // forever, so that no group makes another call. Requires: `call` owns `turn`.
  void carry_out(ProcessTurn& turn, std::function<void()> call, Deadline deadline,
                 const std::string& what) {
    auto carry = [&turn, connection = connection_, call = std::move(call)] {
      try {
        call();
      } catch (...) {
        if (connection->is_broken()) turn.keep();
        throw;
      }
    };
    try {
      calls_.run(std::move(carry), mesh_, deadline, what);
    } catch (const Error&) {
      if (calls_.given_up()) turn.give_up();
      throw;
    } catch (const std::exception& error) {
      if (calls_.given_up()) turn.give_up();
      fail(ErrorCode::kSystem, "{}: {} of group {} failed in oneCCL: {}", self_, what, group_,
           error.what());
    }
  }

  const OwnerProcess owner_;
  const std::string group_;
  const std::vector<int> world_ranks_;
  const std::string self_;
  const int rank_;
  Mesh& mesh_;
  const decltype(LibraryContext::agree) agree_;
  const std::shared_ptr<Connection> connection_;
  BlockingCalls calls_;
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
