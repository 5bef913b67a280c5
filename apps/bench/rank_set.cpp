#include "apps/bench/rank_set.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <span>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"

#include "apps/bench/contestant/contestant_process.h"

namespace paceline::bench {

namespace {

// The first variable selects another library, the second one enables a trace of every call.
constexpr std::array<std::string_view, 2> kRemovedVariables = {"PACELINE_BACKEND",
                                                               "PACELINE_TIMELINE_DIR"};
constexpr std::array<std::string_view, 6> kReportedVariables = {
    "PACELINE_TRANSPORT",   "PACELINE_ENCRYPT",       "PACELINE_TCP_STREAMS",
    "PACELINE_CALIBRATION", "PACELINE_SOCKET_IFNAME", "PACELINE_FLIGHT_DIR"};

std::vector<std::string> present(std::span<const std::string_view> names,
                                 const launcher::Environment& environment) {
  std::vector<std::string> found;
  for (const std::string_view name : names) {
    const auto variable = environment.find(std::string(name));
    if (variable == environment.end() || variable->second.empty()) continue;
    found.push_back(fmt::format("{}={}", name, variable->second));
  }
  return found;
}

}  // namespace

std::string variables_in_effect(const launcher::Environment& inherited,
                                const launcher::Environment& set) {
  launcher::Environment environment = inherited;
  for (const auto& [name, value] : set) environment.erase(name);
  const auto held = present(kReportedVariables, environment);
  const auto removed = present(kRemovedVariables, environment);
  std::string text;
  if (!held.empty()) text = fmt::format("with {}", fmt::join(held, ", "));
  if (!removed.empty()) {
    text += fmt::format("{}without {}: these rows measure only the engine",
                        text.empty() ? "" : "; ", fmt::join(removed, ", "));
  }
  return text;
}

namespace {

using namespace std::chrono_literals;

constexpr auto kGrace = 3s;           // for ranks to end after their conversation was closed
constexpr auto kAcceptSlice = 100ms;  // interval between checks whether a process has ended
constexpr std::size_t kShownOutput = 2000;

launcher::LaunchOptions options_for(int num_ranks) {
  launcher::LaunchOptions options;
  options.num_local_ranks = num_ranks;
  options.run_id = random_hex(8);
  return options;
}

std::vector<std::string> launcher_command(const CatalogEntry& entry, const Located& located,
                                          int num_ranks, const std::string& socket) {
  const std::string ranks = std::to_string(num_ranks);
  std::vector<std::string> command = {located.launcher};
  // The ranks bind themselves, so that all contestants are bound in the same manner.
  if (entry.starter == Starter::kMpirun) {
    command.insert(command.end(), {"-np", ranks, "--bind-to", "none", "--oversubscribe"});
  } else {
    command.insert(command.end(), {"-n", ranks});
  }
  command.insert(command.end(), {located.program, socket});
  return command;
}

// The path by which another process of this user can open a descriptor of this process.
std::string path_of(const Fd& fd) { return fmt::format("/proc/{}/fd/{}", getpid(), fd.get()); }

}  // namespace

RankSet::RankSet(const CatalogEntry& entry, Located located, int num_ranks,
                 const launcher::Placement& plan, launcher::Environment variables,
                 std::string option)
    : entry_(entry),
      located_(std::move(located)),
      num_ranks_(num_ranks),
      plan_(plan),
      variables_(std::move(variables)),
      option_(std::move(option)),
      options_(options_for(num_ranks)),
      services_(options_),
      listener_(listen_private()),
      start_line_(StartBarrier::make_memory(num_ranks)),
      output_(memfd_create("paceline-bench-output", MFD_CLOEXEC)),
      null_(open("/dev/null", O_RDWR | O_CLOEXEC)),
      ranks_(static_cast<std::size_t>(num_ranks)) {
  if (!output_ || !null_) throw system_error("files for the ranks' output");
}

RankSet::~RankSet() { stop(); }

void RankSet::start() {
  if (entry_.starter != Starter::kPaceline) return start_launcher();
  for (int rank = 0; rank < num_ranks_; ++rank) start_rank(rank);
}

void RankSet::start_rank(int rank) {
  const Fd secret = services_.make_secret_fd();
  launcher::JobAddresses addresses = services_.addresses();
  addresses.secret_fd = secret.get();
  launcher::ProcessSpec spec;
  spec.path = located_.launcher.empty() ? located_.program : located_.launcher;
  spec.command = {located_.program, listener_.name};
  if (!located_.launcher.empty()) spec.command.insert(spec.command.begin(), located_.launcher);
  spec.environment = launcher::worker_environment(launcher::inherited_environment(), options_,
                                                  options_.place(), rank, plan_, addresses);
  spec.inherited = {secret.get()};
  start_process(std::move(spec));
}

void RankSet::start_launcher() {
  launcher::ProcessSpec spec;
  spec.path = located_.launcher;
  spec.command = launcher_command(entry_, located_, num_ranks_, listener_.name);
  spec.environment = launcher::inherited_environment();
  // Open MPI refuses to run as root unless both are set.
  spec.environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1";
  spec.environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1";
  start_process(std::move(spec));
}

void RankSet::start_process(launcher::ProcessSpec spec) {
  for (const std::string_view name : kRemovedVariables) spec.environment.erase(std::string(name));
  for (const auto& [name, value] : variables_) spec.environment[name] = value;
  spec.stdin_fd = null_.get();
  spec.stdout_fd = spec.stderr_fd = output_.get();
  processes_.push_back(launcher::start_process(spec));
}

void RankSet::meet(Deadline deadline) {
  try {
    accept_ranks(deadline);
    const bool bound = plan_.bound && entry_.bound;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      const auto& cpus = plan_.ranks[static_cast<std::size_t>(rank)].cpus;
      ranks_[rank]->send(Setup{bound ? cpus : std::vector<int>(), bound && !plan_.oversubscribed,
                               path_of(start_line_), option_},
                         deadline);
    }
    answer_each(deadline, [&](int, Conversation& rank) { ready_ = rank.receive<Ready>(deadline); });
  } catch (const Error& error) {
    fail_with(error);
  }
}

