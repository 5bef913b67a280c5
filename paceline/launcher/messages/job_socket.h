#pragma once

// The socket on which the launcher of a running job answers questions. It is in Linux's abstract
// namespace: the kernel removes it when the launcher ends, for whatever reason. It answers
// processes of its own user (and root) and closes the connections of other users.
//
// A request is one line of at most 255 bytes. The answer is everything that the launcher writes
// until it closes the connection:
//
//   describe             the job as JSON: id, command, ranks with their pids, folders; a launcher
//                        of --hosts adds its hosts
//   stacks               the stacks of every rank, as text
//   stop                 ends the job as SIGTERM to the launcher does
//   crash THREAD SIGNAL  a rank reports its crash (engine/telemetry/crash_reporter.h) and waits
//                        until the connection is closed
//
// The socket's name contains the launcher's pid, the numbers of its local ranks and of their
// threads, and a random number, so it cannot be guessed. running_jobs.h finds jobs by these names.
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

  // `num_threads` is the sum over all `num_ranks` local ranks; both are 0 for a launcher without
  // local ranks. If the socket cannot be made, `say` reports it and name() is empty: the job runs,
  // but answers no questions.
  JobSocket(EventLoop& loop, int num_ranks, int num_threads, Handler handler, const Say& say);
  JobSocket(const JobSocket&) = delete;
  JobSocket& operator=(const JobSocket&) = delete;
  ~JobSocket();

  // The name without its leading zero byte: "paceline-job/711/2x4/9f86d081884c7d65".
  const std::string& name() const { return name_; }

 private:
  struct Client {
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
  std::map<int, Client> clients_;  // connections whose line is not complete
};

// Writes the whole answer; gives up after one second if the reader does not read.
void send_answer(const JobRequest& request, const std::string& text);
// Answers "stop": sends SIGTERM to the supervisor, which passes it on to this process.
void answer_stop(const JobRequest& request, pid_t supervisor);

}  // namespace paceline::launcher
