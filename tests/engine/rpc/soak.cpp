// rpc_soak SECONDS: workers that call each other for this long, while some of them join, leave, are
// killed and are frozen; it counts everything that could leak. The first process has two workers
// that stay until the end; their counters are printed. The other workers are further processes of
// this program.
//
// It prints one line every ten seconds. At the end all other workers leave. Then the counters must
// be as they were after the first round, in which the same things happened; otherwise the exit code
// is 1.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/log.h"
#include "paceline/engine/rpc/workers.h"
#include "paceline/engine/store/tcp_store.h"
#include "paceline/engine/store/tcp_store_server.h"

#include "tests/engine/rpc/counted_memory.h"
#include "tests/harness/open_descriptors.h"
#include "tests/harness/wait_until.h"

namespace paceline::rpc::soak {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLease = 1s;
constexpr int kClients = 4;

// ---- methods ----

struct Data {
  std::vector<std::uint8_t> bytes;
  static auto fields(auto& m) { return std::tie(m.bytes); }
};
template <Effect E>
struct Echo {
  static constexpr std::array<std::string_view, 3> kNames = {"echo", "echo_again", "echo_once"};
  static constexpr std::string_view kName = kNames[static_cast<std::size_t>(E)];
  static constexpr Effect kEffect = E;
  using Request = Data;
  using Reply = Data;
};
std::atomic<long> num_objects{0}, num_handled{0};
class Thing {
 public:
  static constexpr std::string_view kName = "thing";
  Thing() { ++num_objects; }
  ~Thing() { --num_objects; }
  Data touch(const Data& data) { return data; }
  static auto methods() { return std::tuple(method<&Thing::touch>("touch", Effect::kOnce)); }
};
struct Keep {
  static constexpr std::string_view kName = "keep";
  struct Request {
    RemoteRef<Thing> thing;
    static auto fields(auto& m) { return std::tie(m.thing); }
  };
  using Reply = Nothing;
};

void serve_all(Workers& workers) {
  const auto echo = [](const Data& data, Context&) {
    ++num_handled;
    return data;
  };
  workers.serve<Echo<Effect::kAtMostOnce>>(echo);
  workers.serve<Echo<Effect::kRepeatable>>(echo);
  workers.serve<Echo<Effect::kOnce>>(echo);
  workers.serve<Thing>();
  workers.serve<Keep>([](const Keep::Request& request, Context&) {
    ++num_handled;
    request.thing.call<&Thing::touch>({}, {.deadline = 2s}).get();
    return Nothing{};
  });
}

struct Meeting {
  std::uint16_t port = 0;
  Secret secret = Secret::generate();
  JoinOptions options() const {
    return {.role = "soak",
            .store = std::make_shared<TcpStore>(Endpoint{"127.0.0.1", port}, secret),
            .secret = secret,
            .address = "127.0.0.1",
            .deadline = 5s,
            .lease = kLease,
            .leave_timeout = 1s};
  }
};

// ---- a client, in its own process ----

std::atomic<bool> must_leave{false};

void work(Workers& self, std::mt19937& random, const std::string& other) {
  const std::size_t sizes[] = {0, 100, 10'000, 100'000, 1'000'000};
  const Data data{std::vector<std::uint8_t>(sizes[random() % 5])};
  switch (random() % 8) {
    case 0:
      self.call<Echo<Effect::kAtMostOnce>>(other, data).get();
      return;
    case 1:
      self.call<Echo<Effect::kRepeatable>>(other, data).get();
      return;
    case 2:
      self.call<Echo<Effect::kOnce>>(other, data).get();
      return;
    case 3:  // a call that is abandoned at once
      (void)self.call<Echo<Effect::kOnce>>(other, data);
      return;
    case 4:
      self.tell<Echo<Effect::kAtMostOnce>>(other, data);
      return;
    case 5: {
      std::vector<RemoteRef<Thing>> things;
      for (int i = 0; i < 20; ++i) things.push_back(self.create<Thing>("server"));
      things.back().call<&Thing::touch>(data).get();
      return;
    }
    case 6: {
      auto thing = self.create<Thing>("server");
      auto kept = self.call<Keep>(other, {thing});
      thing = {};
      kept.get();
      return;
    }
    default:  // several calls at once
      std::vector<Future<Data>> futures;
      for (int i = 0; i < 50; ++i) {
        futures.push_back(self.call<Echo<Effect::kOnce>>(other, {{1, 2, 3}}));
      }
      for (auto& future : futures) future.get();
  }
}

int be_client(const std::string& name, unsigned seed, const Meeting& meeting) {
  std::signal(SIGTERM, [](int) { must_leave = true; });
  std::mt19937 random(seed);
  const auto self = rpc::join(name, meeting.options());
  serve_all(*self);
  while (!must_leave) {
    const auto choice = random() % 4;
    const std::string other = choice == 0  ? "client" + std::to_string(random() % kClients)
                              : choice < 3 ? "server"
                                           : "peer";
    try {
      work(*self, random, other);
    } catch (const Error&) {  // the other worker was killed or frozen, or this one was
    }
  }
  return 0;
}

class Client {
 public:
  Client(const std::string& name, unsigned seed, const Meeting& meeting) {
    const std::string port = std::to_string(meeting.port), number = std::to_string(seed);
    // The client inherits the secret, which only this test uses, in its environment.
    ::setenv("PACELINE_SOAK_SECRET", meeting.secret.to_hex().c_str(), 1);
    const char* const arguments[] = {"rpc_soak",     "client",     name.c_str(),
                                     number.c_str(), port.c_str(), nullptr};
    const int error = ::posix_spawn(&pid_, "/proc/self/exe", nullptr, nullptr,
                                    const_cast<char* const*>(arguments), environ);
    if (error != 0) throw std::runtime_error("posix_spawn");
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { end(SIGKILL); }
  void signal(int number) const { ::kill(pid_, number); }
  void end(int number) {
    if (pid_ <= 0) return;
    signal(SIGCONT);
    signal(number);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
};

// ---- counters ----

struct Counters {
  long descriptors = 0, threads = 0, objects = 0, mapped_areas = 0;
  std::ptrdiff_t heap = 0;
};
std::size_t num_lines(const char* file, const std::string& with) {
  std::ifstream lines(file);
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find(with) != std::string::npos) ++count;
  }
  return count;
}
Counters count() {
  const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
  return {.descriptors = num_descriptors(),
          .threads = std::distance(tasks, std::filesystem::directory_iterator()),
          .objects = num_objects,
          .mapped_areas = static_cast<long>(num_lines("/proc/self/maps", "memfd:")),
          .heap = num_allocated_bytes};
}
std::string to_string(const Counters& counters) {
  return fmt::format("{} descriptors, {} threads, {} objects, {} shared areas, {} KiB allocated",
                     counters.descriptors, counters.threads, counters.objects,
                     counters.mapped_areas, counters.heap / 1024);
}

// ---- the whole test ----

class Soak {
 public:
  Soak() {
    serve_all(*server_);
    serve_all(*peer_);
  }
  // Returns false if something has leaked.
  bool run(std::chrono::seconds time) {
    const auto begun = Clock::now();
    round(std::clamp<std::chrono::seconds>(time / 6, 2s, 30s));
    const Counters before = settle();
    fmt::print("after the first round: {}\n", to_string(before));
    const long guests_before = num_joined_;
    while (Clock::now() - begun < time) {
      round(std::min<Clock::duration>(10s, time - (Clock::now() - begun)));
      fmt::print("{:5} s: {} calls handled, {} workers joined; {}\n",
                 std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begun).count(),
                 num_handled.load(), num_joined_, to_string(count()));
      std::fflush(stdout);
    }
    const Counters after = settle();
    fmt::print("at the end: {}\n", to_string(after));
    // The store, which is in this process, keeps a few hundred bytes for each worker that has
    // joined. An unused connection takes 64 KiB.
    const std::ptrdiff_t allowed = (256 << 10) + (1 << 10) * (num_joined_ - guests_before);
    const bool is_clean = after.descriptors <= before.descriptors &&
                          after.mapped_areas <= before.mapped_areas && after.objects == 0 &&
                          before.objects == 0 && after.threads <= kMaxThreads &&
                          after.heap <= before.heap + allowed;
    fmt::print("{}\n", is_clean ? "nothing leaks" : "SOMETHING LEAKS");
    return is_clean;
  }

