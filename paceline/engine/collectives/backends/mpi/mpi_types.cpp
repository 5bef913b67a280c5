#include "paceline/engine/collectives/backends/mpi/mpi_types.h"

#include <array>
#include <mutex>
#include <utility>

#include "paceline/engine/collectives/backends/mpi/mpi_runtime.h"
#include "paceline/engine/collectives/kernels/reduce.h"

namespace paceline::mpi {
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
  // One type each, although some have the same size: an operation is made for one.
  MPI_Datatype half = bytes_type(2);
  MPI_Datatype brain = bytes_type(2);
  MPI_Datatype boolean = bytes_type(1);

  Made() { operations.fill(MPI_OP_NULL); }
};

Made& made() {
  static auto& instance = *new Made;  // for groups that end when the process does
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
  // MPI does not say what becomes of NaN; here it wins.
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
