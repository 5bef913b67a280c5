// What the machine's memory allows: every rank copies the operation's largest buffer, which it has
// just written, into another one of its own, all ranks at the same time. A yardstick without a
// result.

#include <cstring>
#include <utility>

#include "paceline/bench/worker.h"

namespace paceline::bench {
namespace {

class Memcpy : public Contestant {
 public:
  explicit Memcpy(int world_size) : world_size_(world_size) {}

  std::string version() const override { return "the C library's, in every rank at once"; }
  std::string lacks(Op op, Dtype, Placement) const override {
    return op == Op::kBarrier ? "has nothing to copy in a barrier" : "";
  }
  bool gives_results() const override { return false; }

  // One or two buffers an operation; the copy starts from the larger one.
  Memory allocate(MemoryKind, std::size_t bytes) override {
    Block block{ordinary_memory(bytes), bytes};
    target_ = {};
    before_ = std::exchange(last_, block);
    return block.memory;
  }

  void run(const Collective& call) override {
    const std::size_t bytes = bytes_of(call.op, call.dtype, world_size_, call.count);
    const Block& source = last_.bytes == bytes ? last_ : before_;
    if (target_.data == nullptr) target_ = ordinary_memory(bytes);
    std::memcpy(target_.data, source.memory.data, bytes);
  }

 private:
  struct Block {
    Memory memory;
    std::size_t bytes = 0;
  };
  const int world_size_;
  Block last_, before_;
  Memory target_;
};

}  // namespace
}  // namespace paceline::bench

int main(int argc, char** argv) {
  return paceline::bench::run_worker(argc, argv, [](const paceline::bench::WorkerPlace& place) {
    return std::make_unique<paceline::bench::Memcpy>(place.world_size);
  });
}
