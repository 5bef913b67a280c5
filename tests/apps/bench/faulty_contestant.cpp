// A contestant for tests. Its all_reduce does nothing; from buffers of 64 KiB on, its rank 1
// misbehaves in the way that PACELINE_TEST_FAULT names. With one rank its result is right, because
// that rank's buffer is the sum.

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/system/thread.h"

#include "apps/bench/contestant/contestant.h"

namespace paceline::bench {
namespace {

constexpr std::size_t kFaultyBytes = 64 << 10;

class Faulty : public Contestant {
 public:
  explicit Faulty(const WorkerPlace& place) : rank_(place.rank) {
    if (is("start")) throw std::runtime_error("no such network");
    if (is("restless")) {
      spinner_ = start_thread("spinner", [](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
        }
      });
    }
  }

  std::string version() const override { return "faulty 1"; }
  std::string lacks(Op op, Dtype, Placement) const override {
    return is("lacks") && op == Op::kAllReduce ? "has no all_reduce" : "";
  }

  void run(const Collective& call) override {
    if (call.count * size_of(call.dtype) < kFaultyBytes || rank_ != 1) return;
    if (is("throw")) throw std::runtime_error("the cable is cut");
    if (is("crash")) std::raise(SIGKILL);
    if (is("hang")) std::this_thread::sleep_for(std::chrono::hours(1));
  }

 private:
  static bool is(const char* fault) {
    const char* wanted = std::getenv("PACELINE_TEST_FAULT");
    return wanted != nullptr && std::string(wanted) == fault;
  }

  const int rank_;
  std::jthread spinner_;
};

}  // namespace
}  // namespace paceline::bench

int main(int argc, char** argv) {
  return paceline::bench::run_worker(argc, argv, [](const paceline::bench::WorkerPlace& place) {
    return std::make_unique<paceline::bench::Faulty>(place);
  });
}
