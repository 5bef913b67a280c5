// An MPI library, called as its users call it. It is built once for Open MPI and once for MPICH.

#include <algorithm>
#include <climits>
#include <vector>

#include <mpi.h>

#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"

#include "apps/bench/contestant/contestant.h"

namespace paceline::bench {
namespace {

void require(int result, const char* what) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(result, text, &length);
  fail(ErrorCode::kAborted, "{}: {}", what, std::string(text, static_cast<std::size_t>(length)));
}

// MPI_DATATYPE_NULL if MPI has no such type.
MPI_Datatype type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return MPI_FLOAT;
    case Dtype::kFloat64:
      return MPI_DOUBLE;
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
      return MPI_CXX_BOOL;
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
      return MPI_DATATYPE_NULL;
  }
  return MPI_DATATYPE_NULL;
}

// The sum of bools is "or".
MPI_Op sum_of(Dtype dtype) { return dtype == Dtype::kBool ? MPI_LOR : MPI_SUM; }

int count_of(std::size_t count) {
  check(count <= INT_MAX, "{} elements are more than an int can count", count);
  return static_cast<int>(count);
}

class Mpi : public Contestant {
 public:
  explicit Mpi(const WorkerPlace& place)
      : rank_(place.rank),
        size_(place.world_size),
        counts_(static_cast<std::size_t>(size_)),
        starts_(counts_.size()) {
    require(MPI_Init(nullptr, nullptr), "MPI_Init");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    check(rank == place.rank && size == place.world_size,
          "MPI says rank {} of {}, its launcher said {} of {}", rank, size, place.rank,
          place.world_size);
  }
  ~Mpi() override { MPI_Finalize(); }
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  std::string version() const override {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(text, &length);
    std::string version(text, static_cast<std::size_t>(length));
    version.resize(std::min(version.find_first_of(",\n"), version.size()));
    for (char& c : version) c = c == '\t' ? ' ' : c;
    return version;
  }

  std::string lacks(Op op, Dtype dtype, Placement) const override {
    if (op == Op::kBarrier || type_of(dtype) != MPI_DATATYPE_NULL) return "";
    return fmt::format("has no {}", paceline::name_of(dtype));
  }

  void run(const Collective& call) override {
    if (has_counts(call.op)) lay_out(count_of(block_count(call)));
    require(start(call), "MPI");
  }

 private:
  // Sets equal counts for all ranks, in the form that MPI requires, unless they are already set.
  void lay_out(int count) {
    if (counts_.front() == count) return;
    for (std::size_t rank = 0; rank < counts_.size(); ++rank) {
      counts_[rank] = count;
      starts_[rank] = count_of(rank * static_cast<std::size_t>(count));
    }
  }

  int start(const Collective& call) const {
    const MPI_Datatype type = type_of(call.dtype);
    const MPI_Op sum = sum_of(call.dtype);
    const int count = count_of(call.count);
    const MPI_Comm world = MPI_COMM_WORLD;
    const void* const input = call.input;
    void* const output = call.output;
    switch (call.op) {
      case Op::kAllReduce:
        return MPI_Allreduce(input == output ? MPI_IN_PLACE : input, output, count, type, sum,
                             world);
      case Op::kBroadcast:
        return MPI_Bcast(output, count, type, call.root, world);
      case Op::kReduce:
        return MPI_Reduce(input == output ? MPI_IN_PLACE : input, output, count, type, sum,
                          call.root, world);
      case Op::kAllGather: {
        const bool in_place = call.input == call.output + static_cast<std::size_t>(rank_) *
                                                              call.count * size_of(call.dtype);
        return MPI_Allgather(in_place ? MPI_IN_PLACE : input, count, type, output, count, type,
                             world);
      }
      case Op::kGather:
        return MPI_Gather(input, count, type, output, count, type, call.root, world);
      case Op::kScatter:
        return MPI_Scatter(input, count, type, output, count, type, call.root, world);
      case Op::kReduceScatter:
        return MPI_Reduce_scatter_block(input, output, count, type, sum, world);
      case Op::kSend:
        return MPI_Sendrecv(input, count, type, (rank_ + 1) % size_, 0, output, count, type,
                            (rank_ + size_ - 1) % size_, 0, world, MPI_STATUS_IGNORE);
      case Op::kAllGatherV:
        return MPI_Allgatherv(input, counts_[0], type, output, counts_.data(), starts_.data(), type,
                              world);
      case Op::kReduceScatterV:
        return MPI_Reduce_scatter(input, output, counts_.data(), type, sum, world);
      case Op::kAllToAllV:
        return MPI_Alltoallv(input, counts_.data(), starts_.data(), type, output, counts_.data(),
                             starts_.data(), type, world);
      case Op::kAllToAll:
        return MPI_Alltoall(input, count, type, output, count, type, world);
      default:
        return MPI_Barrier(world);
    }
  }

  const int rank_, size_;
  std::vector<int> counts_, starts_;  // one for each rank
};

}  // namespace
}  // namespace paceline::bench

int main(int argc, char** argv) {
  return paceline::bench::run_worker(argc, argv, [](const paceline::bench::WorkerPlace& place) {
    return std::make_unique<paceline::bench::Mpi>(place);
  });
}
