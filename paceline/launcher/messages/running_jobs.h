#pragma once

// Finds the running Paceline jobs of this machine by the sockets on which their launchers listen
// (job_socket.h), and sends requests to these sockets.
//
// Each launcher holds a mark: a Unix socket in Linux's abstract namespace. The kernel removes it
// when the process ends, for whatever reason, so no mark is ever left over. The mark's name
// contains the launcher's pid and the numbers of its local ranks and of their threads, and ends
// with a random number, so no other process can take the name first. But any user can create
// sockets with names that look like marks:
//
//   1. A socket is trusted only if the process that listens on it has the pid in the socket's name
//      and belongs to this user (root trusts all users).
//   2. No byte is sent to a socket that is not trusted.
//   3. If /proc shows that a socket breaks rule 1, no connection is made at all.
//   4. Marks are asked in rounds, one mark of each process per round, so a process that makes
//      thousands of marks does not delay the others.
//
// Jobs in other network namespaces (most containers) are not found.
//
// Thread safety: every function may be called from any thread.

#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"

namespace paceline::launcher {

struct JobAnswer {
  std::string mark;  // mark of the job that answered
  std::string text;
};

struct JobAnswers {
  std::vector<JobAnswer> answers;   // complete, in the order in which they were completed
  std::vector<std::string> silent;  // marks of jobs whose answers were not complete in time
};

// Asks the jobs of these marks, many at once. Leaves out jobs for which ask_job() would fail, and
// answers beyond 64 MiB in total. While other jobs wait to be asked, a job whose answer is not
// complete after half a second counts as silent and makes room for the next job.
JobAnswers ask_jobs(const std::vector<std::string>& marks, const std::string& request,
                    Deadline deadline);

// The whole answer of one job. Error(kSystem) when the job has ended or its socket is not trusted,
// Error(kTimeout) when the answer is not complete in time, Error(kPeerLost) when the connection
// breaks, Error(kCorrupt) when the answer is longer than 64 MiB.
std::string ask_job(const std::string& mark, const std::string& request, Deadline deadline);

// Whether the process that the mark names listens on it, whichever user owns that process.
bool is_held_by_its_launcher(const std::string& mark);

// Another job on this machine, for the warning that two jobs use the same cores.
struct RunningJob {
  pid_t launcher = -1;    // the parent of its ranks
  int num_ranks = 0;      // on this machine
  int num_threads = 0;    // of all its ranks together
  std::vector<int> cpus;  // cpus on which its ranks may run, ascending
  bool operator==(const RunningJob&) const = default;
};

struct JobMark {
  std::string name;  // without its leading zero byte: "paceline-job/711/2x4/9f86d081884c7d65"
  Fd listener;       // non-blocking; the mark lasts until it is closed
};
// Marks the calling process as the launcher of `num_ranks` ranks on this machine (0: all ranks run
// on other hosts). Error(kSystem) when no socket can be made.
JobMark mark_running_job(int num_ranks, int num_threads);

// The names of all marks on this machine, of any user, including this process's own. The first mark
// of every process comes first, in the order of pids; then the second mark of every process, and so
// on. Leaves out a mark if /proc shows that the process with the pid in its name does not hold it.
std::vector<std::string> find_marks();
// The marks of this user's processes (for root: of any user's), in the same order, followed by the
// marks of processes whose descriptors cannot be read.
std::vector<std::string> find_own_marks();
// The pid in the name of a mark; -1 if the name is not that of a mark.
pid_t launcher_of(const std::string& mark);

// The jobs that have started a rank, except the calling process's own.
std::vector<RunningJob> find_running_jobs();

}  // namespace paceline::launcher