 private:
  static constexpr long kMaxThreads = 140;  // two workers of at most 64 threads, and some others

  void round(Clock::duration time) {
    const auto until = Clock::now() + time;
    for (int i = 0; i < kClients; ++i) start(i);
    while (Clock::now() < until) {
      // A guest in this process as well, with its own references.
      const auto guest = rpc::join("guest", meeting_.options());
      serve_all(*guest);
      for (int i = 0; i < 20; ++i) {
        try {
          work(*guest, random_, i % 2 == 0 ? "server" : "client" + std::to_string(i % kClients));
        } catch (const Error&) {  // the client is frozen or gone
        }
      }
      ++num_joined_;
      const int chosen = static_cast<int>(random_() % kClients);
      auto& client = clients_[static_cast<std::size_t>(chosen)];
      switch (random_() % 4) {
        case 0:
          client->end(SIGKILL);
          start(chosen);
          break;
        case 1:
          client->end(SIGTERM);
          start(chosen);
          break;
        default:  // sometimes for less, sometimes for more than a lease
          client->signal(SIGSTOP);
          std::this_thread::sleep_for(std::chrono::milliseconds(random_() % 1500));
          client->signal(SIGCONT);
      }
    }
    for (auto& client : clients_) client->end(SIGTERM);
  }
  void start(int i) {
    clients_.resize(kClients);
    clients_[static_cast<std::size_t>(i)] = std::make_unique<Client>(
        "client" + std::to_string(i), static_cast<unsigned>(random_()), meeting_);
    ++num_joined_;
  }
  // The counters once nothing happens any more, that is, after leases have expired.
  Counters settle() {
    (void)harness::wait_until([] { return num_objects == 0; }, Deadline::after(20s));
    Counters now = count();
    auto since = Clock::now();
    (void)harness::wait_until(
        [&] {
          const Counters next = count();
          if (next.descriptors != now.descriptors || next.heap / 65536 != now.heap / 65536) {
            since = Clock::now();
          }
          now = next;
          return Clock::now() - since > 3 * kLease;
        },
        Deadline::after(30s), std::chrono::milliseconds(100));
    return now;
  }

