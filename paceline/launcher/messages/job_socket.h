#pragma once

// Where a running job can be asked: a socket in Linux's abstract namespace that its launcher
// listens on, gone with the launcher however that ends. It answers processes of its own user (and
// root) and closes what anybody else opens.
//
// A request is one line of at most 255 bytes, the answer whatever the launcher writes until it
// closes the connection:
//
//   describe             the job as JSON: id, command, ranks with their pids, folders; of a
//                        launcher of --hosts its hosts
//   stacks               where every rank is, as text
//   stop                 ends the job as SIGTERM to the launcher does
//   crash THREAD SIGNAL  from a rank (engine/telemetry/crash_reporter.h), which waits for the end
//
// Its name says the launcher's pid and how many threads its ranks compute with, and cannot be
// guessed; running_jobs.h finds the jobs of a machine by it, job_questions.h asks them.
//
// Thread safety: none; everything happens in handlers of the loop.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/system/fd.h"
#include "paceline/launcher/process/event_loop.h"

namespace paceline::launcher {

struct JobRequest {
  std::vector<std::string> words;
  pid_t sender = -1;
  Fd connection;  // non-blocking; closing it ends the answer
};

class JobSocket {
 public:
  using Handler = std::function<void(JobRequest)>;
  using Say = std::function<void(const std::string& line)>;

  // `num_threads` of all `num_ranks` local ranks together; 0 and 0 for a launcher without any. A
  // socket that cannot be made is reported by `say` and leaves name() empty: the job runs, and
  // cannot be asked.
  JobSocket(EventLoop& loop, int num_ranks, int num_threads, Handler handler, const Say& say);
  JobSocket(const JobSocket&) = delete;
  JobSocket& operator=(const JobSocket&) = delete;
  ~JobSocket();

  // Without the zero that begins it: "paceline-job/711/2x4/9f86d081884c7d65".
  const std::string& name() const { return name_; }

 private:
  struct Asking {
    Fd connection;
    pid_t sender = -1;
    std::string text;
  };
  void accept_all();
  void read(int fd);
  void close(int fd);

  EventLoop& loop_;
  Handler handler_;
  std::string name_;
  Fd listener_;
  std::map<int, Asking> asking_;  // connections whose line is not complete
};

// Writes the whole answer; a reader that does not read gets a second.
void send_answer(const JobRequest& request, const std::string& text);

}  // namespace paceline::launcher
