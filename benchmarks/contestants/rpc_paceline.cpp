// Paceline's calls, measured like those of all other contestants.

#include <cstdlib>
#include <deque>

#include <fmt/format.h>

#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/rpc/workers.h"

#include "apps/bench/contestant/call_contestant.h"

namespace paceline::bench {
namespace {

using namespace std::chrono_literals;

struct Take {
  static constexpr std::string_view kName = "take";
  struct Request {
    std::span<const std::byte> bytes;
    static auto fields(auto& m) { return std::tie(m.bytes); }
  };
  struct Reply {
    std::vector<std::byte> bytes;
    static auto fields(auto& m) { return std::tie(m.bytes); }
  };
};

Take::Reply take(const Take::Request& request, rpc::Context& /*context*/) {
  const CallHead head = head_of(request.bytes);
  if (head.slow_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(head.slow_ms));
  return {{request.bytes.begin(), request.bytes.begin() + head.reply_bytes}};
}

class PacelineCalls : public CallContestant {
 public:
  explicit PacelineCalls(const CallPlace& place)
      : way_(place.uses_tcp ? "over TCP" : "over shared memory") {
    const char* const own = place.is_caller ? "caller" : "callee";
    rpc::JoinOptions options{.address = "127.0.0.1"};
    // Workers on different hosts do not share memory.
    if (place.uses_tcp) options.host = own;
    const char* const spin = std::getenv(kSpinVariable);
    spin_us_ = spin != nullptr ? std::stoi(spin) : 0;
    options.spin = std::chrono::microseconds(spin_us_);
    // Fewer calls than a thousand callers make at once, so these callers also wait for credit.
    options.max_calls = 256;
    workers_ = rpc::join(own, options);
    if (!place.is_caller) workers_->serve<Take>(take);
  }

  std::string version() const override {
    return fmt::format("Paceline, {}{}", way_,
                       spin_us_ > 0 ? fmt::format(", spinning {} µs", spin_us_) : "");
  }
  std::string lacks(const CallTurn& /*turn*/) const override { return ""; }

  void call(std::span<const std::byte> request) override {
    check_reply(request, workers_->call<Take>("callee", {request}).get().bytes.size());
  }

  std::uint64_t pipeline(const CallLoad& load) override {
    std::uint64_t done = 0;
    std::deque<rpc::Future<Take::Reply>> under_way;
    const auto end_first = [&] {
      check_reply(load.request(), under_way.front().get().bytes.size());
      under_way.pop_front();
      ++done;
    };
    while (load.goes_on()) {
      if (under_way.size() == static_cast<std::size_t>(load.turn().width)) end_first();
      under_way.push_back(workers_->call<Take>("callee", {load.request()}));
    }
    while (!under_way.empty()) end_first();
    return done;
  }

  std::uint64_t tell(const CallLoad& load) override {
    std::uint64_t told = 0;
    while (load.goes_on()) {
      try {
        workers_->tell<Take>("callee", {load.request()});
        ++told;
      } catch (const rpc::CallError&) {  // no credit left: a call waits for more
        call(load.request());
      }
    }
    call(load.request());
    return told;
  }

 private:
  const std::string way_;
  int spin_us_ = 0;
  std::unique_ptr<rpc::Workers> workers_;
};

}  // namespace
}  // namespace paceline::bench

int main(int argc, char** argv) {
  return paceline::bench::run_call_worker(argc, argv, [](const paceline::bench::CallPlace& place) {
    return std::make_unique<paceline::bench::PacelineCalls>(place);
  });
}
