// What a call between two workers costs, beside a raw socket between the same two processes:
//
//   rpc_bench                  64 B over a UNIX socket: blocking, pipelined, one way; 1 MB
//   rpc_bench --tcp            the same over TCP
//   rpc_bench --busy           with both cores computing, as in a training job
//
// Raw and call take turns within every round. Each line has the median over the rounds and their
// range; ratios are of the same round. benchmarks/README.md has results.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/core/io.h"
#include "paceline/core/socket.h"
#include "paceline/rpc/workers.h"
#include "paceline/store/file_store.h"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
namespace rpc = paceline::rpc;

struct Echo {
  static constexpr std::string_view kName = "echo";
  struct Request {
    std::span<const std::uint8_t> bytes;
    static auto fields(auto& m) { return std::tie(m.bytes); }
  };
  struct Reply {
    std::vector<std::uint8_t> bytes;
    static auto fields(auto& m) { return std::tie(m.bytes); }
  };
};
// As Echo, but what comes back is short.
struct Take {
  static constexpr std::string_view kName = "take";
  using Request = Echo::Request;
  struct Reply {
    std::uint64_t count = 0;
    static auto fields(auto& m) { return std::tie(m.count); }
  };
};

struct Setting {
  std::size_t bytes = 64;
  int calls = 3000, rounds = 7, pipelined = 60'000, window = 256;
  bool tcp = false, busy = false;
  int spin_us = 0;
};

// "2.41 [2.20, 2.63]": the median and the range. (spread.h would need the module bench.)
std::string with_spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return fmt::format("{:.2f} [{:.2f}, {:.2f}]", values[values.size() / 2], values.front(),
                     values.back());
}

