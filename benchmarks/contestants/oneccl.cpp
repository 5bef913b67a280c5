// oneCCL on the CPU, over libfabric's shared memory. The calling thread does the work: oneCCL's
// default, a worker thread on the same core, costs a time slice of 4 to 8 ms per call.

#include <cstdlib>
#include <cstring>
#include <optional>

#include <oneapi/ccl.hpp>

#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/rendezvous/rendezvous.h"

#include "apps/bench/contestant/contestant.h"

namespace paceline::bench {
namespace {

// Keeps variables that the user has set.
void set_variables(const WorkerPlace& place) {
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), 0);
  };
  set("CCL_ATL_TRANSPORT", "ofi");
  set("CCL_PROCESS_LAUNCHER", "none");
  set("CCL_LOCAL_RANK", std::to_string(place.rank));
  set("CCL_LOCAL_SIZE", std::to_string(place.world_size));
  set("CCL_LOG_LEVEL", "error");
  set("FI_PROVIDER_PATH", PACELINE_ONECCL_PROVIDERS);
  set("CCL_ATL_SHM", "1");
  set("CCL_WORKER_OFFLOAD", "0");
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
    default:
      return ccl::datatype::uint8;
  }
}

class OneCcl : public Contestant {
 public:
  explicit OneCcl(const WorkerPlace& place) {
    set_variables(place);
    ccl::init();
    const Rendezvous met = rendezvous();
    server_ = meet(*met.store, place.rank);
    communicator_.emplace(ccl::create_communicator(place.world_size, place.rank, server_));
  }

  std::string version() const override {
    const auto version = ccl::get_library_version();
    return fmt::format("oneCCL {}.{}.{}, ofi", version.major, version.minor, version.update);
  }

  std::string lacks(Op op, Dtype dtype, Placement) const override {
    if (op == Op::kGather || op == Op::kScatter || op == Op::kReduceScatterV || op == Op::kSend)
      return fmt::format("has no {} here", name_of(Operation(op)));
    if (reduces(op) && dtype == Dtype::kBool) return "has no sum of bool";
    return "";
  }

  void run(const Collective& call) override {
    if (call.op == Op::kBarrier) {
      ccl::barrier(*communicator_);
      return;
    }
    start(call).wait();
  }

 private:
  static ccl::shared_ptr_class<ccl::kvs> meet(Store& store, int rank) {
    if (rank == 0) {
      auto server = ccl::create_main_kvs();
      const auto address = server->get_address();
      store.set("oneccl/kvs", std::string(address.begin(), address.end()));
      return server;
    }
    const std::string text = store.get("oneccl/kvs");
    ccl::kvs::address_type address{};
    check(text.size() == address.size(), "oneCCL's address has {} bytes", text.size());
    std::memcpy(address.data(), text.data(), text.size());
    return ccl::create_kvs(address);
  }

  // Equal counts for all ranks.
  ccl::vector_class<std::size_t> counts_of(const Collective& call) const {
    return ccl::vector_class<std::size_t>(static_cast<std::size_t>(communicator_->size()),
                                          block_count(call));
  }

  ccl::event start(const Collective& call) {
    const auto type = type_of(call.dtype);
    constexpr auto kSum = ccl::reduction::sum;
    auto* const input = const_cast<std::byte*>(call.input);
    switch (call.op) {
      case Op::kAllReduce:
        return ccl::allreduce(input, call.output, call.count, type, kSum, *communicator_);
      case Op::kReduce:
        return ccl::reduce(input, call.output, call.count, type, kSum, call.root, *communicator_);
      case Op::kBroadcast:
        return ccl::broadcast(call.output, call.count, type, call.root, *communicator_);
      case Op::kAllGather:
        return ccl::allgather(input, call.output, call.count, type, *communicator_);
      case Op::kReduceScatter:
        return ccl::reduce_scatter(input, call.output, call.count, type, kSum, *communicator_);
      case Op::kAllGatherV:
        return ccl::allgatherv(input, block_count(call), call.output, counts_of(call), type,
                               *communicator_);
      case Op::kAllToAllV:
        return ccl::alltoallv(input, counts_of(call), call.output, counts_of(call), type,
                              *communicator_);
      case Op::kAllToAll:
        return ccl::alltoall(input, call.output, call.count, type, *communicator_);
      default:
        fail(ErrorCode::kUnsupported, "oneCCL has no {}", paceline::name_of(call.op));
    }
  }

  ccl::shared_ptr_class<ccl::kvs> server_;
  std::optional<ccl::communicator> communicator_;
};

}  // namespace
}  // namespace paceline::bench

int main(int argc, char** argv) {
  return paceline::bench::run_worker(argc, argv, [](const paceline::bench::WorkerPlace& place) {
    return std::make_unique<paceline::bench::OneCcl>(place);
  });
}
