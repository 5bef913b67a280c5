#include "paceline/launcher/ranks/rank_seeds.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/rendezvous/fork_server.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

// The time limits for sending an order and again for its answer, for all answers of a generation
// together, and for the end of a killed seed.
constexpr std::chrono::nanoseconds kSeedAnswer = 200ms, kAllAnswers = 1s, kEnd = 1s;
constexpr std::array kPlace = {"RANK",
                               "WORLD_SIZE",
                               "GROUP_RANK",
                               "GROUP_WORLD_SIZE",
                               "ROLE_NAME",
                               "ROLE_RANK",
                               "ROLE_WORLD_SIZE",
                               "TORCHELASTIC_RESTART_COUNT",
                               "TORCHELASTIC_MAX_RESTARTS",
                               "MASTER_ADDR",
                               "MASTER_PORT"};
constexpr std::string_view kOwn = "PACELINE_";

// Whether rule 3 (rank_seeds.h) allows the variable to differ.
bool tells_place(const std::string& name) {
  return name.starts_with(kOwn) || std::find(kPlace.begin(), kPlace.end(), name) != kPlace.end();
}

// The number of descriptors that every program executed from this process inherits, in addition to
// the descriptors that are passed to it on purpose.
int num_inherited_descriptors() {
  int count = 0;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir("/proc/self/fd"), closedir);
  if (!entries) return 0;
  while (const dirent* entry = readdir(entries.get())) {
    if (entry->d_name[0] == '.') continue;
    const int flags = fcntl(std::atoi(entry->d_name), F_GETFD);
    count += flags >= 0 && (flags & FD_CLOEXEC) == 0;
  }
  return count;
}

bool lives(const Process& process) {
  return process.pidfd && !wait_ready(process.pidfd.get(), POLLIN, Deadline::after(0ns));
}

bool is_own_child(const Fd& pidfd) {
  siginfo_t info{};
  return waitid(P_PIDFD, static_cast<id_t>(pidfd.get()), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

void kill_process(const Fd& pidfd) {
  syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
}

struct SocketPair {
  Fd own, others;
};

// Makes the two ends of a seed's socket; both are empty if the socket cannot be made.
SocketPair make_seed_socket() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return {};
  const int on = 1;
  setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
  return {Fd(ends[0]), Fd(ends[1])};
}

struct SeedMessage {
  pid_t sender = -1;  // attested by the kernel; -1: no message has arrived
  std::string text;
};

// Waits for a message until the deadline.
SeedMessage receive_from_seed(const Fd& socket, Deadline deadline) {
  std::array<char, kLongestAnswer> received;
  iovec text{received.data(), received.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred))> control{};
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = receive_message(socket.get(), message);
  } while (got < 0 && errno == EAGAIN && await(socket.get(), POLLIN, deadline));
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (got < 1 || header == nullptr || header->cmsg_type != SCM_CREDENTIALS) return {};
  ucred sender{};
  std::memcpy(&sender, CMSG_DATA(header), sizeof sender);
  return {sender.pid, std::string(received.data(), static_cast<std::size_t>(got))};
}

bool is_message(const SeedMessage& message, char wanted) {
  return message.text.size() == 1 && message.text[0] == wanted;
}

std::string order_text(const VariableChanges& changes) {
  std::string text(1, kSeedOrder);
  for (const auto& [name, value] : changes) {
    text += name;
    if (value) text += "=" + *value;
    text += '\0';
  }
  return text;
}

// Orders the seed on `socket` to become the rank of `spec`. `next_socket`: an end of a new socket,
// for the next seed, which this seed forks first. Returns false if the order cannot be sent.
bool send_order(const Fd& socket, const std::string& text, const ProcessSpec& spec,
                int next_socket) {
  std::array<int, kNumSeedDescriptors> descriptors{};
  descriptors[kSeedStdin] = spec.stdin_fd;
  descriptors[kSeedStdout] = spec.stdout_fd;
  descriptors[kSeedStderr] = spec.stderr_fd;
  descriptors[kSeedSecret] = spec.inherited.front();
  descriptors[kSeedSocket] = next_socket;
  const Deadline deadline = Deadline::after(kSeedAnswer);
  ssize_t sent = 0;
  do {
    sent = send_with_descriptors(socket.get(), std::as_bytes(std::span(text)), descriptors);
  } while (sent < 0 && errno == EAGAIN && await(socket.get(), POLLOUT, deadline));
  return sent >= 0;
}

}  // namespace

std::optional<VariableChanges> changes_of_place(const Environment& before,
                                                const Environment& after) {
  VariableChanges changes;
  for (const auto& [name, value] : added_variables(after, before)) changes[name] = value;
  for (const auto& [name, value] : before) {
    if (!after.contains(name)) changes[name] = std::nullopt;
  }
  const bool known = std::all_of(changes.begin(), changes.end(),
                                 [](const auto& change) { return tells_place(change.first); });
  return known ? std::optional(std::move(changes)) : std::nullopt;
}

