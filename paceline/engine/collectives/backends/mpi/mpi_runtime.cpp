#include "paceline/engine/collectives/backends/mpi/mpi_runtime.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <list>
#include <mutex>
#include <utility>

#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"

namespace paceline::mpi {

namespace {

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
        "{}: backend mpi needs MPI's own launcher, and this job was started by {}: mpirun -np "
        "{} PROGRAM, or another --backend",
        context.self(), context.who.launcher, context.who.world_size);
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
  check(rank == context.who.rank && size == context.who.world_size,
        "{}: MPI calls this process rank {} of {}, but it is rank {} of the {} of the job "
        "(launcher: {}); start the job with the mpirun of {}, to which this program is linked",
        context.self(), rank, size, context.who.rank, context.who.world_size, context.who.launcher,
        version());
}

}  // namespace

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

void start(const LibraryContext& context) {
  const std::lock_guard lock(start_mutex);
  initialize(context);
  require_threads(context);
  require_same_world(context);
}

void require(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(ErrorCode::kSystem, "{} failed: {}", what, text);
}

bool is_running() {
  int initialized = 0;
  int finalized = 0;
  return MPI_Initialized(&initialized) == MPI_SUCCESS && initialized != 0 &&
         MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0;
}

void abandon(std::vector<std::byte> memory) {
  static std::mutex mutex;  // guards kept
  // Never destroyed, because MPI may use it until the process ends.
  static auto& kept = *new std::list<std::vector<std::byte>>;
  abandoned = true;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(memory));
}

namespace {

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

struct Made {
  std::mutex mutex;  // guards the operations
  std::array<MPI_Op, kNumDtypes * kNumOps> operations;
  // Each type has its own MPI type, even at the same size, because an operation belongs to one
  // type.
  MPI_Datatype half = bytes_type(2);
  MPI_Datatype brain = bytes_type(2);
  MPI_Datatype boolean = bytes_type(1);

  Made() { operations.fill(MPI_OP_NULL); }
};

Made& made() {
  // Never destroyed, because groups may exist until the process ends.
  static auto& instance = *new Made;
  return instance;
}

MPI_Op own_operation(ReduceOp op, Dtype dtype) {
  const std::size_t index =
      static_cast<std::size_t>(dtype) * kNumOps + static_cast<std::size_t>(op);
  Made& all = made();
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

}  // namespace

MPI_Datatype type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return MPI_FLOAT;
    case Dtype::kFloat64:
      return MPI_DOUBLE;
    case Dtype::kFloat16:
      return made().half;
    case Dtype::kBfloat16:
      return made().brain;
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
      return made().boolean;
  }
  return MPI_BYTE;
}

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

}  // namespace paceline::mpi