void RankSet::accept_ranks(Deadline deadline) {
  for (int come = 0; come < num_ranks_;) {
    Fd socket = accept_private(listener_.socket, Deadline::after(kAcceptSlice));
    if (socket) {
      auto conversation = std::make_unique<Conversation>(std::move(socket));
      const Hello hello = conversation->receive<Hello>(deadline);
      check(hello.world_size == num_ranks_ && hello.rank >= 0 && hello.rank < num_ranks_ &&
                !ranks_[hello.rank],
            "a process arrived as rank {} of {}; {} ranks with different numbers were expected (is "
            "{} the launcher of this library?)",
            hello.rank, hello.world_size, num_ranks_, located_.launcher);
      ranks_[hello.rank] = std::move(conversation);
      ++come;
    } else if (any_ended()) {
      fail(ErrorCode::kPeerLost, "a process ended before all ranks had arrived");
    } else if (deadline.expired()) {
      fail(ErrorCode::kTimeout, "{} of {} ranks arrived in time", come, num_ranks_);
    }
  }
}

bool RankSet::any_ended() const {
  return std::any_of(processes_.begin(), processes_.end(), [](const launcher::Process& process) {
    return wait_ready(process.pidfd.get(), POLLIN, Deadline::after(0ns));
  });
}

// Receives the answers in the order in which they arrive. So the failure of one rank is seen even
// though other ranks hang because of it.
void RankSet::answer_each(Deadline deadline, const Answer& receive) {
  std::vector<pollfd> waiting;
  for (const auto& rank : ranks_) waiting.push_back({rank->fd(), POLLIN, 0});
  for (std::size_t answered = 0; answered < ranks_.size();) {
    const int ready = poll_for(waiting, std::chrono::milliseconds(deadline.poll_timeout_ms()));
    if (ready == 0 && deadline.expired()) {
      fail(ErrorCode::kTimeout, "{} of {} ranks answered in time", answered, num_ranks_);
    }
    for (int rank = 0; rank < num_ranks_; ++rank) {
      pollfd& entry = waiting[static_cast<std::size_t>(rank)];
      if (entry.fd < 0 || entry.revents == 0) continue;
      try {
        receive(rank, *ranks_[rank]);
      } catch (const Error& error) {
        fail(error.code(), "rank {}: {}", rank, error.what());
      }
      entry.fd = -1;
      ++answered;
    }
  }
}

template <class AnyTurn>
std::vector<typename AnyTurn::Result> RankSet::take_turn(const AnyTurn& turn, Deadline deadline) {
  using Result = typename AnyTurn::Result;
  std::vector<Result> results(ranks_.size());
  try {
    for (const auto& rank : ranks_) rank->send(turn, deadline);
    answer_each(deadline, [&](int number, Conversation& rank) {
      results[number] = rank.receive<Result>(deadline);
    });
  } catch (const Error& error) {
    fail_with(error);
  }
  idle_seconds_ += results.front().idle_seconds;
  for (const Result& result : results) idle_cpu_seconds_ += result.idle_cpu_seconds;
  return results;
}

template std::vector<TurnResult> RankSet::take_turn(const Turn& turn, Deadline deadline);
template std::vector<CallTurnResult> RankSet::take_turn(const CallTurn& turn, Deadline deadline);

void RankSet::fail_with(const Error& error) {
  const std::string said = output();
  stop();
  fail(error.code(), "{}{}{}", error.what(), said.empty() ? "" : "\n", said);
}

std::string RankSet::output() const {
  const off_t size = lseek(output_.get(), 0, SEEK_END);
  const auto shown = std::min<off_t>(size, kShownOutput);
  std::string text(static_cast<std::size_t>(std::max<off_t>(shown, 0)), '\0');
  const ssize_t length =
      read_whole_at(output_.get(), size - shown, std::as_writable_bytes(std::span(text)));
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

void RankSet::stop() {
  for (auto& rank : ranks_) rank.reset();  // closes the conversation, so the rank ends
  const Deadline deadline = Deadline::after(kGrace);
  for (const launcher::Process& process : processes_) {
    wait_ready(process.pidfd.get(), POLLIN, deadline);
    kill(-process.pid, SIGKILL);  // the rest of its process group, before the pid can be reused
    while (waitpid(process.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  processes_.clear();
}

}  // namespace paceline::bench
