#include "benchmarks/host_contestant.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/socket.h"

#include "apps/bench/contestant/contestant_process.h"

namespace paceline::benchmarks {
namespace {

using namespace std::chrono_literals;

constexpr int kFirstPort = 29500;
constexpr auto kGrace = 3s;
constexpr std::size_t kShownOutput = 2000;

std::string make_directory() {
  std::string path = (std::filesystem::temp_directory_path() / "paceline-hosts-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr) throw system_error("making " + path);
  return path;
}

// Writes a file that only this user can ever read.
void write_private(const std::string& path, const std::string& text, mode_t mode) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!file || ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw system_error("writing " + path);
  }
}

}  // namespace

HostContestant::HostContestant(const bench::CatalogEntry& entry, bench::Located located,
                               const harness::NetworkHosts& hosts, int ranks_per_host, int number,
                               std::string title, launcher::Environment variables)
    : entry_(entry),
      located_(std::move(located)),
      hosts_(hosts),
      ranks_per_host_(ranks_per_host),
      number_(number),
      title_(std::move(title)),
      variables_(std::move(variables)),
      directory_(make_directory()),
      socket_name_("paceline-hosts-" + random_hex(16)),
      start_line_(bench::StartBarrier::make_memory(num_ranks())),
      output_(::memfd_create("paceline-hosts-output", MFD_CLOEXEC)),
      null_(::open("/dev/null", O_RDWR | O_CLOEXEC)),
      ranks_(static_cast<std::size_t>(num_ranks())) {
  if (!output_ || !null_) throw system_error("files for the ranks' output");
  write_private(directory_ + "/secret", Secret::generate().to_hex(), 0600);
  write_remote_shell();
}

