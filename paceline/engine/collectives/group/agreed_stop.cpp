#include "paceline/engine/collectives/group/agreed_stop.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

constexpr std::int32_t kFileRequest = 1 << 16;  // above every signal's number
constexpr auto kBetweenLooks = 100ms;

// The largest number among the signals received; 0 if none. It is global, because a signal handler
// can reach nothing else.
std::atomic<int> caught_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);
std::atomic<bool> exists{false};

// Whether a SIGINT has come from a process (0) or from the terminal (1). The second one from the
// same source ends the process, as if it were not caught. The two sources are counted separately,
// because a launcher may pass on a SIGINT that the terminal has also sent to the ranks.
std::array<std::atomic<bool>, 2> interrupted{};
static_assert(std::atomic<bool>::is_always_lock_free);

void note_signal(int signal, siginfo_t* info, void* /*context*/) {
  // A positive si_code means that the kernel sent the signal, so it comes from the terminal.
  const std::size_t of_terminal = info->si_code > 0 ? 1 : 0;
  if (signal == SIGINT && interrupted[of_terminal].exchange(true)) {
    ::signal(SIGINT, SIG_DFL);
    ::raise(SIGINT);  // takes effect once this handler, which blocks SIGINT, has returned
    return;
  }
  int seen = caught_signal.load();
  while (seen < signal && !caught_signal.compare_exchange_weak(seen, signal)) {
  }
}

std::string name_of_signal(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

// Whether the signal is ignored. A shell ignores SIGINT for processes that it starts in the
// background.
bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

void restore(const std::vector<std::pair<int, struct sigaction>>& former) {
  for (const auto& [signal, action] : former) ::sigaction(signal, &action, nullptr);
}

}  // namespace

AgreedStop::AgreedStop(std::string file, const std::vector<int>& signals) : file_(std::move(file)) {
  check(!exists.exchange(true), "agreed stop: there is already one in this process");
  caught_signal = 0;
  for (auto& once : interrupted) once = false;
  struct sigaction action {};
  action.sa_sigaction = note_signal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigfillset(&action.sa_mask);
  for (const int signal : signals) {
    struct sigaction former {};
    if (signal == SIGINT && is_ignored(signal)) continue;
    if (::sigaction(signal, &action, &former) != 0) {
      const int error_number = errno;
      restore(former_);
      exists = false;
      fail(ErrorCode::kInvalid, "agreed stop: signal {} cannot be caught: {}", signal,
           std::strerror(error_number));
    }
    former_.emplace_back(signal, former);
  }
}

AgreedStop::~AgreedStop() {
  restore(former_);
  exists = false;
}

bool AgreedStop::requested(GroupRef asked) {
  ProcessGroup& group = *asked;
  if (!reason_.empty()) return true;
  std::int32_t what = seen_here(group);
  if (group.world_size() > 1) group.all_reduce(std::span(&what, 1), ReduceOp::kMax);
  if (what == 0) return false;
  agree(what, group);
  return true;
}

std::int32_t AgreedStop::seen_here(const ProcessGroup& group) {
  const int signal = caught_signal.load();
  if (signal != 0 || group.rank() != 0 || !file_exists()) return signal;
  return kFileRequest;
}

bool AgreedStop::file_exists() {
  if (file_.empty()) return false;
  const auto now = Clock::now();
  if (now < next_look_) return false;
  next_look_ = now + kBetweenLooks;
  return ::access(file_.c_str(), F_OK) == 0;
}

void AgreedStop::agree(std::int32_t what, const ProcessGroup& group) {
  reason_ = what == kFileRequest ? fmt::format("the file {}", file_) : name_of_signal(what);
  const bool removes = group.rank() == 0 && !file_.empty();
  if (removes && ::unlink(file_.c_str()) != 0 && errno != ENOENT) {
    log::warning(fmt::format("{}; the file will stop the continued job at once",
                             system_error(file_ + ": cannot remove").what()));
  }
}

}  // namespace paceline