RankSeeds::RankSeeds(std::string program, bool enabled, std::function<void(const std::string&)> say)
    : program_(std::move(program)),
      enabled_(enabled),
      say_(std::move(say)),
      num_inherited_(enabled ? num_inherited_descriptors() : 0) {}

RankSeeds::~RankSeeds() {
  for (const Seed& seed : seeds_) {
    if (seed.process.pidfd) kill_process(seed.process.pidfd);
  }
  for (Seed& seed : seeds_) end(seed);
}

void RankSeeds::begin_generation() { patience_ = Deadline::after(kAllAnswers); }

Process RankSeeds::start(int local_rank, ProcessSpec spec) {
  if (!enabled_) return start_process(spec);
  const auto index = static_cast<std::size_t>(local_rank);
  if (index >= seeds_.size()) seeds_.resize(index + 1);
  Seed& seed = seeds_[index];
  ForkResult result = fork_from(seed, spec);
  if (result.process) return std::move(*result.process);
  if (result.refusal) {
    say_(fmt::format(
        "paceline: local rank {} is started by executing the program, not from a seed: {}\n",
        local_rank, *result.refusal));
  }
  end(seed);
  return execute(seed, std::move(spec));
}

std::vector<pid_t> RankSeeds::pids() {
  std::vector<pid_t> pids;
  for (Seed& seed : seeds_) {
    look_for(seed);
    if (lives(seed.process)) pids.push_back(seed.process.pid);
  }
  return pids;
}

Process RankSeeds::execute(Seed& seed, ProcessSpec spec) {
  SocketPair pair = make_seed_socket();
  const auto file = FileVersion::of(program_.c_str());
  if (!pair.own || !file) return start_process(spec);
  seed = {std::move(pair.own), *file, spec.environment, {}};
  spec.inherited.push_back(pair.others.get());
  spec.environment[kForkServerVariable] = to_text(ForkServerInvitation{
      .socket = pair.others.get(),
      .launcher = getpid(),
      .device = file->device,
      .file = file->number,
      .num_descriptors = num_inherited_ + static_cast<int>(spec.inherited.size())});
  return start_process(spec);
}

RankSeeds::ForkResult RankSeeds::fork_from(Seed& seed, const ProcessSpec& spec) {
  look_for(seed);
  if (seed.process.pid < 0) return {};  // the program leaves no seeds
  const auto refuse = [](std::string why) { return ForkResult{.refusal = std::move(why)}; };
  if (!lives(seed.process)) return refuse("its seed has ended");
  if (FileVersion::of(program_.c_str()) != seed.program) {
    return refuse("the program's file has changed");
  }
  auto changes = changes_of_place(seed.environment, spec.environment);
  if (!changes) return refuse("its environment has changed");
  changes->erase("PACELINE_SECRET_FD");  // the seed uses its own number for that descriptor
  const std::string text = order_text(*changes);
  if (text.size() > kLongestOrder) return refuse("its environment has changed too much");
  const auto wait = std::min<std::chrono::nanoseconds>(kSeedAnswer, patience_.remaining());
  SocketPair next = make_seed_socket();
  if (!next.own || !send_order(seed.socket, text, spec, next.others.get())) {
    return refuse(std::strerror(errno));
  }
  const SeedMessage answer = receive_from_seed(seed.socket, Deadline::after(wait));
  if (answer.sender == seed.process.pid && answer.text.starts_with(kSeedIsStale)) {
    return refuse(answer.text.substr(1) + " has changed since it was loaded");
  }
  if (answer.sender != seed.process.pid || !is_message(answer, kSeedGrows)) {
    return refuse("its seed does not answer");
  }
  ForkResult result{.process = std::move(seed.process)};
  seed.socket = std::move(next.own);
  seed.process = {};
  return result;
}

// Reads the first message of a seed, if it has arrived.
void RankSeeds::look_for(Seed& seed) {
  if (!seed.socket || seed.process.pid >= 0) return;
  const SeedMessage message = receive_from_seed(seed.socket, Deadline::after(0ns));
  if (!is_message(message, kSeedReady)) return;
  Fd pidfd(static_cast<int>(syscall(SYS_pidfd_open, message.sender, 0)));
  if (pidfd && is_own_child(pidfd)) seed.process = {message.sender, std::move(pidfd)};
}

void RankSeeds::end(Seed& seed) {
  const Seed ended = std::exchange(seed, {});
  const Fd& pidfd = ended.process.pidfd;
  if (!pidfd) return;
  kill_process(pidfd);
  siginfo_t info{};
  if (wait_ready(pidfd.get(), POLLIN, Deadline::after(kEnd))) {
    waitid(P_PIDFD, static_cast<id_t>(pidfd.get()), &info, WEXITED | WNOHANG);
  }
}

}  // namespace paceline::launcher