double microseconds(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

struct Percentiles {
  std::vector<double> p50, p99;
  void add(std::vector<double> times) {
    std::sort(times.begin(), times.end());
    p50.push_back(times[times.size() / 2]);
    p99.push_back(times[times.size() * 99 / 100]);
  }
};
std::vector<double> ratios(const std::vector<double>& of, const std::vector<double>& to) {
  std::vector<double> result;
  for (std::size_t i = 0; i < of.size(); ++i) result.push_back(of[i] / to[i]);
  return result;
}

template <class Body>
std::vector<double> times_of(int calls, Body body) {
  std::vector<double> times;
  for (int i = 0; i < calls; ++i) {
    const auto begin = Clock::now();
    body();
    times.push_back(microseconds(Clock::now() - begin));
  }
  return times;
}

void whole(int socket, bool reads, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = reads ? ::read(socket, bytes.data(), bytes.size())
                                : ::write(socket, bytes.data(), bytes.size());
    if (count <= 0) std::exit(1);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

// Two ends of a connection that wait in their calls.
std::pair<int, int> raw_connection(bool tcp) {
  int ends[2];
  if (!tcp) {
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) std::exit(1);
    return {ends[0], ends[1]};
  }
  const auto listener = paceline::listen_tcp({"127.0.0.1", 0});
  const auto deadline = paceline::Deadline::after(10s);
  auto caller = paceline::connect_tcp({"127.0.0.1", paceline::local_port(listener)}, deadline);
  auto callee = paceline::accept_connection(listener, deadline);
  const int on = 1;
  ::setsockopt(callee.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  for (const int end : {caller.get(), callee.get()}) ::fcntl(end, F_SETFL, 0);
  return {caller.release(), callee.release()};
}

rpc::JoinOptions options_of(const std::string& path, const paceline::Secret& secret,
                            const Setting& setting, const char* host) {
  rpc::JoinOptions options{.store = std::make_shared<paceline::FileStore>(path), .secret = secret};
  options.address = "127.0.0.1";
  if (setting.tcp) options.host = host;
  options.spin = std::chrono::microseconds(setting.spin_us);
  return options;
}

[[noreturn]] void serve(int raw, const Setting& setting, const rpc::JoinOptions& options) {
  std::vector<std::byte> bytes(setting.bytes);
  const auto callee = rpc::join("callee", options);
  callee->serve<Echo>([](const Echo::Request& request, rpc::Context&) {
    return Echo::Reply{{request.bytes.begin(), request.bytes.end()}};
  });
  callee->serve<Take>([](const Take::Request& request, rpc::Context&) {
    return Take::Reply{request.bytes.size()};
  });
  for (;;) {
    whole(raw, true, bytes);
    whole(raw, false, bytes);
  }
}

void measure(const Setting& setting, int raw, rpc::Workers& caller) {
  std::vector<std::uint8_t> bytes(setting.bytes, 1);
  const auto raw_bytes = std::as_writable_bytes(std::span(bytes));
  const auto raw_echo = [&] {
    whole(raw, false, raw_bytes);
    whole(raw, true, raw_bytes);
  };
  const auto call_echo = [&] {
    auto future = caller.call<Echo>("callee", {std::span<const std::uint8_t>(bytes)});
    if (future.get().bytes.size() != setting.bytes) std::exit(1);
  };
  for (int i = 0; i < 500; ++i) raw_echo(), call_echo();
  Percentiles raws, calls;
  std::vector<double> pipelined, told;
  for (int round = 0; round < setting.rounds; ++round) {
    raws.add(times_of(setting.calls, raw_echo));
    calls.add(times_of(setting.calls, call_echo));

    std::deque<rpc::Future<Take::Reply>> under_way;
    auto begin = Clock::now();
    for (int i = 0; i < setting.pipelined; ++i) {
      if (under_way.size() == static_cast<std::size_t>(setting.window)) {
        under_way.front().get();
        under_way.pop_front();
      }
      under_way.push_back(caller.call<Take>("callee", {std::span<const std::uint8_t>(bytes)}));
    }
    for (auto& future : under_way) future.get();
    pipelined.push_back(setting.pipelined / microseconds(Clock::now() - begin) * 1e3);

    begin = Clock::now();
    for (int i = 0; i < setting.pipelined;) {
      try {
        caller.tell<Take>("callee", {std::span<const std::uint8_t>(bytes)});
        ++i;
      } catch (const rpc::CallError&) {  // the credit is used up: a call waits for what was told
        call_echo();
      }
    }
    call_echo();
    told.push_back(setting.pipelined / microseconds(Clock::now() - begin) * 1e3);
  }
  fmt::print("{} B, {}{}\n", setting.bytes, setting.tcp ? "TCP" : "UNIX socket",
             setting.busy ? ", both cores computing" : "");
  fmt::print("  blocking   raw p50 {} us, p99 {} us\n", with_spread(raws.p50),
             with_spread(raws.p99));
  fmt::print("             call p50 {} us, p99 {} us\n", with_spread(calls.p50),
             with_spread(calls.p99));
  fmt::print("             call/raw p50 {}, p99 {}\n", with_spread(ratios(calls.p50, raws.p50)),
             with_spread(ratios(calls.p99, raws.p99)));
  fmt::print("  pipelined  {} thousand calls/s ({} under way)\n", with_spread(pipelined),
             setting.window);
  fmt::print("  one way    {} thousand messages/s\n", with_spread(told));
}

void measure_large(const Setting& setting, rpc::Workers& caller) {
  std::vector<std::uint8_t> bytes(1 << 20, 1), copy(1 << 20);
  const auto call = [&] {
    if (caller.call<Take>("callee", {std::span<const std::uint8_t>(bytes)}).get().count !=
        bytes.size()) {
      std::exit(1);
    }
  };
  for (int i = 0; i < 20; ++i) call();
  Percentiles calls, copies;
  for (int round = 0; round < setting.rounds; ++round) {
    copies.add(times_of(200, [&] {
      std::memcpy(copy.data(), bytes.data(), bytes.size());
      asm volatile("" ::: "memory");
    }));
    calls.add(times_of(200, call));
  }
  fmt::print("1 MB request\n  memcpy     p50 {} us\n  call       p50 {} us, memcpy/call {}\n",
             with_spread(copies.p50), with_spread(calls.p50),
             with_spread(ratios(copies.p50, calls.p50)));
}

}  // namespace

int main(int argc, char** argv) {
  Setting setting;
  CLI::App app{"Calls between two workers, beside a raw socket."};
  app.add_option("--bytes", setting.bytes, "Size of a message");
  app.add_option("--calls", setting.calls, "Blocking calls in a round");
  app.add_option("--rounds", setting.rounds, "Rounds");
  app.add_option("--pipelined", setting.pipelined, "Pipelined calls in a round");
  app.add_option("--window", setting.window, "Pipelined calls under way");
  app.add_option("--spin", setting.spin_us,
                 "Look for messages for so many microseconds before sleeping");
  app.add_flag("--tcp", setting.tcp, "Use TCP instead of UNIX sockets");
  app.add_flag("--busy", setting.busy, "Keep two cores computing meanwhile");
  CLI11_PARSE(app, argc, argv);

  std::string directory = "/tmp/rpc_bench_XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr) return 1;
  const auto secret = paceline::Secret::generate();
  const auto [raw_caller, raw_callee] = raw_connection(setting.tcp);
  std::vector<pid_t> children;
  children.push_back(fork());
  if (children.back() == 0) {
    serve(raw_callee, setting, options_of(directory + "/store", secret, setting, "callee"));
  }
  for (int i = 0; setting.busy && i < 2; ++i) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    for (volatile double x = 1;;) x = x * 1.0000001;
  }
  {
    const auto caller =
        rpc::join("caller", options_of(directory + "/store", secret, setting, "caller"));
    measure(setting, raw_caller, *caller);
    measure_large(setting, *caller);
  }
  for (const pid_t child : children) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  ::unlink((directory + "/store").c_str());
  ::rmdir(directory.c_str());
}
