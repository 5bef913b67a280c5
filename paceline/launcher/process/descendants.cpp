#include "paceline/launcher/process/descendants.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {

namespace {

// The parent of `pid`, read from /proc/PID/stat; -1 if the process no longer exists.
pid_t parent_of(const char* pid) {
  char text[512];
  const Fd file(open((std::string("/proc/") + pid + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  const auto room = std::as_writable_bytes(std::span(text)).first(sizeof text - 1);
  const ssize_t length = file ? read_some(file.get(), room) : -1;
  if (length <= 0) return -1;
  text[length] = '\0';
  // The text is "pid (name) state ppid ...". The name may contain anything, so look for the last
  // parenthesis.
  const char* end = std::strrchr(text, ')');
  return end == nullptr || std::strlen(end) < 5 ? -1 : static_cast<pid_t>(std::atoi(end + 4));
}

// Whether process `pid` is the master of a connection that several sessions of a user share
// (ControlPersist in ssh_config(5)). An ssh that connects to a host leaves its master running,
// under the title "ssh: PATH [mux]". If the master were ended, the user's sessions would end with
// it.
bool is_shared_connection(const char* pid) {
  constexpr std::string_view kBegin = "ssh: ", kEnd = " [mux]";
  char text[4096];
  const Fd file(open((std::string("/proc/") + pid + "/cmdline").c_str(), O_RDONLY | O_CLOEXEC));
  const ssize_t length = file ? read_some(file.get(), std::as_writable_bytes(std::span(text))) : -1;
  if (length <= 0) return false;
  const std::string_view title(text, strnlen(text, static_cast<std::size_t>(length)));
  return title.starts_with(kBegin) && title.ends_with(kEnd);
}

struct Children {
  std::vector<pid_t> rest;
  bool spares_some = false;
};

Children own_children(const std::vector<pid_t>& spared) {
  Children children;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
  if (!proc) return children;
  while (const dirent* entry = readdir(proc.get())) {
    const auto pid = parse_number<pid_t>(entry->d_name);
    if (!pid || parent_of(entry->d_name) != getpid()) continue;
    if (std::find(spared.begin(), spared.end(), *pid) != spared.end() ||
        is_shared_connection(entry->d_name)) {
      children.spares_some = true;
    } else {
      children.rest.push_back(*pid);
    }
  }
  return children;
}

// Reaps all children that have ended. Returns false if no child is left.
bool reap() {
  pid_t pid = 0;
  while ((pid = waitpid(-1, nullptr, WNOHANG)) > 0) {
  }
  return pid == 0;
}

}  // namespace

void adopt_orphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

bool await_all_descendants(Deadline deadline) {
  while (reap()) {
    if (deadline.expired()) return false;
    poll(nullptr, 0, 1);
  }
  return true;
}

bool end_all_descendants(Deadline deadline, const std::vector<pid_t>& spared) {
  while (reap()) {
    const Children children = own_children(spared);
    if (children.rest.empty() && (children.spares_some || !spared.empty())) return true;
    if (deadline.expired()) return false;
    for (const pid_t pid : children.rest) kill(pid, SIGKILL);
    // No descriptor becomes ready when a grandchild becomes a child, so look again soon.
    poll(nullptr, 0, 1);
  }
  return true;
}

std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> children;
  std::error_code error;
  const std::string folder = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& thread : std::filesystem::directory_iterator(folder, error)) {
    std::ifstream list(thread.path() / "children");
    for (pid_t child = 0; list >> child;) children.push_back(child);
  }
  return children;
}

Orphans::Orphans(EventLoop& loop) : ends_(make_signal_fd(std::array{SIGCHLD})) {
  loop.watch(ends_.get(), [this] { may_wait_ = true; });
}

bool Orphans::may_wait() {
  if (!std::exchange(may_wait_, false)) return false;
  signalfd_siginfo info;
  while (read_record(ends_.get(), info)) {
  }
  return true;
}

void Orphans::reap(const std::function<bool(pid_t pid)>& is_owned) {
  for (;;) {
    siginfo_t ended{};
    if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) return;
    if (is_owned(ended.si_pid)) {
      may_wait_ = true;  // look again when the owner has reaped it
      return;
    }
    waitpid(ended.si_pid, nullptr, 0);
  }
}

}  // namespace paceline::launcher
