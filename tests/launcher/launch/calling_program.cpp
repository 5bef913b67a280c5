// Workers of `paceline run --roles` that call each other by the names that the launcher gives them.
// Observers serve for ever; they run one `hold` at a time and never answer it. The argument says
// what a trainer does:
//   join            prints its name and its role, as observers do
//   call N          calls N observers and prints which one answered
//   load            calls observer0 again and again
//   hold            waits for `hold` of observer0

#include <cstdio>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/rpc/workers.h"

namespace {

namespace rpc = paceline::rpc;
using namespace std::chrono_literals;

struct Ask {
  static constexpr std::string_view kName = "ask";
  using Request = rpc::Nothing;
  struct Reply {
    std::string name;
    static auto fields(auto& m) { return std::tie(m.name); }
  };
};
struct Hold {
  static constexpr std::string_view kName = "hold";
  using Request = rpc::Nothing;
  using Reply = rpc::Nothing;
};

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

std::string role_of(const rpc::Workers& workers, const std::string& name) {
  for (const auto& worker : workers.list()) {
    if (worker.name == name) return worker.role;
  }
  return "";
}

void serve(rpc::Workers& workers) {
  const std::string name = workers.name();
  workers.serve<Ask>([name](const rpc::Nothing&, rpc::Context&) { return Ask::Reply{name}; });
  workers.serve<Hold>(
      [](const rpc::Nothing&, rpc::Context& context) {
        while (!context.is_cancelled()) usleep(10'000);
        return rpc::Nothing{};
      },
      {.threads = 1});
}

std::string ask(rpc::Workers& workers, const std::string& observer) {
  return workers.call<Ask>(observer).get().name;
}

void train(rpc::Workers& workers, std::string_view what, int count) {
  if (what == "call") {
    for (int i = 0; i < count; ++i) {
      say(fmt::format("{} heard {}", workers.name(), ask(workers, fmt::format("observer{}", i))));
    }
  } else if (what == "load") {
    ask(workers, "observer0");
    say("calling");
    while (true) workers.call<Ask>("observer0").get();
  } else if (what == "hold") {
    ask(workers, "observer0");
    say("calling");
    workers.call<Hold>("observer0", {}, {.deadline = 600s}).get();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  const auto workers = rpc::join({.prepare = serve});
  const std::string name = workers->name(), role = role_of(*workers, name);
  if (what == "join") {
    say(fmt::format("{} is a {}", name, role));
  } else if (role == "observer") {
    say("serving " + std::to_string(getpid()));
    while (true) pause();
  } else {
    train(*workers, what, argc > 2 ? std::stoi(argv[2]) : 1);
  }
  return 0;
}