HostContestant::~HostContestant() {
  for (auto& rank : ranks_) rank.reset();  // tells the ranks to end
  const Deadline deadline = Deadline::after(kGrace);
  for (const launcher::Process& process : processes_) {
    wait_ready(process.pidfd.get(), POLLIN, deadline);
    ::kill(-process.pid, SIGKILL);
    while (::waitpid(process.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void HostContestant::start(Deadline deadline) {
  try {
    for (int host = 0; host < hosts_.count(); ++host) {
      hosts_.enter(host);
      listeners_.push_back(listen_unix(socket_name_));
    }
    if (entry_.starter == bench::Starter::kPaceline) {
      for (int rank = 0; rank < num_ranks(); ++rank) start_rank(rank);
    } else {
      start_launcher();
    }
    hosts_.leave();
    accept_ranks(deadline);
    const auto line = fmt::format("/proc/{}/fd/{}", getpid(), start_line_.get());
    for (const auto& rank : ranks_) rank->send(bench::Setup{{}, false, line, ""}, deadline);
    for (const auto& rank : ranks_) ready_ = rank->receive<bench::Ready>(deadline);
  } catch (const Error& error) {
    hosts_.leave();
    fail_with(error);
  }
}

void HostContestant::start_rank(int rank) {
  hosts_.enter(rank / ranks_per_host_);
  launcher::ProcessSpec spec;
  spec.path = located_.program;
  spec.command = {located_.program, socket_name_};
  spec.environment = launcher::inherited_environment();
  spec.environment["RANK"] = std::to_string(rank);
  spec.environment["WORLD_SIZE"] = std::to_string(num_ranks());
  spec.environment["LOCAL_RANK"] = std::to_string(rank % ranks_per_host_);
  spec.environment["LOCAL_WORLD_SIZE"] = std::to_string(ranks_per_host_);
  spec.environment["MASTER_ADDR"] = hosts_.address(0);
  spec.environment["MASTER_PORT"] = std::to_string(kFirstPort + number_);
  spec.environment["PACELINE_SECRET_FILE"] = directory_ + "/secret";
  start_process(std::move(spec));
}

// Open MPI uses its remote shell, with the hosts' addresses, to start daemons on the other hosts.
// Each host gets its own name; otherwise Open MPI would take all hosts for one.
void HostContestant::write_remote_shell() const {
  std::string script = "#!/bin/sh\nhost=$1; shift\ncase $host in\n";
  for (int host = 0; host < hosts_.count(); ++host) {
    script += fmt::format("{}) space={};;\n", hosts_.address(host), hosts_.path(host));
  }
  script += "esac\nexec nsenter --net=$space unshare --uts sh -c \"hostname host-$host; $*\"\n";
  write_private(directory_ + "/remote_shell", script, 0700);
}

void HostContestant::start_launcher() {
  hosts_.enter(0);
  std::string list;
  for (int host = 0; host < hosts_.count(); ++host) {
    list += fmt::format("{}{}:{}", host == 0 ? "" : ",", hosts_.address(host), ranks_per_host_);
  }
  const std::string subnet = harness::NetworkHosts::subnet();
  launcher::ProcessSpec spec;
  spec.path = located_.launcher;
  spec.command = {located_.launcher,
                  "-np",
                  std::to_string(num_ranks()),
                  "--host",
                  list,
                  "--bind-to",
                  "none",
                  "--oversubscribe",
                  "--mca",
                  "plm_rsh_agent",
                  directory_ + "/remote_shell",
                  "--mca",
                  "plm_rsh_no_tree_spawn",
                  "1",
                  "--mca",
                  "pml",
                  "ob1",
                  "--mca",
                  "btl",
                  "tcp,vader,self",
                  "--mca",
                  "btl_tcp_if_include",
                  subnet,
                  "--mca",
                  "oob_tcp_if_include",
                  subnet,
                  located_.program,
                  socket_name_};
  spec.environment = launcher::inherited_environment();
  // Open MPI refuses to run as root unless both are set.
  spec.environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1";
  spec.environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1";
  start_process(std::move(spec));
}

void HostContestant::start_process(launcher::ProcessSpec spec) {
  for (const auto& [name, value] : variables_) spec.environment[name] = value;
  spec.stdin_fd = null_.get();
  spec.stdout_fd = spec.stderr_fd = output_.get();
  processes_.push_back(launcher::start_process(spec));
}

void HostContestant::accept_ranks(Deadline deadline) {
  for (int come = 0; come < num_ranks();) {
    std::vector<pollfd> doors;
    for (const Fd& listener : listeners_) doors.push_back({listener.get(), POLLIN, 0});
    ::poll(doors.data(), doors.size(), 100);
    for (const Fd& listener : listeners_) {
      Fd socket = bench::accept_private(listener, Deadline::after(0ns));
      if (!socket) continue;
      auto conversation = std::make_unique<bench::Conversation>(std::move(socket));
      const bench::Hello hello = conversation->receive<bench::Hello>(deadline);
      check(hello.world_size == num_ranks() && hello.rank >= 0 && hello.rank < num_ranks() &&
                !ranks_[static_cast<std::size_t>(hello.rank)],
            "a rank says it is {} of {}; {} ranks were started", hello.rank, hello.world_size,
            num_ranks());
      ranks_[static_cast<std::size_t>(hello.rank)] = std::move(conversation);
      ++come;
    }
    if (come < num_ranks() && any_ended()) {
      fail(ErrorCode::kPeerLost, "a process ended before all ranks had arrived");
    }
    if (come < num_ranks() && deadline.expired()) {
      fail(ErrorCode::kTimeout, "{} of {} ranks arrived in time", come, num_ranks());
    }
  }
}

bool HostContestant::any_ended() const {
  return std::any_of(processes_.begin(), processes_.end(), [](const launcher::Process& process) {
    return wait_ready(process.pidfd.get(), POLLIN, Deadline::after(0ns));
  });
}

std::vector<double> HostContestant::take_turn(bench::Turn turn, Deadline deadline) {
  turn.memory =
      ready_.has_symmetric_memory ? bench::MemoryKind::kSymmetric : bench::MemoryKind::kOrdinary;
  std::vector<double> slowest;
  try {
    for (const auto& rank : ranks_) rank->send(turn, deadline);
    for (const auto& rank : ranks_) {
      const bench::TurnResult result = rank->receive<bench::TurnResult>(deadline);
      if (!result.lacks.empty()) fail(ErrorCode::kUnsupported, "it {}", result.lacks);
      if (!result.difference.empty()) {
        fail(ErrorCode::kCorrupt, "the result is wrong: {}", result.difference);
      }
      slowest.resize(std::max(slowest.size(), result.seconds.size()));
      for (std::size_t i = 0; i < result.seconds.size(); ++i) {
        slowest[i] = std::max(slowest[i], result.seconds[i]);
      }
    }
  } catch (const Error& error) {
    fail_with(error);
  }
  return slowest;
}

void HostContestant::fail_with(const Error& error) const {
  const off_t size = ::lseek(output_.get(), 0, SEEK_END);
  std::string text(std::min<std::size_t>(static_cast<std::size_t>(size), kShownOutput), '\0');
  const auto begin = size - static_cast<off_t>(text.size());
  text.resize(static_cast<std::size_t>(
      std::max<ssize_t>(0, ::pread(output_.get(), text.data(), text.size(), begin))));
  fail(error.code(), "{}: {}\n{}", title_, error.what(), text);
}

}  // namespace paceline::benchmarks
