#pragma once

// Asks running jobs over their sockets (job_socket.h). A socket is believed where the process that
// listens on it is the one that its name says, and belongs to this user; root believes that of any
// user. Nothing is sent to any other.
//
// Thread safety: free functions.

#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"

namespace paceline::launcher {

struct JobAnswer {
  std::string mark;  // whose answer it is
  std::string text;
};

struct JobAnswers {
  std::vector<JobAnswer> answers;   // whole, in the order of the marks
  std::vector<std::string> silent;  // marks of believable sockets without an answer in time
};

// Asks the jobs of these marks (running_jobs.h), many at once. Sockets on which no process listens
// any more, and those that are not believed, are left out. Where more are asked than can be at
// once, one that stays silent for a moment makes room for the next.
JobAnswers ask_jobs(const std::vector<std::string>& marks, const std::string& request,
                    Deadline deadline);

// The whole answer of one. Error(kSystem) when the job is gone or its socket is not believed,
// Error(kTimeout) when no end of the answer comes.
std::string ask_job(const std::string& mark, const std::string& request, Deadline deadline);

// Whether the process that the mark names listens on it, whoever owns it.
bool is_held_by_its_launcher(const std::string& mark);

// The other Paceline jobs of this machine, so that two of them on the same cores do not go
// unnoticed. Every launcher holds a mark: a Unix socket whose name, in Linux's abstract namespace,
// says its pid and how many threads its ranks compute with, and ends with a random number, so that
// no process can take it first. The kernel removes it with the process, however that ends, so
// nothing is ever left behind. Anybody on the machine can make a name that looks like one; whose
// socket it is is looked at before it is believed (job_questions.h).
//
// Jobs in other network namespaces (most containers) are not seen.

struct RunningJob {
  pid_t launcher = -1;    // the parent of its ranks
  int num_ranks = 0;      // on this machine
  int num_threads = 0;    // of all its ranks together
  std::vector<int> cpus;  // what its ranks may run on, ascending
  bool operator==(const RunningJob&) const = default;
};

struct JobMark {
  std::string name;  // without the zero that begins it: "paceline-job/711/2x4/9f86d081884c7d65"
  Fd listener;       // non-blocking; the mark lasts until it is closed
};
// Marks the calling process as the launcher of such ranks (none: they run on other hosts).
// Error(kSystem) when there can be no socket.
JobMark mark_running_job(int num_ranks, int num_threads);

// The names of all marks on this machine, whoever made them, this process's own included: one of
// each process in the order of pids, then the second of each, so that whoever makes thousands
// stands in front of nobody. Marks that, as /proc shows, the process in their name does not hold
// are left out.
std::vector<std::string> find_marks();
// The marks of this user's processes (for root: of any user's), in the same order; at the end those
// whose process does not show its descriptors. So strangers' sockets, however many there are, cost
// no connection.
std::vector<std::string> find_own_marks();
// The process in a mark's name; -1 when it is none.
pid_t launcher_of(const std::string& mark);

// Jobs that have a rank by now, the calling process's own excepted.
std::vector<RunningJob> find_running_jobs();

}  // namespace paceline::launcher