  Meeting meeting_;
  TcpStoreServer store_{Endpoint{"127.0.0.1", 0}, meeting_.secret};
  std::mt19937 random_{std::random_device{}()};
  std::unique_ptr<Workers> server_ = join("server"), peer_ = join("peer");
  std::vector<std::unique_ptr<Client>> clients_;
  long num_joined_ = 0;

  std::unique_ptr<Workers> join(const std::string& name) {
    meeting_.port = store_.port();
    return rpc::join(name, meeting_.options());
  }
};

}  // namespace
}  // namespace paceline::rpc::soak

int main(int argc, char** argv) {
  using namespace paceline::rpc::soak;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() == 4 && arguments[0] == "client") {
      const char* const secret = std::getenv("PACELINE_SOAK_SECRET");
      return be_client(arguments[1], static_cast<unsigned>(std::stoul(arguments[2])),
                       {.port = static_cast<std::uint16_t>(std::stoul(arguments[3])),
                        .secret = paceline::Secret::from_text(secret != nullptr ? secret : "")});
    }
    const int seconds = arguments.size() == 1 ? std::atoi(arguments[0].c_str()) : 0;
    if (seconds < 1) {
      std::fprintf(stderr, "usage: rpc_soak SECONDS\n");
      return 2;
    }
    return Soak().run(std::chrono::seconds(seconds)) ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rpc_soak: %s\n", error.what());
    return 1;
  }
}
