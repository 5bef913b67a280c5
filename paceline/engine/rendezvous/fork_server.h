#pragma once

// A rank's half of the fork server; the launcher's is launcher/job/rank_seeds.h.
//
// A program pays for the loading of its libraries once per job instead of at each restart (a
// program with LibTorch: 0.3 s), as Python's forkserver and Android's zygote do it. Loaded, but
// before main() and its own static objects, a rank that the launcher may start again forks a
// *seed*: the same process, idle, with nothing run yet. When a new generation begins, the launcher
// sends the seed what differs, and it goes on into main() as that rank, after it has forked the
// next seed:
//
//   launcher ─┬─ rank 0 (executed)  ── dies
//             └─ seed ── told to: becomes rank 0 of generation 1
//                  └─ seed of generation 2, also a child of the launcher
//
// The seed is the launcher's child from the beginning (the helper that forks it ends, and the
// launcher adopts orphans), so the program never has a child that it did not make. It dies with the
// launcher: by its socket's end, and by the kernel's promise when it is stopped.
//
// A program takes part when it is linked with this file, was executed by the launcher itself (not
// by a shell between them), and has one thread and no descriptor of its own by then; threads that
// fork() stops for as long (OpenBLAS) do not count. Everything else is executed again, as ever.
//
// A seed that is told to go on first looks whether its libraries are still the files that it loaded
// (LoadedFiles), and refuses otherwise; the launcher looks at the program's file.
//
// What a library read from the environment while it was loaded stays, so the launcher changes only
// variables that say a rank's place (launcher/job/rank_seeds.h). /proc/PID/environ shows those of
// the first generation.
//
// Invariants:
//
//  1. A seed is forked from a process with one thread and no descriptor of its own, before main():
//     no lock is held by a thread that is missing in the child, and no descriptor is shared by two
//     generations. The threads are counted after the first fork, when those that fork() itself
//     stops are stopped: if there are others, the helper ends and leaves no seed.
//  2. The rank goes on into main() only after its seed has told the launcher that it is ready (or
//     5 s have passed). The seed does so as the launcher's own child: the helper has ended and was
//     waited for before the seed looks at its parent.
//  3. At most one seed of a rank waits. A rank leaves one, once, before its main(); a seed leaves
//     the next one only after it was told to become the rank.
//  4. A seed holds nothing of the rank that left it: standard streams and the secret's descriptor
//     are closed in it, so the launcher reads the rank's pipes to their end.
//  5. An order is taken whole or not at all: one message of a SOCK_SEQPACKET socket with all its
//     descriptors. A seed that gets anything else, or the end of the socket, ends without a word,
//     and the launcher executes the program.
//  6. No seed outlives the launcher: it dies by the end of its socket when it waits, and by
//     PR_SET_PDEATHSIG when it is stopped.
//
// Everything here may run before the program's own static objects are made: no log, no streams, no
// exceptions but bad_alloc.

#include <array>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>
#include <time.h>

namespace paceline {

// The file that a name leads to, and its state. A value.
struct FileVersion {
  dev_t device = 0;
  ino_t number = 0;
  off_t size = 0;
  timespec modified{};

  // Nothing when there is no such file. Follows links.
  static std::optional<FileVersion> of(const char* path);
  bool operator==(const FileVersion& other) const;
};

// The shared libraries of this process, without the program itself. A value. A program that is
// updated while its job runs must not go on from the old image without a word, so the fork server
// notes the files while they are fresh and compares before each fork.
//
// The names are those under which the dynamic linker opened the libraries, links not followed: an
// update that only turns a link is also one. A file that was replaced, written to or removed counts
// as another; a library that the linker would find earlier in its path by now is not noticed.
class LoadedFiles {
 public:
  // The libraries that are loaded at this moment.
  LoadedFiles();
  // The name of the first that is not what it was.
  std::optional<std::string> find_changed() const;

 private:
  struct File {
    std::string name;
    std::optional<FileVersion> version;  // nothing: it was gone by then
  };
  std::vector<File> files_;
};

// Tells a rank that it may leave a seed; removed from its environment before main().
inline constexpr const char* kForkServerVariable = "PACELINE_FORK_SERVER";

// The value of that variable. `device` and `file` are the numbers of the program's file.
struct ForkServerInvitation {
  int socket = -1;  // SOCK_SEQPACKET, inherited
  pid_t launcher = -1;
  unsigned long long device = 0, file = 0;
  int num_descriptors = 0;  // that the rank is given, all together
  bool operator==(const ForkServerInvitation&) const = default;
};

std::string to_text(const ForkServerInvitation& invitation);
// Nothing when `text` is not one.
std::optional<ForkServerInvitation> parse_invitation(const char* text);

// The messages, each beginning with a letter: a seed is ready (its pid comes as the kernel's
// credentials); the order to become a rank, with "NAME=VALUE\0" for each variable to set, "NAME\0"
// to remove one, and descriptors in this order; the answer, after which the process is the rank, or
// has ended because a library has changed, whose name follows.
inline constexpr char kSeedReady = 'S', kSeedOrder = 'O', kSeedGrows = 'R', kSeedIsStale = 'L';
inline constexpr std::size_t kLongestOrder = 32 << 10, kLongestAnswer = 4 << 10;
enum SeedDescriptor { kSeedStdin, kSeedStdout, kSeedStderr, kSeedSecret, kSeedSocket };
inline constexpr int kNumSeedDescriptors = 5;  // kSeedSocket is for the next seed

// Whether this process was a seed: its libraries were loaded by an earlier generation.
bool grown_from_seed();

}  // namespace paceline
