// The speed of the machine's memory, a yardstick for large messages: the caller copies the request
// to another buffer of its own.

#include <cstring>

#include "apps/bench/contestant/call_contestant.h"

namespace paceline::bench {
namespace {

class MemcpyCalls : public CallContestant {
 public:
  std::string version() const override { return "the C library's, in the caller"; }
  std::string lacks(const CallTurn& turn) const override {
    return turn.form == CallTurn::Form::kBlocking && turn.width == 1 ? "" : "only copies";
  }

  void call(std::span<const std::byte> request) override {
    target_.resize(request.size());
    std::memcpy(target_.data(), request.data(), request.size());
    asm volatile("" ::"r"(target_.data()) : "memory");  // as if the copy was read
  }
  std::uint64_t pipeline(const CallLoad& /*load*/) override { return 0; }

 private:
  std::vector<std::byte> target_;
};

}  // namespace
}  // namespace paceline::bench

int main(int argc, char** argv) {
  return paceline::bench::run_call_worker(argc, argv, [](const paceline::bench::CallPlace&) {
    return std::make_unique<paceline::bench::MemcpyCalls>();
  });
}
