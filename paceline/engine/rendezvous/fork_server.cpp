#include "paceline/engine/rendezvous/fork_server.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include <dirent.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"

namespace paceline {

std::optional<FileVersion> FileVersion::of(const char* path) {
  struct stat file {};
  if (stat(path, &file) != 0) return std::nullopt;
  return FileVersion{file.st_dev, file.st_ino, file.st_size, file.st_mtim};
}

bool FileVersion::operator==(const FileVersion& other) const {
  return device == other.device && number == other.number && size == other.size &&
         modified.tv_sec == other.modified.tv_sec && modified.tv_nsec == other.modified.tv_nsec;
}

LoadedFiles::LoadedFiles() {
  // A library's name contains a folder. The program's name is empty here, and the name of the
  // kernel's vDSO has no folder.
  const auto note = [](dl_phdr_info* object, std::size_t, void* files) {
    const char* const name = object->dlpi_name;
    if (std::strchr(name, '/') != nullptr) {
      static_cast<std::vector<File>*>(files)->push_back({name, FileVersion::of(name)});
    }
    return 0;
  };
  dl_iterate_phdr(note, &files_);
}

std::optional<std::string> LoadedFiles::find_changed() const {
  const auto changed = std::find_if(files_.begin(), files_.end(), [](const File& file) {
    return !file.version || FileVersion::of(file.name.c_str()) != file.version;
  });
  return changed == files_.end() ? std::nullopt : std::optional(changed->name);
}

namespace {

using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds kHelper = 5s;  // limit for a fork, which takes milliseconds
constexpr const char* kSecretVariable = "PACELINE_SECRET_FD";
constexpr const char* kSeedName = "paceline-seed";

bool grown = false;

// --- Whether this process may make a seed ---

// The number of entries in a folder; -1 when it cannot be read.
int num_entries(const char* folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(folder), closedir);
  if (!entries) return -1;
  int count = 0;
  while (const dirent* entry = readdir(entries.get())) count += entry->d_name[0] != '.';
  return count;
}

int num_threads() { return num_entries("/proc/self/task"); }

// Whether this code is linked into the program itself. The constructors of a library also run when
// a running program, such as Python, opens it.
bool is_part_of_the_program() {
  const auto contains = [](dl_phdr_info* object, std::size_t, void* address) {
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const auto& segment = object->dlpi_phdr[i];
      const auto begin = object->dlpi_addr + segment.p_vaddr;
      const auto wanted = reinterpret_cast<ElfW(Addr)>(address);
      if (segment.p_type == PT_LOAD && wanted >= begin && wanted < begin + segment.p_memsz) {
        return 1;
      }
    }
    return -1;  // the program itself comes first
  };
  return dl_iterate_phdr(contains, &grown) == 1;
}

// The launcher made both ends of the socket. If the number now belongs to another descriptor, that
// descriptor is left alone.
Fd take_socket(const ForkServerInvitation& invitation) {
  int type = 0;
  socklen_t size = sizeof type;
  const int fd = invitation.socket;
  const auto peer = peer_credentials(fd);
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET || !peer ||
      peer->pid != invitation.launcher) {
    return {};
  }
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return Fd(fd);
}

bool was_executed_as_meant(const ForkServerInvitation& invitation) {
  struct stat program {};
  return getppid() == invitation.launcher && stat("/proc/self/exe", &program) == 0 &&
         program.st_dev == invitation.device && program.st_ino == invitation.file;
}

// Whether a library has opened a descriptor, which all generations would share.
bool has_own_descriptors(const ForkServerInvitation& invitation) {
  const int count = num_entries("/proc/self/fd");  // one entry is the open folder itself
  return count < 0 || count - 1 > invitation.num_descriptors;
}

// --- Forking ---

enum class Role { kRank, kSeed };

bool send_word(const Fd& socket, std::string_view text) {
  return send_whole(socket.get(), as_bytes(text), Deadline::never());
}
bool send_word(const Fd& socket, char word) {
  return send_word(socket, std::string_view(&word, 1));
}

// Waits for a message. Returns whether it is `word`.
bool receive_word(const Fd& socket, char word) {
  char received = 0;
  const auto into = std::as_writable_bytes(std::span(&received, 1));
  return receive_whole(socket.get(), into, Deadline::never()) == 1 && received == word;
}

// Waits for a child that is about to end, and kills it when it takes too long.
void reap(pid_t child) {
  const Fd pidfd(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  if (!pidfd || !await(pidfd.get(), POLLIN, Deadline::after(kHelper))) kill(child, SIGKILL);
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// Invariants 2 and 6: the helper has ended, so this process must be a child of the launcher; from
// now on it dies with the launcher. Returns false when this process cannot be a seed.
bool settle(const Fd& socket, pid_t launcher) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  return getppid() == launcher && send_word(socket, kSeedReady);
}

// Returns twice: in this process, which is the rank, and in its seed. The seed tells the launcher
// over `socket` that it is ready before the rank continues.
Role fork_seed(const Fd& socket, pid_t launcher) {
  constexpr char kGoOn = 'g';
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return Role::kRank;
  Fd own(ends[0]), others(ends[1]);
  const pid_t helper = fork();
  if (helper < 0) return Role::kRank;
  if (helper == 0) {
    own.reset();
    if (!receive_word(others, kGoOn) || fork() != 0) _exit(0);
    if (!receive_word(others, kGoOn) || !settle(socket, launcher)) _exit(0);
    return Role::kSeed;
  }
  others.reset();
  // Invariant 1: other threads of this process would be missing in the child, and the locks that
  // they hold would never be released there.
  const bool whole = num_threads() == 1 && send_word(own, kGoOn);
  if (!whole) own.reset();
  reap(helper);
  if (whole && send_word(own, kGoOn)) await(own.get(), POLLIN, Deadline::after(kHelper));
  return Role::kRank;
}

// --- A seed's life ---

struct Order {
  std::string variables;
  std::array<Fd, kNumSeedDescriptors> descriptors;
};

// Invariant 4: closes the seed's copies of the rank's standard streams and secret.
void close_rank_descriptors() {
  const Fd nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing.get(), fd);
  if (const char* secret = std::getenv(kSecretVariable)) close(std::atoi(secret));
}

