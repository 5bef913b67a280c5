#pragma once

// The running Paceline jobs of this machine: found by the sockets on which their launchers listen
// (job_socket.h), and asked over them.
//
// Each launcher holds a mark: a Unix socket in Linux's abstract namespace. The kernel removes it
// with the process, however that ends, so nothing is ever left behind. Its name holds the
// launcher's pid and the number of threads with which its ranks compute, and ends with a random
// number, so that no process can take it first. But any user may make names that look like marks:
//
//   1. A socket is believed only if the process that listens on it is the one in its name, and
//      belongs to this user (root believes all users).
//   2. No byte is sent to any other socket.
//   3. Where /proc shows that a socket breaks 1, it costs not even a connection.
//   4. Marks are taken in turns, one of each process, so a process that makes thousands delays no
//      other.
//
// Jobs in other network namespaces (most containers) are not found.
//
// Thread safety: free functions.

#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"

namespace paceline::launcher {

struct JobAnswer {
  std::string mark;  // of the job that answered
  std::string text;
};

struct JobAnswers {
  std::vector<JobAnswer> answers;   // whole, in the order of the marks
  std::vector<std::string> silent;  // marks of believable sockets without an answer in time
};

// Asks the jobs of these marks, many at once. Leaves out sockets on which no process listens any
// more, and those that are not believed. When more jobs wait to be asked, one that stays silent for
// a moment makes room for the next.
JobAnswers ask_jobs(const std::vector<std::string>& marks, const std::string& request,
                    Deadline deadline);

// The whole answer of one job. Error(kSystem) when the job is gone or its socket is not believed,
// Error(kTimeout) when the answer is not complete in time.
std::string ask_job(const std::string& mark, const std::string& request, Deadline deadline);

// Whether the process in the mark's name listens on it, whichever user owns it.
bool is_held_by_its_launcher(const std::string& mark);

// So that two jobs on the same cores do not go unnoticed.
struct RunningJob {
  pid_t launcher = -1;    // the parent of its ranks
  int num_ranks = 0;      // on this machine
  int num_threads = 0;    // of all its ranks together
  std::vector<int> cpus;  // on which its ranks may run, ascending
  bool operator==(const RunningJob&) const = default;
};

struct JobMark {
  std::string name;  // without the zero that begins it: "paceline-job/711/2x4/9f86d081884c7d65"
  Fd listener;       // non-blocking; the mark lasts until it is closed
};
// Marks the calling process as the launcher of so many ranks (0: they run on other hosts).
// Error(kSystem) when no socket can be made.
JobMark mark_running_job(int num_ranks, int num_threads);

// The names of all marks on this machine, of any user, with this process's own: one of each process
// in the order of pids, then the second of each. Leaves out marks that the process in their name
// does not hold, as far as /proc shows that.
std::vector<std::string> find_marks();
// The marks of this user's processes (for root: of any user's), in the same order; last come those
// whose process does not show its descriptors.
std::vector<std::string> find_own_marks();
// The process in a mark's name; -1 for any other name.
pid_t launcher_of(const std::string& mark);

// The jobs that have a rank by now, but for the calling process's own.
std::vector<RunningJob> find_running_jobs();

}  // namespace paceline::launcher
