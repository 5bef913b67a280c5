#pragma once

// Asks running jobs over their sockets (job_socket.h). A socket is believed where the process that
// listens on it is the one that its name says, and belongs to this user; root believes that of any
// user. Nothing is sent to any other.
//
// Thread safety: free functions.

#include <string>
#include <vector>

#include "paceline/engine/core/deadline.h"

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

}  // namespace paceline::launcher