// Waits for an order, without a deadline because no other process waits for a seed. Exits when the
// launcher ends.
Order await_order(const Fd& socket) {
  Order order{std::string(kLongestOrder, '\0'), {}};
  Received got;
  do {
    if (!await(socket.get(), POLLIN, Deadline::never())) _exit(0);
    got = receive_with_descriptors(socket.get(), std::as_writable_bytes(std::span(order.variables)),
                                   order.descriptors);
  } while (got.bytes < 0 && errno == EAGAIN);
  if (got.bytes <= 0 || got.is_cut || got.descriptors != kNumSeedDescriptors) _exit(0);
  if (!order.descriptors[kSeedSocket] || order.variables[0] != kSeedOrder) _exit(0);
  order.variables = order.variables.substr(1, static_cast<std::size_t>(got.bytes) - 1);
  return order;
}

[[noreturn]] void refuse(const Fd& socket, const std::string& changed) {
  send_word(socket, (kSeedIsStale + changed).substr(0, kLongestAnswer));
  _exit(0);
}

Order live_as_seed(const Fd& socket, const LoadedFiles& files) {
  std::array<char, 16> name{};
  prctl(PR_GET_NAME, name.data());
  prctl(PR_SET_NAME, kSeedName);
  Order order = await_order(socket);
  if (const auto changed = files.find_changed()) refuse(socket, *changed);
  if (!send_word(socket, kSeedGrows)) _exit(0);
  prctl(PR_SET_NAME, name.data());
  return order;
}

void set_variables(std::string_view texts) {
  while (!texts.empty()) {
    const std::string text(texts.substr(0, texts.find('\0')));
    texts.remove_prefix(std::min(text.size() + 1, texts.size()));
    const auto equals = text.find('=');
    if (equals == std::string::npos)
      unsetenv(text.c_str());
    else
      setenv(text.substr(0, equals).c_str(), text.c_str() + equals + 1, 1);
  }
}

// Repeats the setup that the launcher makes for an executed rank between fork and exec
// (launcher/process/process.cpp).
void become_rank(Order order, pid_t launcher) {
  prctl(PR_SET_PTRACER, launcher, 0, 0, 0);
  dup2(order.descriptors[kSeedStdin].get(), STDIN_FILENO);
  dup2(order.descriptors[kSeedStdout].get(), STDOUT_FILENO);
  dup2(order.descriptors[kSeedStderr].get(), STDERR_FILENO);
  set_variables(order.variables);
  const int secret = order.descriptors[kSeedSecret].release();
  fcntl(secret, F_SETFD, 0);
  setenv(kSecretVariable, std::to_string(secret).c_str(), 1);
  grown = true;
}

void run_fork_server(Fd socket, pid_t launcher) {
  const LoadedFiles files;
  std::optional<Order> order;
  while (fork_seed(socket, launcher) == Role::kSeed) {
    if (!order) close_rank_descriptors();
    order.reset();  // closes this seed's copies of the rank's descriptors
    order = live_as_seed(socket, files);
    socket = std::move(order->descriptors[kSeedSocket]);
  }
  if (order) become_rank(std::move(*order), launcher);
}

// Runs after the constructors of all libraries and before those of the program: 101 is the first
// priority that is not reserved for the compiler.
[[gnu::constructor(101)]] void begin() {
  const char* const text = std::getenv(kForkServerVariable);
  if (text == nullptr || !is_part_of_the_program()) return;
  const auto invitation = parse_invitation(text);
  unsetenv(kForkServerVariable);
  if (!invitation) return;
  Fd socket = take_socket(*invitation);
  if (!socket || !was_executed_as_meant(*invitation) || has_own_descriptors(*invitation)) return;
  run_fork_server(std::move(socket), invitation->launcher);
}

}  // namespace

std::string to_text(const ForkServerInvitation& invitation) {
  std::string text = std::to_string(invitation.socket);
  for (const std::string& number :
       {std::to_string(invitation.launcher), std::to_string(invitation.device),
        std::to_string(invitation.file), std::to_string(invitation.num_descriptors)}) {
    text += "," + number;
  }
  return text;
}

std::optional<ForkServerInvitation> parse_invitation(const char* text) {
  ForkServerInvitation found;
  int end = 0;
  const int fields = std::sscanf(text, "%d,%d,%llu,%llu,%d%n", &found.socket, &found.launcher,
                                 &found.device, &found.file, &found.num_descriptors, &end);
  if (fields != 5 || text[end] != '\0') return std::nullopt;
  return found;
}

bool grown_from_seed() { return grown; }

}  // namespace paceline
