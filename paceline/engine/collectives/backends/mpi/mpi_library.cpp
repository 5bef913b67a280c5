#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <list>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <mpi.h>
#include <xxhash.h>

#include "paceline/engine/collectives/backends/blocking_calls.h"
#include "paceline/engine/collectives/backends/library.h"
#include "paceline/engine/collectives/backends/library_list.h"
#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"

namespace paceline {

// Starts and ends MPI in this process, and maps Paceline's types and reductions to MPI's. A process
// can start MPI only once and end it only once: the first group that needs MPI starts it, and the
// process's exit ends it. A program that has called MPI_Init_thread itself must also end MPI
// itself.
//
// Thread safety: every function may be called from any thread.
namespace mpi {
namespace {

// Throws Error(kSystem) with MPI's text unless `code` is MPI_SUCCESS.
void require(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(ErrorCode::kSystem, "{} failed: {}", what, text);
}

// True between start() and the end of MPI.
bool is_running() {
  int initialized = 0;
  int finalized = 0;
  return MPI_Initialized(&initialized) == MPI_SUCCESS && initialized != 0 &&
         MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0;
}

// The version, as "Open MPI v4.1.4". May be called before start().
std::string version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "MPI";
  std::string first(text, static_cast<std::size_t>(length));
  first = first.substr(0, first.find_first_of(",\n"));
  // The text is like "MPICH Version:\t4.0.2".
  for (std::size_t at; (at = first.find_first_of(":\t")) != std::string::npos;) {
    first.replace(at, 1, first[at] == '\t' ? " " : "");
  }
  return first;
}

std::atomic<bool> abandoned{false};

std::mutex start_mutex;  // guards MPI's start, which happens once in a process

// Without one of MPI's launchers, MPI_Init would make a world of one rank.
bool has_launcher() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

void end() {
  if (!abandoned && is_running()) MPI_Finalize();
}

void initialize(const LibraryContext& context) {
  int initialized = 0;
  require(MPI_Initialized(&initialized), "MPI_Initialized");
  if (initialized) return;
  check(has_launcher(),
        "{}: backend mpi needs MPI's own launcher, but this job was started by {}; run mpirun -np "
        "{} PROGRAM, or choose another --backend",
        context.self(), context.environment.launcher, context.environment.world_size);
  int provided = 0;
  require(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  std::atexit(end);
}

void require_threads(const LibraryContext& context) {
  int provided = 0;
  require(MPI_Query_thread(&provided), "MPI_Query_thread");
  if (provided == MPI_THREAD_MULTIPLE) return;
  fail(ErrorCode::kUnsupported,
       "{}: backend mpi needs MPI_THREAD_MULTIPLE, which {} does not provide{}", context.self(),
       version(), "; if the program calls MPI_Init, let it call MPI_Init_thread");
}

void require_same_world(const LibraryContext& context) {
  int rank = 0;
  int size = 0;
  require(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  require(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  check(rank == context.environment.rank && size == context.environment.world_size,
        "{}: MPI counts this process as rank {} of {}, but in the job it is rank {} of {} "
        "(launcher: {}); start the job with the mpirun of {}, to which this program is linked",
        context.self(), rank, size, context.environment.rank, context.environment.world_size,
        context.environment.launcher, version());
}

// Starts MPI unless it is running. Errors: those of connect_mpi().
void start(const LibraryContext& context) {
  const std::lock_guard lock(start_mutex);
  initialize(context);
  require_threads(context);
  require_same_world(context);
}

// Called if a peer is lost or an operation cannot be completed. MPI_Finalize is then not called,
// because it could wait forever, and `memory`, which MPI may still use, is kept.
void abandon(std::vector<std::byte> memory) {
  static std::mutex mutex;  // guards kept
  // Never destroyed, because MPI may use it until the process ends.
  static auto& kept = *new std::list<std::vector<std::byte>>;
  abandoned = true;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(memory));
}

// type_of() and operation_of() map Paceline's element types and reductions to MPI's. If MPI lacks a
// type or reduction, or its reduction behaves differently, MPI gets a type of the same size and an
// operation that calls Paceline's kernel.
//
// Requires: MPI is running. Thread safety: any thread. The types and operations live as long as
// MPI.

constexpr std::size_t kNumDtypes = kAllDtypes.size();
constexpr std::size_t kNumOps = static_cast<std::size_t>(ReduceOp::kBitXor) + 1;

template <std::size_t kDtype, std::size_t kOp>
void combine(void* in, void* in_out, int* count, MPI_Datatype* /*type*/) {
  const std::byte* sources[] = {static_cast<const std::byte*>(in),
                                static_cast<const std::byte*>(in_out)};
  reduce(sources, static_cast<std::byte*>(in_out), static_cast<std::size_t>(*count),
         static_cast<Dtype>(kDtype), static_cast<ReduceOp>(kOp));
}

using Combine = void (*)(void*, void*, int*, MPI_Datatype*);

template <std::size_t... kIndex>
constexpr std::array<Combine, sizeof...(kIndex)> combine_table(std::index_sequence<kIndex...>) {
  return {&combine<kIndex / kNumOps, kIndex % kNumOps>...};
}
constexpr auto kCombine = combine_table(std::make_index_sequence<kNumDtypes * kNumOps>());

MPI_Datatype bytes_type(int bytes) {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  require(MPI_Type_contiguous(bytes, MPI_BYTE, &type), "MPI_Type_contiguous");
  require(MPI_Type_commit(&type), "MPI_Type_commit");
  return type;
}

struct CustomTypes {
  std::mutex mutex;  // guards the operations
  std::array<MPI_Op, kNumDtypes * kNumOps> operations;
  // Each element type has its own MPI type, even if sizes are equal, because an MPI operation
  // belongs to one element type.
  MPI_Datatype float16 = bytes_type(2);
  MPI_Datatype bfloat16 = bytes_type(2);
  MPI_Datatype boolean = bytes_type(1);

  CustomTypes() { operations.fill(MPI_OP_NULL); }
};

CustomTypes& custom_types() {
  // Never destroyed, because groups may exist until the process ends.
  static auto& instance = *new CustomTypes;
  return instance;
}

MPI_Op own_operation(ReduceOp op, Dtype dtype) {
  const std::size_t index =
      static_cast<std::size_t>(dtype) * kNumOps + static_cast<std::size_t>(op);
  CustomTypes& all = custom_types();
  const std::lock_guard lock(all.mutex);
  MPI_Op& operation = all.operations[index];
  if (operation == MPI_OP_NULL) {
    constexpr int kCommutes = 1;
    require(MPI_Op_create(kCombine[index], kCommutes, &operation), "MPI_Op_create");
  }
  return operation;
}

bool has_own_type(Dtype dtype) {
  return dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16 || dtype == Dtype::kBool;
}

MPI_Datatype type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return MPI_FLOAT;
    case Dtype::kFloat64:
      return MPI_DOUBLE;
    case Dtype::kFloat16:
      return custom_types().float16;
    case Dtype::kBfloat16:
      return custom_types().bfloat16;
    case Dtype::kInt8:
      return MPI_INT8_T;
    case Dtype::kInt16:
      return MPI_INT16_T;
    case Dtype::kInt32:
      return MPI_INT32_T;
    case Dtype::kInt64:
      return MPI_INT64_T;
    case Dtype::kUint8:
      return MPI_UINT8_T;
    case Dtype::kBool:
      return custom_types().boolean;
  }
  return MPI_BYTE;
}

// A mean is a sum here; the caller divides.
MPI_Op operation_of(ReduceOp op, Dtype dtype) {
  if (op == ReduceOp::kMean) op = ReduceOp::kSum;
  const bool compares = op == ReduceOp::kMin || op == ReduceOp::kMax;
  // MPI does not define the result for NaN; Paceline promises that NaN wins.
  if (has_own_type(dtype) || (compares && is_floating_point(dtype)))
    return own_operation(op, dtype);
  switch (op) {
    case ReduceOp::kProduct:
      return MPI_PROD;
    case ReduceOp::kMin:
      return MPI_MIN;
    case ReduceOp::kMax:
      return MPI_MAX;
    case ReduceOp::kBitAnd:
      return MPI_BAND;
    case ReduceOp::kBitOr:
      return MPI_BOR;
    case ReduceOp::kBitXor:
      return MPI_BXOR;
    default:
      return MPI_SUM;
  }
}

}  // namespace
}  // namespace mpi

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
    try {
      MPI_Request request = start_collective(call, scratch);
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
  MPI_Request start_collective(const Collective& call, std::vector<std::byte>& scratch) {
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
