// Cap'n Proto's calls. Its event loop is one thread at either end, so several callers are promises
// of one thread.

#include <capnp/ez-rpc.h>
#include <fmt/format.h>
#include <kj/async-io.h>
#include <kj/timer.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/thread.h"

#include "apps/bench/contestant/call_contestant.h"
#include "calls.capnp.h"

namespace paceline::bench {
namespace {

std::string address_of(const CallPlace& place) {
  return place.uses_tcp ? to_string(place.tcp) : "unix-abstract:" + place.unix_name;
}

capnp::ReaderOptions any_size() {
  return {.traversalLimitInWords = std::uint64_t{1} << 40, .nestingLimit = 64};
}

std::span<const std::byte> span_of(capnp::Data::Reader data) {
  return std::as_bytes(std::span(data.begin(), data.size()));
}

class Callee : public Calls::Server {
 public:
  explicit Callee(std::function<kj::Timer&()> timer) : timer_(std::move(timer)) {}

  kj::Promise<void> take(TakeContext context) override {
    const CallHead head = head_of(span_of(context.getParams().getBytes()));
    if (head.slow_ms == 0) return reply(context, head), kj::READY_NOW;
    return timer_().afterDelay(head.slow_ms * kj::MILLISECONDS).then([context, head]() mutable {
      reply(context, head);
    });
  }

 private:
  static void reply(TakeContext& context, const CallHead& head) {
    context.getResults().initBytes(head.reply_bytes);
  }
  const std::function<kj::Timer&()> timer_;
};

class CapnpCalls : public CallContestant, private kj::TaskSet::ErrorHandler {
 public:
  explicit CapnpCalls(const CallPlace& place) : way_(way_of(place)) {
    if (!place.is_caller) {
      server_ =
          start_thread("server", [place](const std::stop_token& stop) { serve(place, stop); });
      return;
    }
    client_ = std::make_unique<capnp::EzRpcClient>(address_of(place), 0, any_size());
    calls_ = std::make_unique<Calls::Client>(client_->getMain<Calls>());
  }

  std::string version() const override {
    return fmt::format("Cap'n Proto {}.{}.{}, {}, one thread at either end", CAPNP_VERSION_MAJOR,
                       CAPNP_VERSION_MINOR, CAPNP_VERSION_MICRO, way_);
  }
  std::string lacks(const CallTurn& turn) const override {
    return turn.form == CallTurn::Form::kOneWay ? "has no one-way calls" : "";
  }

  void call(std::span<const std::byte> request) override {
    check_reply(request, send(request).wait(client_->getWaitScope()).getBytes().size());
  }

  std::uint64_t pipeline(const CallLoad& load) override { return call_by_promises(load).calls; }
  CallTimes call_all(CallLoad& load) override {
    return load.turn().width == 1 ? CallContestant::call_all(load) : call_by_promises(load);
  }

 private:
  capnp::RemotePromise<Calls::TakeResults> send(std::span<const std::byte> bytes) {
    auto request = calls_->takeRequest();
    request.setBytes({reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()});
    return request.send();
  }

  CallTimes call_by_promises(const CallLoad& load) {
    CallTimes times;
    kj::TaskSet tasks(*this);
    std::vector<std::uint64_t> counts(static_cast<std::size_t>(load.turn().width));
    std::function<void(int)> call_again = [&](int caller) {
      if (!load.goes_on()) return;
      const bool is_slow = load.is_slow(caller, counts[static_cast<std::size_t>(caller)]++);
      const auto request = is_slow ? load.slow_request() : load.request();
      const auto begin = CallClock::now();
      tasks.add(send(request).then([&, caller, is_slow, request, begin](auto&& reply) {
        check_reply(request, reply.getBytes().size());
        ++times.calls;
        if (!is_slow) {
          times.seconds.push_back(std::chrono::duration<double>(CallClock::now() - begin).count());
        }
        call_again(caller);
      }));
    };
    for (int caller = 0; caller < load.turn().width; ++caller) call_again(caller);
    tasks.onEmpty().wait(client_->getWaitScope());
    if (!error_.empty()) fail(ErrorCode::kPeerLost, "Cap'n Proto: {}", error_);
    return times;
  }

  void taskFailed(kj::Exception&& exception) override {
    error_ = exception.getDescription().cStr();
  }

  static void serve(const CallPlace& place, const std::stop_token& stop) {
    capnp::EzRpcServer* running = nullptr;
    capnp::EzRpcServer server(
        kj::heap<Callee>([&]() -> kj::Timer& { return running->getIoProvider().getTimer(); }),
        address_of(place), 0, any_size());
    running = &server;
    while (!stop.stop_requested()) {
      server.getIoProvider()
          .getTimer()
          .afterDelay(100 * kj::MILLISECONDS)
          .wait(server.getWaitScope());
    }
  }

  const std::string way_;
  std::unique_ptr<capnp::EzRpcClient> client_;
  std::unique_ptr<Calls::Client> calls_;
  std::string error_;
  std::jthread server_;
};

}  // namespace
}  // namespace paceline::bench

int main(int argc, char** argv) {
  return paceline::bench::run_call_worker(argc, argv, [](const paceline::bench::CallPlace& place) {
    return std::make_unique<paceline::bench::CapnpCalls>(place);
  });
}
