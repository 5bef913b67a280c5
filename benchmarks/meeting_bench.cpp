// How fast the agents of a job meet, and how fast a job continues after the loss of a host.
//
//   agents   simulated: one coordinator and many agents in this process, each with its own
//            connection over loopback. The time from the first connection to the last order to
//            start, then from the report of a failure to the last order to start again; and the
//            memory of this process.
//   hosts    `paceline run` on many hosts, which are network namespaces of this machine: from the
//            start of the first launcher to the end of the last rank's first barrier. Needs root.
//   loss     `paceline run --nnodes 1:2` on two such hosts, one of which is cut off and killed at
//            the same moment: from then to the first step that the other host's rank makes alone.
//            Without a PROGRAM the ranks make a step every 20 ms, with a collective each.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/telemetry/step_gauge.h"
#include "paceline/engine/telemetry/step_log.h"
#include "paceline/launcher/coordination/job_control.h"
#include "paceline/launcher/process/process.h"

#include "benchmarks/spread.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/network_hosts.h"

namespace paceline::benchmarks {
namespace {

using namespace std::chrono_literals;
using harness::NetworkHosts;
using launcher::CoordinatorHost;
using launcher::CoordinatorLink;
using Clock = std::chrono::steady_clock;

constexpr std::uint16_t kPort = 29400;
constexpr auto kLongest = 120s;

struct Options {
  int agents = 1000, hosts = 16, ranks = 4, rounds = 5;
  std::string paceline;
  std::vector<std::string> program;
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double resident_megabytes() {
  double total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

// --- agents ---

launcher::JobTerms terms_of(int count) {
  return {.version = "1",
          .run_id = "job",
          .num_nodes = count,
          .min_nodes = count,
          .restarts = {.max_restarts = 1000}};
}

launcher::Joining joining(int number, int count) {
  const Endpoint somewhere{"10.0.0.1", static_cast<std::uint16_t>(1 + number % 60000)};
  return {.terms = terms_of(count),
          .host = fmt::format("host{}", number),
          .stand_in = somewhere,
          .offer = {somewhere, somewhere}};
}

// The coordinator with its own agent, on a thread. The agent takes part in every generation.
void lead(int count, Fd listener, const Secret& secret, std::stop_token stop) {
  launcher::EventLoop loop;
  const launcher::CoordinatorSettings settings{.terms = terms_of(count), .expected_nodes = count};
  CoordinatorHost host(loop, settings, std::move(listener), secret, {});
  host.report(joining(0, count));
  while (!stop.stop_requested()) {
    loop.turn(Deadline::after(
        std::min<std::chrono::nanoseconds>(host.next_deadline().remaining(), 20ms)));
    host.tend();
    for (const auto& order : host.take_orders()) {
      if (std::holds_alternative<launcher::StopOrder>(order)) {
        host.report(launcher::Stopped{.lived = 20s, .offer = joining(0, count).offer});
      }
    }
  }
}

class SimulatedAgents {
 public:
  SimulatedAgents(int count, const Endpoint& endpoint, const Secret& secret) : count_(count) {
    for (int number = 1; number < count; ++number) {
      links_.push_back(std::make_unique<CoordinatorLink>(
          loop_, endpoint, secret, launcher::KeepAlive{}, Deadline::after(5s)));
      links_.back()->report(joining(number, count));
      tend();
    }
  }

  // Reports a failed rank of the first agent, which therefore gets no order to stop.
  void fail() {
    links_.front()->report(
        launcher::RankFailure{0, {.cause = "rank 1: exit code 3", .exit_code = 3}});
    links_.front()->report(launcher::Stopped{.lived = 20s, .offer = joining(1, count_).offer});
  }

  // Waits until each agent has been ordered to start once more.
  void wait_for_start(Deadline deadline) {
    const int wanted = num_starts_ + count_ - 1;
    while (num_starts_ < wanted) {
      check(!deadline.expired(), "{} of {} agents were told to start", num_starts_, wanted);
      loop_.turn(Deadline::after(20ms));
      tend();
      num_starts_ += std::exchange(starts_, 0);
    }
  }

 private:
  void tend() {
    for (std::size_t i = 0; i < links_.size(); ++i) {
      links_[i]->tend();
      check(links_[i]->lost().empty(), "agent {}: {}", i + 1, links_[i]->lost());
      for (const auto& order : links_[i]->take_orders()) obey(i, order);
    }
  }

  void obey(std::size_t agent, const launcher::Order& order) {
    const auto offer = joining(static_cast<int>(agent) + 1, count_).offer;
    if (std::holds_alternative<launcher::StartOrder>(order)) ++starts_;
    if (std::holds_alternative<launcher::StopOrder>(order)) {
      links_[agent]->report(launcher::Stopped{.lived = 20s, .offer = offer});
    }
    check(!std::holds_alternative<launcher::EndOrder>(order), "agent {} was told to end",
          agent + 1);
  }

  const int count_;
  launcher::EventLoop loop_;
  std::vector<std::unique_ptr<CoordinatorLink>> links_;
  int starts_ = 0, num_starts_ = 0;
};

void measure_agents(const Options& options) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  std::vector<double> meeting, again;
  double megabytes = 0;
  for (int round = 0; round < options.rounds; ++round) {
    const Secret secret = Secret::generate();
    Fd listener = listen_tcp({"127.0.0.1", 0});
    const Endpoint endpoint{"127.0.0.1", local_port(listener)};
    const double before = resident_megabytes();
    std::jthread leader([&, socket = std::move(listener)](std::stop_token stop) mutable {
      lead(options.agents, std::move(socket), secret, stop);
    });
    const auto begin = Clock::now();
    SimulatedAgents agents(options.agents, endpoint, secret);
    agents.wait_for_start(Deadline::after(kLongest));
    meeting.push_back(seconds_since(begin));
    megabytes = std::max(megabytes, resident_megabytes() - before);
    const auto failed = Clock::now();
    agents.fail();
    agents.wait_for_start(Deadline::after(kLongest));
    again.push_back(seconds_since(failed));
  }
  fmt::print(
      "{} agents, s, median [least, most] of {} rounds: meeting {}, start after a failure {}; "
      "{:.0f} MB for both ends of all connections\n",
      options.agents, options.rounds, with_spread(meeting), with_spread(again), megabytes);
}

// --- hosts ---

class Job {
 public:
  Job(const Options& options, const NetworkHosts& hosts) : options_(options), hosts_(hosts) {
    std::ofstream(directory_.file("secret")) << Secret::generate().to_hex();
    std::filesystem::permissions(directory_.file("secret"), std::filesystem::perms::owner_read);
  }
  ~Job() {
    for (int host = 0; host < static_cast<int>(processes_.size()); ++host) end(host);
  }

