#include <cstring>
#include <limits>
#include <vector>

#include <xxhash.h>

#include "paceline/engine/collectives/backends/blocking_calls.h"
#include "paceline/engine/collectives/backends/library.h"
#include "paceline/engine/collectives/backends/library_list.h"
#include "paceline/engine/collectives/backends/mpi/mpi_runtime.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/check.h"

namespace paceline {
namespace {

using mpi::require;

class MpiLibrary : public Library {
 public:
  explicit MpiLibrary(const LibraryContext& context)
      : group_(context.group),
        self_(context.self()),
        rank_(context.rank),
        world_size_(context.world_size()),
        mesh_(context.mesh) {
    mpi::start(context);
    make_communicator(context);
  }
  // A communicator with an operation under way must not be freed.
  ~MpiLibrary() override {
    if (has_lost_a_peer()) mpi::abandon({});
    if (!failed_ && mpi::is_running()) MPI_Comm_free(&communicator_);
  }

  const char* transport() const override { return "mpi"; }
  bool supports(Op op, Dtype dtype, ReduceOp reduce_op) const override {
    return !reduces(op) || is_defined(reduce_op, dtype);
  }

  void run(const Collective& call, std::uint32_t /*sequence*/, Deadline deadline) override {
    if (call.count > std::numeric_limits<int>::max()) {
      fail(ErrorCode::kUnsupported,
           "{}: {} of {} elements: MPI counts only to 2147483647; choose --backend paceline", self_,
           name_of(call.op), call.count);
    }
    std::vector<std::byte> scratch;
    MPI_Request request = start(call, scratch);
    try {
      poll_until([&] { return is_done(request); }, mesh_, deadline, std::string(name_of(call.op)));
    } catch (...) {
      failed_ = true;
      mpi::abandon(std::move(scratch));
      throw;
    }
    finish(call, scratch);
  }

  // Does nothing: run() checks the mesh by itself, and MPI cannot cancel a collective under way.
  void abort() override {}

 private:
  void make_communicator(const LibraryContext& context) {
    MPI_Group world = MPI_GROUP_NULL;
    MPI_Group members = MPI_GROUP_NULL;
    require(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
    require(MPI_Group_incl(world, world_size_, context.world_ranks.data(), &members),
            "MPI_Group_incl");
    // The tag distinguishes groups that form at the same time; MPI guarantees tags up to 32767.
    const int tag = static_cast<int>(XXH3_64bits(group_.data(), group_.size()) % 32768);
    require(MPI_Comm_create_group(MPI_COMM_WORLD, members, tag, &communicator_),
            "MPI_Comm_create_group");
    MPI_Group_free(&members);
    MPI_Group_free(&world);
    require(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }

  bool has_lost_a_peer() const {
    if (!mesh_.failed()) return false;
    try {
      mesh_.throw_if_failed();
    } catch (const Error& error) {
      return error.code() == ErrorCode::kPeerLost;
    }
    return false;
  }

  // Begins the call. `scratch` is resized to memory that must live until the call's end.
  MPI_Request start(const Collective& call, std::vector<std::byte>& scratch) {
    const int count = static_cast<int>(call.count);
    const MPI_Datatype type = mpi::type_of(call.dtype);
    const bool is_root = rank_ == call.root;
    MPI_Request request = MPI_REQUEST_NULL;
    switch (call.op) {
      case Op::kAllReduce:
        require(MPI_Iallreduce(in_place(call.input, call.output), call.output, count, type,
                               operation(call), communicator_, &request),
                "MPI_Iallreduce");
        break;
      case Op::kReduce:
        require(MPI_Ireduce(is_root ? in_place(call.input, call.output) : call.input, call.output,
                            count, type, operation(call), call.root, communicator_, &request),
                "MPI_Ireduce");
        break;
      case Op::kBroadcast:
        if (is_root && call.input != call.output) {
          std::memcpy(call.output, call.input, bytes_of(call));
        }
        require(MPI_Ibcast(call.output, count, type, call.root, communicator_, &request),
                "MPI_Ibcast");
        break;
      case Op::kAllGather:
        require(MPI_Iallgather(in_place(call.input, block_of(call.output, call, rank_)), count,
                               type, call.output, count, type, communicator_, &request),
                "MPI_Iallgather");
        break;
      case Op::kGather:
        require(MPI_Igather(
                    is_root ? in_place(call.input, block_of(call.output, call, rank_)) : call.input,
                    count, type, call.output, count, type, call.root, communicator_, &request),
                "MPI_Igather");
        break;
      case Op::kScatter: {
        const bool own = is_root && call.output == block_of(call.input, call, rank_);
        require(MPI_Iscatter(call.input, count, type, own ? MPI_IN_PLACE : call.output, count, type,
                             call.root, communicator_, &request),
                "MPI_Iscatter");
        break;
      }
      case Op::kReduceScatter:
        // The result may overlap the input, so MPI writes it to `scratch`.
        scratch.resize(bytes_of(call));
        require(MPI_Ireduce_scatter_block(call.input, scratch.data(), count, type, operation(call),
                                          communicator_, &request),
                "MPI_Ireduce_scatter_block");
        break;
      case Op::kAllToAll:
        require(MPI_Ialltoall(call.input, count, type, call.output, count, type, communicator_,
                              &request),
                "MPI_Ialltoall");
        break;
      default:
        fail(ErrorCode::kUnsupported, "{}: mpi has no {}", self_, name_of(call.op));
    }
    return request;
  }

  void finish(const Collective& call, const std::vector<std::byte>& scratch) const {
    if (!scratch.empty()) std::memcpy(call.output, scratch.data(), scratch.size());
    finish_mean(call, rank_, world_size_);
  }

  static bool is_done(MPI_Request& request) {
    int done = 0;
    require(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  }

  static MPI_Op operation(const Collective& call) {
    return mpi::operation_of(call.reduce_op, call.dtype);
  }
  static const void* in_place(const std::byte* input, const std::byte* output) {
    return input == output ? MPI_IN_PLACE : input;
  }

  const std::string group_;
  const std::string self_;
  const int rank_;
  const int world_size_;
  Mesh& mesh_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  bool failed_ = false;
};

}  // namespace

BackendInfo mpi_info() {
  return {.name = "mpi",
          .device = Device::kCpu,
          .available = true,
          .text = mpi::version() + ", under its mpirun",
          .advice = ""};
}

std::unique_ptr<Library> connect_mpi(const LibraryContext& context) {
  return std::make_unique<MpiLibrary>(context);
}

}  // namespace paceline
