#include "paceline/launcher/job/rank_process.h"

#include <cerrno>
#include <csignal>

#include <sys/resource.h>
#include <sys/wait.h>

namespace paceline::launcher {

RankProcess::RankProcess(int rank, ProcessSpec spec, Pipe out, std::unique_ptr<RankOutput> output,
                         const std::function<Process(const ProcessSpec&)>& start)
    : rank_(rank), output_(std::move(output)) {
  Pipe err = make_output_pipe();
  spec.stdout_fd = out.write_end.get();
  spec.stderr_fd = err.write_end.get();
  started_ = std::chrono::steady_clock::now();
  process_ = start(spec);
  output_->set_pipe(0, std::move(out.read_end));
  output_->set_pipe(1, std::move(err.read_end));
}

RankEnd RankProcess::collect() {
  const auto ended = std::chrono::steady_clock::now();
  kill(-process_.pid, SIGKILL);
  int status = 0;
  rusage usage{};
  while (wait4(process_.pid, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  end_ = rank_end(rank_, process_.pid, status, ended - started_);
  end_->at = ended;
  end_->peak_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  return *end_;
}

void RankProcess::send(int signal) const {
  if (running()) kill(-process_.pid, signal);
}

}  // namespace paceline::launcher
