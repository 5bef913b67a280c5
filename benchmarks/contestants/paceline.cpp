// Paceline itself, measured like everybody else.

#include "paceline/bench/worker.h"
#include "paceline/collectives/init.h"
#include "paceline/core/check.h"

namespace paceline::bench {
namespace {

class Paceline : public Contestant {
 public:
  Paceline() : group_(init_process_group()) {}

  std::string version() const override { return fmt::format("Paceline, {}", group_->transport()); }

  std::string lacks(Op op, Dtype dtype, Placement) const override {
    if (op == Op::kBarrier || group_->supports(op, dtype)) return "";
    return fmt::format("has no {} of {}", paceline::name_of(op), paceline::name_of(dtype));
  }

  bool has_symmetric_memory() const override { return true; }
  Memory allocate(MemoryKind kind, std::size_t bytes) override {
    if (kind == MemoryKind::kOrdinary) return ordinary_memory(bytes);
    const SymmetricBuffer buffer = group_->reserve_symmetric(bytes);
    return {buffer.data(), buffer.owner()};
  }

  void run(const Collective& call) override {
    const int rank = group_->rank(), size = group_->world_size();
    const ConstBuffer input(call.input, input_count(call, rank, size), call.dtype);
    const Buffer output(call.output, output_count(call, rank, size), call.dtype);
    switch (call.op) {
      case Op::kAllReduce:
        return group_->all_reduce(input, output, ReduceOp::kSum);
      case Op::kBroadcast:
        return group_->broadcast(output, call.root);
      case Op::kReduce:
        return group_->reduce({const_cast<std::byte*>(call.input), call.count, call.dtype},
                              call.root);
      case Op::kAllGather:
        return group_->all_gather(input, output);
      case Op::kGather:
        return group_->gather(input, output, call.root);
      case Op::kScatter:
        return group_->scatter(input, output, call.root);
      case Op::kReduceScatter:
        return group_->reduce_scatter(input, output);
      case Op::kAllToAll:
        return group_->all_to_all(input, output);
      default:
        return group_->barrier();
    }
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace
}  // namespace paceline::bench

int main(int argc, char** argv) {
  return paceline::bench::run_worker(argc, argv, [](const paceline::bench::WorkerPlace&) {
    return std::make_unique<paceline::bench::Paceline>();
  });
}
