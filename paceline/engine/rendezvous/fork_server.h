#pragma once

// A rank's side of the fork server; launcher/ranks/rank_seeds.h is the launcher's side.
//
// The fork server lets a program load its libraries once per job, not at each restart (0.3 s with
// LibTorch), like Python's forkserver and Android's zygote. A rank that the launcher may restart
// forks a *seed* once its libraries are loaded, before main() and the program's own static objects:
// an idle copy of the process that has run nothing yet. When a new generation begins, the launcher
// sends the seed the settings that differ. The seed forks the next seed and then continues into
// main() as that rank:
//
//   launcher ─┬─ rank 0 (executed)  ── dies
//             └─ seed ── on an order, becomes rank 0 of generation 1
//                  └─ seed of generation 2, also a child of the launcher
//
// A short-lived *helper* process forks the seed and exits, and the launcher adopts orphans. So the
// seed is the launcher's child, and the program never has a child that it did not make. The seed
// dies with the launcher: it exits when its socket closes, and the kernel kills a stopped seed.
//
// A program takes part if it is linked with this file, if the launcher itself executed it (not
// through a shell), and if, just before main(), it has one thread and no descriptor of its own.
// Threads that a library stops around fork() (OpenBLAS) do not count. At a restart the launcher
// executes any other program again, as usual.
//
// A seed that receives an order first checks that its libraries are still the files that it loaded
// (LoadedFiles), and refuses the order if they are not; the launcher checks the program's file.
//
// Values that a library read from the environment while it was loaded stay in effect, so the
// launcher changes only variables about a rank's position in the job (launcher/ranks/rank_seeds.h).
// /proc/PID/environ shows the variables of the first generation.
//
// Invariants:
//
//  1. A seed is forked before main(), from a process with one thread and no descriptor of its own.
//     So no thread that holds a lock is missing in the child, and no two generations share a
//     descriptor. The threads are counted after the first fork, when the fork handlers of libraries
//     have stopped their threads; if any others exist, the helper exits and makes no seed.
//  2. The rank continues into main() only after its seed has told the launcher that it is ready (or
//     after 5 s). When the seed reports, it is a child of the launcher: the helper has ended, and
//     was waited for, before the seed checks its parent.
//  3. At most one seed waits for each rank. A rank makes one seed, before main(); a seed makes the
//     next one only after an order to become the rank.
//  4. A seed keeps no descriptor of the rank that made it: it closes its copies of the standard
//     streams and of the secret's descriptor, so that the launcher can read the rank's pipes to
//     their end.
//  5. A seed takes an order as a whole or not at all: one message of a SOCK_SEQPACKET socket with
//     all its descriptors. After any other message, or at the end of the socket, it exits silently,
//     and the launcher executes the program.
//  6. No seed outlives the launcher: a waiting seed exits when its socket closes, and
//     PR_SET_PDEATHSIG kills a stopped one.
//
// All of this code may run before the program's own static objects exist, so it uses no log and no
// streams, and throws nothing but bad_alloc.

#include <array>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>
#include <time.h>

namespace paceline {

// The identity and the state of the file at a path. A value.
struct FileVersion {
  dev_t device = 0;
  ino_t number = 0;
  off_t size = 0;
  timespec modified{};

  // Returns nullopt when there is no such file. Follows links.
  static std::optional<FileVersion> of(const char* path);
  bool operator==(const FileVersion& other) const;
};

// The shared libraries of this process, without the program itself. A value. If a program is
// updated while its job runs, a restart must not silently continue from the old image. So the fork
// server records the files right after they were loaded, and a seed compares them before it becomes
// a rank.
//
// The names are the paths with which the dynamic linker opened the libraries, with links
// unresolved, so that an update that only redirects a link is noticed too. A file that was
// replaced, written to or removed counts as changed. A new library that the linker would now find
// earlier in its search path is not noticed.
class LoadedFiles {
 public:
  // The libraries that are loaded at this moment.
  LoadedFiles();
  // The name of the first file that has changed, if any.
  std::optional<std::string> find_changed() const;

 private:
  struct File {
    std::string name;
    std::optional<FileVersion> version;  // nullopt: it was missing right after loading
  };
  std::vector<File> files_;
};

// The variable that tells a rank that it may make a seed. A program that is linked with this file
// removes the variable from its environment before main().
inline constexpr const char* kForkServerVariable = "PACELINE_FORK_SERVER";

// The value of kForkServerVariable. `device` and `file` are the device and inode numbers of the
// program's file.
struct ForkServerInvitation {
  int socket = -1;  // SOCK_SEQPACKET, inherited
  pid_t launcher = -1;
  unsigned long long device = 0, file = 0;
  int num_descriptors = 0;  // how many descriptors the launcher gives the rank
  bool operator==(const ForkServerInvitation&) const = default;
};

std::string to_text(const ForkServerInvitation& invitation);
// Returns nullopt when `text` is not an invitation.
std::optional<ForkServerInvitation> parse_invitation(const char* text);

// The first letters of the messages. kSeedReady: a seed is ready; the kernel adds its pid to the
// message (SCM_CREDENTIALS). kSeedOrder: the order to become a rank, with "NAME=VALUE\0" for each
// variable to set, "NAME\0" for each one to remove, and the descriptors in the order below.
// kSeedGrows: the answer of a seed that becomes the rank. kSeedIsStale: the answer of a seed that
// exits because a library has changed, with the library's name.
inline constexpr char kSeedReady = 'S', kSeedOrder = 'O', kSeedGrows = 'R', kSeedIsStale = 'L';
inline constexpr std::size_t kLongestOrder = 32 << 10, kLongestAnswer = 4 << 10;
enum SeedDescriptor { kSeedStdin, kSeedStdout, kSeedStderr, kSeedSecret, kSeedSocket };
inline constexpr int kNumSeedDescriptors = 5;  // kSeedSocket is for the next seed

// Whether this process was a seed: its libraries were loaded in an earlier generation.
bool grown_from_seed();

}  // namespace paceline
