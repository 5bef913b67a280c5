#include "tests/harness/process_ranks.h"

#include <array>
#include <cstring>
#include <numeric>

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/engine/rendezvous/rendezvous.h"
#include "paceline/engine/store/tcp_store.h"
#include "paceline/engine/store/tcp_store_server.h"

#include "tests/harness/wait_until.h"

namespace paceline::harness {
namespace {

struct Child {
  pid_t pid = -1;
  Fd report;
};

std::string address_of(int host, const RanksOptions& options) {
  if (options.hosts == nullptr) return "127.0.0.1";
  return options.over_ipv6 ? options.hosts->address_v6(host) : options.hosts->address(host);
}

// Listens on the first host.
Fd listen_for_store(const RanksOptions& options) {
  if (options.hosts != nullptr) options.hosts->enter(0);
  Fd listener = listen_tcp({address_of(0, options), 0});
  if (options.hosts != nullptr) options.hosts->leave();
  return listener;
}

[[noreturn]] void run_child(pid_t parent, int rank, int world_size, const Fd& report,
                            std::uint16_t port, const Secret& secret, const ProcessBody& body,
                            const RanksOptions& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent ended before the line above
  const bool failed_before =
      testing::Test::HasFailure();  // whether the test had already failed in the parent
  ByteWriter report_to;
  int code = 0;
  try {
    const int host = options.hosts == nullptr ? 0 : rank / options.ranks_per_host;
    if (options.hosts != nullptr) options.hosts->enter(host);
    if (options.before_connect) options.before_connect(rank);
    LaunchEnvironment environment;
    environment.rank = environment.local_rank = rank;
    environment.world_size = environment.local_world_size = world_size;
    std::vector<int> ranks(static_cast<std::size_t>(world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
    auto store = std::make_shared<TcpStore>(Endpoint{address_of(0, options), port}, secret,
                                            options.group_timeout);
    Rendezvous met{environment, store, secret};
    met.address = address_of(host, options);
    EngineGroup group(std::move(met), "world", ranks, group_options_of(options, rank, world_size));
    report_to.put(false);
    report_to.put_string(body(group));
  } catch (const Error& error) {
    report_to = {};
    report_to.put(true);
    report_to.put_string(error.what());
    report_to.put(error.code());
    report_to.put_string(error.operation());
    report_to.put_string(error.group());
    for (const int culprit : error.ranks()) report_to.put(culprit);
    code = 1;
  }
  const auto ended = std::chrono::steady_clock::now();
  std::string text(reinterpret_cast<const char*>(&ended), sizeof ended);
  text += to_string(report_to.bytes());
  if (testing::Test::HasFailure() && !failed_before) code = 2;
  (void)!::write(report.get(), text.data(), text.size());
  _exit(code);
}

// Calls the intervention. If it throws, kills the ranks, so that they can be reaped.
void intervene(const Intervention& intervention, const std::vector<pid_t>& pids) {
  try {
    intervention(pids);
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
    for (const pid_t pid : pids) ::kill(pid, SIGKILL);
  }
}

std::string read_report(const Fd& fd) {
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t got; (got = ::read(fd.get(), buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return text;
}

}  // namespace

void wait_for_the_end_of(pid_t pid, Deadline deadline) {
  const auto has_ended = [&] {
    siginfo_t end{};
    ::waitid(P_PID, static_cast<id_t>(pid), &end, WEXITED | WNOWAIT | WNOHANG);
    return end.si_pid == pid;
  };
  EXPECT_TRUE(wait_until(has_ended, deadline)) << "process " << pid << " has not ended";
}

std::vector<ProcessResult> run_process_ranks(int world_size, const ProcessBody& body,
                                             const RanksOptions& options,
                                             const Intervention& intervention) {
  const auto secret = Secret::generate();
  Fd listener = listen_for_store(options);
  const auto port = local_port(listener);
  std::vector<Child> children;
  std::vector<pid_t> pids;
  const pid_t parent = getpid();
  for (int rank = 0; rank < world_size; ++rank) {
    int ends[2];
    if (::pipe(ends) != 0) throw system_error("pipe()");
    const pid_t pid = ::fork();
    if (pid < 0) throw system_error("fork()");
    if (pid == 0) {
      ::close(ends[0]);
      run_child(parent, rank, world_size, Fd(ends[1]), port, secret, body, options);
    }
    ::close(ends[1]);
    children.push_back({pid, Fd(ends[0])});
    pids.push_back(pid);
  }
  // Starts the server's thread only now, after the forks, because fork() copies no other thread.
  const TcpStoreServer server(std::move(listener), secret);
  if (intervention) intervene(intervention, pids);

  std::vector<ProcessResult> results;
  const auto deadline = Deadline::after(options.watchdog);
  for (auto& child : children) {
    ProcessResult result;
    int status = 0;
    pid_t ended = 0;
    while ((ended = ::waitpid(child.pid, &status, WNOHANG)) == 0 && !deadline.expired()) {
      pollfd entry{child.report.get(), 0, 0};
      ::poll(&entry, 1, 5);
    }
    if (ended == 0) {
      ADD_FAILURE() << "rank " << results.size() << " hung";
      ::kill(child.pid, SIGKILL);
      ::waitpid(child.pid, &status, 0);
    }
    std::string text = read_report(child.report);
    if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
    if (text.size() > sizeof result.ended) {
      std::memcpy(&result.ended, text.data(), sizeof result.ended);
      ByteReader reader(as_bytes(std::string_view(text).substr(sizeof result.ended)));
      result.threw = reader.get<bool>();
      result.report = reader.get_string(text.size());
      if (result.threw) {
        result.code = reader.get<ErrorCode>();
        result.context.operation = reader.get_string(text.size());
        result.context.group = reader.get_string(text.size());
        while (reader.remaining() > 0) result.context.ranks.push_back(reader.get<int>());
      }
    }
    EXPECT_NE(result.exit_code, 2) << "rank " << results.size() << ": " << result.report;
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace paceline::harness
