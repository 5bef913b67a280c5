// The speed of the machine's memory: all ranks copy at the same time, each between two buffers of
// its own, as many bytes as the operation's largest buffer has. The source has just been written.
// If a rank writes only a block, it copies that block as often as necessary. This is only a
// yardstick; it computes no result.

#include <cstring>

#include "paceline/engine/core/dtype_traits.h"

#include "apps/bench/contestant/contestant.h"

namespace paceline::bench {
namespace {

class Memcpy : public Contestant {
 public:
  explicit Memcpy(const WorkerPlace& place) : rank_(place.rank), world_size_(place.world_size) {}

  std::string version() const override { return "the C library's, in every rank at once"; }
  std::string lacks(Op op, Dtype, Placement) const override {
    return op == Op::kBarrier ? "has nothing to copy in a barrier" : "";
  }
  bool gives_results() const override { return false; }
  bool coalesces() const override { return true; }

  void run(const Collective& call) override {
    const std::size_t whole = bytes_of(call.op, call.dtype, world_size_, block_count(call));
    const bool gives = call.input != nullptr;
    const std::size_t elements =
        gives ? elements_in(call, rank_, world_size_) : elements_out(call, rank_, world_size_);
    const std::size_t block = elements * size_of(call.dtype);
    const std::byte* const source = gives ? call.input : call.output;
    if (capacity_ < whole) {
      target_ = ordinary_memory(whole);
      capacity_ = whole;
    }
    for (std::size_t done = 0; done < whole; done += block)
      std::memcpy(target_.data + done, source, block);
  }

 private:
  const int rank_, world_size_;
  Memory target_;
  std::size_t capacity_ = 0;
};

}  // namespace
}  // namespace paceline::bench

int main(int argc, char** argv) {
  return paceline::bench::run_worker(argc, argv, [](const paceline::bench::WorkerPlace& place) {
    return std::make_unique<paceline::bench::Memcpy>(place);
  });
}
