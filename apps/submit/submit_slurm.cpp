// Makes the batch script of `paceline submit slurm`.

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string_view>
#include <vector>

#include <regex.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/launcher/output/line_formatter.h"

#include "apps/submit/submit_script.h"

namespace paceline::apps {

namespace {

// SLURM splits a #SBATCH line at blanks, so a value without blanks needs no quotes.
void add_directive(std::string& script, const std::string& flag, const std::string& value,
                   std::string_view also) {
  if (value.empty()) return;
  const bool good = std::all_of(value.begin(), value.end(), [&](unsigned char c) {
    return (c < 0x80 && std::isalnum(c) != 0) || also.find(static_cast<char>(c)) != also.npos;
  });
  check(good, "--{}: '{}' may contain only letters, digits{}", flag, launcher::neutralise(value),
        also.empty() ? "" : fmt::format(" and {}", also));
  script += fmt::format("#SBATCH --{}={}\n", flag, value);
}

// Whether the whole `text` matches `pattern`, a POSIX extended regular expression.
bool is_like(const std::string& text, const char* pattern) {
  regex_t compiled;
  const std::string whole = fmt::format("^({})$", pattern);
  const bool is_good = regcomp(&compiled, whole.c_str(), REG_EXTENDED | REG_NOSUB) == 0;
  check(is_good, "the pattern '{}' is not an expression", pattern);
  const bool matches = regexec(&compiled, text.c_str(), 0, nullptr, 0) == 0;
  regfree(&compiled);
  return matches;
}

// Accepts the forms that sbatch accepts. sbatch itself would read "60x" as 60, or refuse it with a
// less clear message.
void check_time(const std::string& text) {
  constexpr auto kTime = "[0-9]{1,9}(:[0-9]{1,2}){0,2}|[0-9]{1,9}-[0-9]{1,2}(:[0-9]{1,2}){0,2}";
  check(
      text.empty() || is_like(text, kTime),
      "--time: '{}' is not a SLURM time limit: 30 (minutes), 30:00, 4:00:00, 1-12 (days-hours) or "
      "1-12:30:00",
      launcher::neutralise(text));
}

// The time in seconds, as sbatch reads it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S. 0 for an empty
// text.
long seconds_of(const std::string& time) {
  const auto dash = time.find('-');
  const bool has_days = dash != std::string::npos;
  std::istringstream fields(has_days ? time.substr(dash + 1) : time);
  std::vector<long> numbers;
  for (std::string field; std::getline(fields, field, ':');) numbers.push_back(std::stol(field));
  if (!has_days && numbers.size() < 3) numbers.insert(numbers.begin(), 0);
  numbers.resize(3);
  const long days = has_days ? std::stol(time) : 0;
  return ((days * 24 + numbers[0]) * 60 + numbers[1]) * 60 + numbers[2];
}

// Refuses a signal time before the start of the job: the job would be stopped and requeued at once,
// again and again.
void check_signal(const SlurmRequest& slurm) {
  const long seconds = seconds_of(slurm.time);
  if (seconds == 0) return;  // no limit
  check(slurm.signal_seconds < seconds,
        "--signal-before: {} s is not less than the time limit (--time {}); choose a smaller "
        "number, or 0 for no signal",
        slurm.signal_seconds, slurm.time);
}

void check_array(const std::string& text) {
  constexpr auto kRange = "[0-9]+(-[0-9]+(:[0-9]+)?)?";
  check(text.empty() || is_like(text, fmt::format("{0}(,{0})*(%[0-9]+)?", kRange).c_str()),
        "--array: '{}' is not a SLURM list of task numbers: 0-15, 1,3,5-7, 0-15:4 or 0-15%4",
        launcher::neutralise(text));
}

void check_memory(const std::string& text) {
  check(text.empty() || is_like(text, "[0-9]+[KMGTkmgt]?"),
        "--mem: '{}' is not a SLURM amount of memory: a whole number of megabytes, or a number "
        "with K, M, G or T, such as 16G",
        launcher::neutralise(text));
}

std::string directives(const SubmitRequest& request, const SlurmRequest& slurm) {
  check_time(slurm.time);
  check_signal(slurm);
  check_array(slurm.array);
  check_memory(request.memory);
  std::string text;
  add_directive(text, "job-name", request.job_name, "._-");
  text +=
      fmt::format("#SBATCH --nodes={}\n#SBATCH --ntasks-per-node={}\n#SBATCH --cpus-per-task={}\n",
                  request.num_nodes, request.ranks_per_node, request.cores_per_rank);
  add_directive(text, "mem", request.memory, "");
  add_directive(text, "time", slurm.time, ":-");
  add_directive(text, "partition", slurm.partition, "._,-");
  add_directive(text, "account", slurm.account, "._-");
  add_directive(text, "qos", slurm.qos, "._-");
  add_directive(text, "constraint", slurm.constraint, "._,&|*[]()-");
  add_directive(text, "reservation", slurm.reservation, "._,-");
  add_directive(text, "array", slurm.array, ",:%-");
  add_directive(text, "output", slurm.output, "._/%=+@-");
  if (slurm.signal_seconds > 0) {
    text += fmt::format("#SBATCH --signal=B:USR1@{}\n", slurm.signal_seconds);
  }
  text += slurm.no_requeue ? "#SBATCH --no-requeue\n" : "#SBATCH --requeue\n";
  return text + "#SBATCH --open-mode=append\n";
}

constexpr const char* kRequeue = R"(if [ "$code" -eq {0} ]; then
  echo "stopped as agreed; the job is queued again"
  job_id=$SLURM_JOB_ID
  [ -z "${{SLURM_ARRAY_JOB_ID:-}}" ] || job_id=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID
  scontrol requeue "$job_id"
fi
)";

}  // namespace

// paceline run starts a remote agent on each node through srun. Before the time limit, SLURM sends
// a signal only to this script, which passes it on to the launcher ($!). `wait` returns when a
// signal arrives, so it is repeated until the launcher has ended. A signal may also interrupt the
// `wait` during which the launcher ends; the last `wait` returns the launcher's exit code.
std::string slurm_script(const SubmitRequest& request, const SlurmRequest& slurm) {
  std::vector<std::string> run = {request.paceline, "run",
                                  "--nproc-per-node=" + std::to_string(request.ranks_per_node)};
  run.insert(run.end(), request.run_options.begin(), request.run_options.end());
  run.push_back("--");
  run.insert(run.end(), request.command.begin(), request.command.end());
  std::string script = "#!/bin/bash\n" + directives(request, slurm) + "\n";
  if (!slurm.directory.empty()) {
    script += fmt::format("cd {} || exit 3\n", shell_quoted(slurm.directory));
  }
  script += fmt::format(R"(pass_on() {{ [ -z "$!" ] || kill -s "$1" "$!"; }}
trap 'pass_on USR1' USR1
trap 'pass_on TERM' TERM
{} &
while :; do
  wait "$!"
  kill -0 "$!" 2>/dev/null || break
done
wait "$!"
code=$?
)",
                        shell_line(run));
  if (!slurm.no_requeue) script += fmt::format(kRequeue, kStoppedAsAgreed);
  return script + "exit \"$code\"\n";
}

}  // namespace paceline::apps