  void start(int host, const std::string& nnodes, int ranks,
             const std::vector<std::string>& program) {
    launcher::ProcessSpec spec;
    spec.path = options_.paceline;
    spec.command = {"paceline",           "run",
                    "--nnodes",           nnodes,
                    "--nproc-per-node",   std::to_string(ranks),
                    "--rdzv-endpoint",    fmt::format("{}:{}", hosts_.address(0), kPort),
                    "--rdzv-conf",        host == 0 ? "is_host=true" : "is_host=false",
                    "--threads-per-rank", "1"};
    spec.command.insert(spec.command.end(), program.begin(), program.end());
    spec.environment = launcher::inherited_environment();
    spec.environment["PACELINE_SECRET_FILE"] = directory_.file("secret");
    spec.environment["PACELINE_FLIGHT_DIR"] = flights(host);
    std::filesystem::create_directories(flights(host));
    spec.stdin_fd = null_.get();
    const Fd log(::open(directory_.file(fmt::format("host{}.log", host)).c_str(),
                        O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    spec.stdout_fd = spec.stderr_fd = log.get();
    hosts_.enter(host);
    processes_.push_back(launcher::start_process(spec));
    hosts_.leave();
  }

  // Ends the host's processes, as if its power failed.
  void end(int host) {
    launcher::Process& process = processes_[static_cast<std::size_t>(host)];
    if (process.pid < 0) return;
    ::kill(-process.pid, SIGKILL);
    while (::waitpid(process.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    process.pid = -1;
  }

  std::string flights(int host) const { return directory_.file(fmt::format("flights{}", host)); }
  const FreshDirectory& directory() const { return directory_; }
  std::string log(int host) const {
    std::ifstream file(directory_.file(fmt::format("host{}.log", host)));
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  const Options& options_;
  const NetworkHosts& hosts_;
  const FreshDirectory directory_;
  const Fd null_{::open("/dev/null", O_RDWR | O_CLOEXEC)};
  std::vector<launcher::Process> processes_;
};

std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

void measure_hosts(const Options& options) {
  const NetworkHosts hosts(options.hosts);
  const auto total = static_cast<std::size_t>(options.hosts * options.ranks);
  std::vector<double> seconds;
  for (int round = 0; round < options.rounds; ++round) {
    Job job(options, hosts);
    const std::string done = job.directory().file("done");
    std::filesystem::create_directory(done);
    const auto begin = Clock::now();
    for (int host = 0; host < options.hosts; ++host) {
      job.start(host, std::to_string(options.hosts), options.ranks, {own_path(), "rank", done});
    }
    const Deadline deadline = Deadline::after(kLongest);
    const auto arrived = [&] {
      return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(done), {}));
    };
    while (arrived() < total) {
      check(!deadline.expired(), "{} of {} ranks came; host 0 said:\n{}", arrived(), total,
            job.log(0));
      std::this_thread::sleep_for(2ms);
    }
    seconds.push_back(seconds_since(begin));
  }
  fmt::print(
      "{} hosts x {} ranks to the end of the first barrier, s, median [least, most] of {} "
      "rounds: {}\n",
      options.hosts, options.ranks, options.rounds, with_spread(seconds));
}

// --- loss ---

// Waits until the host's rank has made a step in a process other than `before`; returns that
// process.
int wait_for_step(const Job& job, int host, int rank, int before) {
  const Deadline deadline = Deadline::after(kLongest);
  for (;;) {
    const auto reading = read_step_gauge(job.flights(host) + "/" + step_gauge_name(rank));
    if (reading && reading->pid != before && reading->steps > 0) return reading->pid;
    check(!deadline.expired(), "no step of rank {} at host {}, which said:\n{}", rank, host,
          job.log(host));
    std::this_thread::sleep_for(1ms);
  }
}

double lose_a_host(const Options& options, int lost) {
  const NetworkHosts hosts(2);
  Job job(options, hosts);
  std::vector<std::string> program = options.program;
  if (program.empty()) program = {own_path(), "step"};
  for (const int host : {0, 1}) {
    std::vector<std::string> own = program;
    for (std::string& word : own) {
      const auto at = word.find("{dir}");
      if (at != std::string::npos) word.replace(at, 5, job.directory().path());
    }
    job.start(host, "1:2", 1, own);
  }
  wait_for_step(job, 0, 0, -1);
  const int before = wait_for_step(job, 1 - lost, 1 - lost, -1);
  std::this_thread::sleep_for(1s);
  const auto begin = Clock::now();
  hosts.cut(lost);
  job.end(lost);
  wait_for_step(job, 1 - lost, 0, before);
  return seconds_since(begin);
}

void measure_loss(const Options& options) {
  for (const int lost : {1, 0}) {
    std::vector<double> seconds;
    for (int round = 0; round < options.rounds; ++round) {
      seconds.push_back(lose_a_host(options, lost));
    }
    fmt::print(
        "{} lost, s to the first step of the smaller world, median [least, most] of {} "
        "rounds: {}\n",
        lost == 0 ? "the coordinator's host" : "the other host", options.rounds,
        with_spread(seconds));
    std::fflush(stdout);
  }
}

// --- ranks ---

int meet(const std::string& folder) {
  const auto group = init_process_group();
  group->barrier();
  std::ofstream(fmt::format("{}/{}", folder, group->rank()));
  return 0;
}

int step() {
  const auto group = init_process_group();
  std::vector<float> data(1000, 1.0F);
  StepLog steps;
  steps.begin_at(0);
  for (;;) {
    std::this_thread::sleep_for(20ms);
    group->all_reduce(std::span(data));
    steps.step(1, 0.02, 0);
  }
}

int run(int argc, char** argv) {
  CLI::App app("How fast agents meet, and continue after the loss of a host.");
  Options options;
  std::string folder;
  options.paceline =
      (std::filesystem::path(own_path()).parent_path().parent_path() / "apps/paceline").string();
  app.require_subcommand(1);
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--paceline", options.paceline, "the command");
  auto* agents = app.add_subcommand("agents", "simulated ones meet");
  agents->add_option("--count", options.agents)->check(CLI::Range(2, 20000));
  auto* hosts = app.add_subcommand("hosts", "launchers of many hosts, to the first barrier");
  hosts->add_option("--hosts", options.hosts)->check(CLI::Range(2, 100));
  hosts->add_option("--ranks", options.ranks)->check(CLI::Range(1, 64));
  auto* loss = app.add_subcommand("loss", "one of two hosts is lost");
  loss->add_option("program", options.program,
                   "with its arguments; {dir} is a fresh directory; it must keep a step gauge");
  loss->positionals_at_end();
  auto* rank = app.add_subcommand("rank", "")->group("");
  rank->add_option("folder", folder);
  auto* stepping = app.add_subcommand("step", "")->group("");
  CLI11_PARSE(app, argc, argv);
  if (*rank) return meet(folder);
  if (*stepping) return step();
  const std::string why_not = *agents ? "" : NetworkHosts::why_not();
  if (!why_not.empty()) fail(ErrorCode::kUnsupported, "no hosts can be made here: {}", why_not);
  if (*agents) measure_agents(options);
  if (*hosts) measure_hosts(options);
  if (*loss) measure_loss(options);
  return 0;
}

}  // namespace
}  // namespace paceline::benchmarks

int main(int argc, char** argv) {
  try {
    return paceline::benchmarks::run(argc, argv);
  } catch (const paceline::Error& error) {
    fmt::print(stderr, "meeting_bench: {}\n", error.what());
    return 1;
  }
}
