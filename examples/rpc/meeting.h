#pragma once

// What the examples of this folder have in common: who this process is, how workers wait for
// each other at the start, and when one that serves may end.

#include <chrono>
#include <cstdlib>
#include <future>
#include <string>
#include <string_view>
#include <thread>

#include "paceline/rpc/workers.h"

namespace meeting {

using namespace std::chrono_literals;

// The rank under `paceline run`; -1 without a launcher.
inline int rank() {
  const char* const rank = std::getenv("RANK");
  return rank == nullptr ? -1 : std::atoi(rank);
}

struct Ready {  // served last, so all others are served once it is
  static constexpr std::string_view kName = "ready";
  static constexpr paceline::rpc::Effect kEffect = paceline::rpc::Effect::kRepeatable;
  using Request = paceline::rpc::Nothing;
  using Reply = paceline::rpc::Nothing;
};

// Waits until a worker has joined and serves all its methods.
inline void wait_for(paceline::rpc::Workers& workers, const std::string& name) {
  for (int attempt = 0;; ++attempt) {
    try {
      workers.call<Ready>(name).get();
      return;
    } catch (const paceline::rpc::CallError& error) {
      if (error.executed() != paceline::rpc::Executed::kNo || attempt == 200) throw;
    }
    std::this_thread::sleep_for(50ms);
  }
}

// Serves until another worker has come and gone. The worker's methods must be served by now.
inline void serve_until_end_of(paceline::rpc::Workers& workers, const std::string& name) {
  using paceline::rpc::WorkerState;
  workers.serve<Ready>([](const auto& nothing, paceline::rpc::Context&) { return nothing; });
  std::promise<void> gone;
  bool is_gone = false;
  workers.watch([&](const paceline::rpc::WorkerInfo& info) {
    if (info.name != name || info.state == WorkerState::kPresent || is_gone) return;
    is_gone = true;
    gone.set_value();
  });
  gone.get_future().wait();
  workers.watch({});
}

}  // namespace meeting
