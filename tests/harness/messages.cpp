// The messages that tests pin: one table, which is read as a text. A better wording is changed in
// the sources and here, and in no test. tests/harness/says.h compares;
// tests/readme/messages_test.py checks that each name is used, and used names exist.

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "tests/harness/says.h"

namespace paceline::harness {
namespace {

struct Message {
  std::string_view name;
  std::string_view text;
};

// Sorted by the command or room, then by the order in which a user may meet them.
constexpr Message kMessages[] = {
    // ---- paceline run
    // Options and commands that are refused.
    {"cli.value_refused", "{}: '{}' is not {}"},
    {"cli.not_whole", "{}: '{}' is not a whole number from {} to {}"},
    {"cli.not_seconds", "{}: '{}' is not a number of seconds from {} to {}"},
    {"cli.not_a_flag", "{}: '{}' is not 1, true, yes, on, 0, false, no or off"},
    {"cli.value_empty", "{}: the value '' is empty"},
    {"cli.needs_value", "{} needs a value"},
    {"cli.exclude_each_other", "{} and {} exclude each other"},
    {"cli.unknown_option", "unknown option {}"},
    {"cli.option_meant", "unknown option {}; did you mean {}?"},
    {"cli.option_of_torchrun", "{} is an option of torchrun that this version does not have"},
    {"cli.option_before_command",
     "unknown option {}; options go after the command; see paceline --help"},
    {"cli.command_meant", "unknown command '{}'; did you mean {}?"},
    {"cli.command_is_a_program",
     "unknown command '{}'; to start a program: paceline run {}; see paceline --help"},
    {"cli.no_program", "no program given: {} [options] {}PROGRAM"},
    {"cli.no_shell_reads",
     "{}: '{}': no shell reads this text, so '{}' has no meaning here; put it in single quotes if "
     "it belongs to a word"},
    {"cli.directory_gone",
     "the working directory {} cannot be used: {}. It was removed, perhaps created again since; "
     "change to an existing one (cd) and start again"},
    // What paceline run refuses.
    {"usage.cpus_only", "{}: '{}': this version computes on cpus only; use auto or a number"},
    {"usage.nothing_watched", "{} and {} exclude each other: with 0 nothing is watched"},
    {"usage.not_a_name", "{}: '{}' is not a name without control characters"},
    {"usage.not_nodes", "{}: '{}' is not a whole number or MIN:MAX"},
    {"usage.min_above_max", "{}: '{}': MIN is above MAX"},
    {"usage.standalone_on_several", "--standalone is for one node, but {} is {}"},
    {"usage.secret_missing", "--nnodes {}: a job on several nodes needs PACELINE_SECRET_FILE"},
    {"usage.no_meeting_place",
     "{}: '{}': where do the machines meet? Give each of them the same --rdzv-endpoint HOST:{} (or "
     "--master-addr HOST), a host that all reach; or let one launcher start all of them: --hosts"},
    {"usage.not_an_endpoint", "{}: '{}' is not HOST:PORT with a port from {} to 65535"},
    {"usage.ipv6_without_brackets", "{}: '{}': an IPv6 address needs brackets: [ADDRESS]:PORT"},
    {"usage.any_address",
     "{}: '{}' stands for all addresses of any host; write the name or address of one host"},
    {"usage.not_an_address", "{}: '{}' is neither a host name nor a host address"},
    {"usage.no_etcd",
     "{}: '{}': the machines meet at an agent of the job here, no etcd is needed; leave the option "
     "out"},
    {"usage.not_rdzv_backend", "{}: '{}' is not paceline, c10d or static"},
    {"usage.not_rdzv_conf",
     "{}: '{}' is not join_timeout, last_call_timeout, keep_alive_interval, keep_alive_max_attempt "
     "or is_host with =VALUE"},
    {"usage.not_above_0", "{}: '{}' is not above 0"},
    {"usage.not_is_host", "{}: '{}' is not is_host=true or is_host=false"},
    {"usage.not_a_binding",
     "{}: '{}' is not core, cache, numa, socket, none or map:SET;SET;... with one set like 0-3,8 "
     "for each rank"},
    {"usage.not_numa_binding", "{}: '{}' is not node, socket, exclusive or core-complex"},
    {"usage.map_of_other_size",
     "--bind map: {} for {}: one set for each rank of this machine is needed"},
    {"usage.cpu_not_given", "--bind map: cpu {} was not given to this process (it has {})"},
    {"usage.unknown_backend", "{}: backend '{}': unknown backend '{}'; choose one of {}"},
    {"usage.device_twice", "backend '{}': {} is named twice"},
    {"usage.mpi_starts_itself",
     "{}: mpi has a launcher of its own: mpirun -x PACELINE_BACKEND=mpi -np 2 PROGRAM"},
    {"usage.not_streams",
     "{}: '{}' is not 0, 1 (stdout), 2 (stderr), 3 (both) or a list like 0:3,2:1"},
    {"usage.no_folder", "{}: {}: there is no folder {}"},
    {"usage.is_a_folder", "{}: {}: it is a folder"},
    {"usage.shards_not_divisible",
     "--logical-shards {}: they cannot be divided among {} ranks, each with 1, 2, 4, 8, ...; start "
     "{}"},
    {"usage.variable_without_effect", "the variable {} is torchrun's and has no effect here"},
    {"usage.variable_without_option",
     "paceline: warning: the variable {} is not an option of paceline or torchrun{}"},
    {"usage.variable_meant",
     "paceline: warning: the variable {} is not an option of paceline or torchrun; did you mean "
     "{}?"},
    {"usage.own_variable_unknown", "paceline: warning: unknown variable {}"},
    {"usage.own_variable_meant", "paceline: warning: unknown variable {}; did you mean {}?"},
    {"usage.options_behind_program",
     "paceline: note: {} come{} after the program, so {} gets {}; options of paceline run come "
     "first: paceline run {} ... {}"},
    {"usage.one_rank_starts",
     "paceline: note: {} comes after the program, so {} gets it, and one rank is started; options "
     "of paceline run come first: paceline run {} ... {}"},
    // --chaos
    {"chaos.not_a_fault", "--chaos: '{}': '{}' is not kill, stop or slow; a fault is {}"},
    {"chaos.not_seconds",
     "--chaos: '{}': '{}' is not a number of seconds from 0.001 to 1e7; a fault is {}"},
    {"chaos.no_such_rank", "{}: there is no rank {}: the last one is {}"},
    {"chaos.struck", "paceline: chaos: {} of rank {} after {} s"},
    {"chaos.faults", "  faults                {}, seed {}"},
    {"chaos.ranks_never_there",
     "{}, seed {}; of the ranks that --chaos names the job never had {}"},
    // Roles.
    {"roles.no_count", "{}: '{}': write NAME=COUNT, as in trainer=2,observer=4"},
    {"roles.count_out_of_range", "{}: '{}': a role has from 1 to {} ranks, as in trainer=2"},
    {"roles.given_twice", "{}: role '{}' is given twice"},
    {"roles.bad_name",
     "{}: '{}' is not the name of a role: use letters, digits, - and _, and begin with a letter"},
    {"roles.ends_with_digit",
     "{}: '{}': a role's name must not end with a digit, because its workers are numbered: {}0 "
     "could be a worker of another role"},
    {"roles.other_count", "{}: '{}': the counts add up to {}, but {} to start"},
    {"roles.too_many_ranks", "{}: '{}': {} on one node; at most {}"},
    {"roles.not_even",
     "{}: '{}': {} cannot be divided evenly among {}: give each its --nproc-per-node"},
    {"roles.nodes_not_fixed",
     "{}: '{}': the roles set the number of ranks, so the number of nodes must be fixed; {} is {}"},
    {"roles.until_without_roles",
     "{}: '{}': it names roles, and neither --roles nor --role is given"},
    {"roles.unknown", "{}: '{}' is not a role of --roles: choose from {}"},
    // Lists of hosts.
    {"hosts.not_a_host",
     "{}: '{}' is not a host: [user@]name of letters, digits, '.', '-' and '_', perhaps with "
     ":SLOTS behind it"},
    {"hosts.bad_count", "{}: {} '{}' is not a whole number from 1 to {}"},
    {"hosts.listed_twice", "{}: host '{}' is listed twice; list it once, with all its slots"},
    {"hosts.file_not_opened", "--hostfile {}: {}"},
    {"hosts.option_excluded", "{} does not go with --hosts: {}"},
    {"hosts.is_host_is_set", "{} does not go with --hosts: is_host is set for the first host"},
    {"hosts.other_number", "{}: {}, but there are {}"},
    {"hosts.too_few_slots", "{}: {} ranks, but host {} has {} slots"},
    {"hosts.slots_unknown", "{}: '{}' needs the slots of host {}: {}:4"},
    {"hosts.not_a_variable", "{}: '{}' is not the name of a variable"},
    {"hosts.variable_unset", "{}: there is no variable {} here"},
    {"hosts.option_alone",
     "{} is for --hosts and --hostfile, and none is given: the ranks run on this machine"},
    // How ranks end and what is said of it.
    {"run.first_failure", "rank {} failed first: {} (host "},
    {"run.role_failed_first", "{} (rank {}) failed first: {} (host "},
    {"run.last_lines", "  the last lines of {}:"},
    {"run.wrote_nothing", "  it wrote nothing"},
    {"run.followers", "paceline: {} ended because of it ({})"},
    {"run.also_failed", "paceline: {} also failed ({})"},
    {"run.ended_before", "  before: {} ended with exit code 0"},
    {"run.left_processes",
     "paceline: {} ended with exit code 0 and left {} running ({}), which {} ended: a job is over "
     "when its ranks' own processes are, so a program must not go into the background (&, setsid, "
     "daemon)"},
    {"run.killed_after_signal",
     "paceline: {} did not end within {} s of {} and {} killed (SIGKILL)"},
    {"run.killed_at_second_interrupt",
     "paceline: {} did not end before the second SIGINT and {} killed (SIGKILL)"},
    {"run.stopped", "paceline: stopped by {}; all ranks have ended"},
    {"run.stopped_by_a_node", "stopped by {} at host {}"},
    {"run.interrupted", "paceline: received SIGINT {} times; all ranks were killed"},
    {"run.stopped_as_agreed",
     "paceline: all ranks stopped as agreed; start the job again to continue (exit code {})"},
    {"run.serving_ranks_stopped",
     "paceline: the ranks that the job waits for have ended; stopping those that serve"},
    {"run.ended_because", "paceline: the job ended because of {}"},
    {"program.missing", "'{}' does not exist"},
    {"program.not_in_path", "'{}' was not found in PATH"},
    {"program.not_executable_python", "'{}' may not be executed (for a Python script: python3 {})"},
    {"program.cannot_execute", "paceline: cannot execute {}: {}"},
    {"program.interpreter_missing",
     "paceline: cannot execute {}: {} (it is there, but not what its #! line names, or the loader "
     "that the binary needs)"},
    // Why a rank ended.
    {"cause.given", "  cause: {}"},
    {"cause.failed_assertion", "  cause: a failed assertion: {}"},
    {"cause.damaged_memory", "  cause: damaged memory, as the C library found: {}"},
    {"cause.library_missing",
     "  cause: the shared library {} is missing or unusable on this machine; ldd PROGRAM lists "
     "them, LD_LIBRARY_PATH adds folders"},
    {"cause.killed_from_outside",
     "  cause: killed from outside (kill -9, a batch system), not for lack of memory: the kernel "
     "counted no such kill"},
    {"cause.killed_by_chaos", "  cause: killed by --chaos"},
    {"cause.cgroup_limit",
     "  cause: out of memory: the kernel killed it at the cgroup's limit of {} ({}); the rank used "
     "{} at its peak"},
    {"cause.shared_memory_full",
     "  cause: /dev/shm is full ({} free of {}): enlarge it (mount -o remount,size=..., docker run "
     "--shm-size), or choose PACELINE_TRANSPORT=tcp"},
    {"cause.ended_while_hanging",
     "  cause: ended by paceline after {} s without progress (--hang-action kill)"},
    {"hint.memory_error",
     "  hint: a memory error in the program; a debugger shows where: ulimit -c unlimited"},
    {"hint.illegal_instruction",
     "  hint: the program uses instructions this cpu lacks; build it without -march=native, or "
     "here"},
    {"hint.child_killed",
     "  hint: a child process was killed (128 + SIGKILL): likely out of memory, look at dmesg"},
    {"hint.not_found", "  hint: a command or a shared library was not found"},
    // Restarts.
    {"run.restarts", "paceline: generation {}: restart {} of at most {}, after {}"},
    {"run.generation", "paceline: generation {}: {}"},
    {"run.generation_without_host", "paceline: generation {}: host {} is lost: {}"},
    {"run.host_joins", "paceline: generation {}: host {} joins; going on with {}"},
    {"run.goes_on", "; going on with {}"},
    {"run.host_lost", "host {} is lost: {}"},
    {"run.no_sign_of_life", "gave no sign of life for {} s"},
    {"run.restarts_used_up", "paceline: {} used up within {} s (--max-restarts {})"},
    {"run.crash_loop",
     "paceline: crash loop: the ranks {}, {} times in a row before any progress; restarting does "
     "not help"},
    {"run.error_of_use",
     "paceline: an error of use (exit code {}) before any progress; restarting does not help"},
    {"run.damaged", "paceline: a rank's state was damaged (--on-damage stop)"},
    {"run.seed_ended", "is executed again, not forked: its seed has ended"},
    {"run.seed_silent", "is executed again, not forked: its seed does not answer"},
    {"run.program_changed", "is executed again, not forked: the program's file has changed"},
    {"run.library_changed", "is executed again, not forked: {} has changed since it was loaded"},
    {"tally.begin", "paceline: the run on this node"},
    {"tally.generations", "  generations           {}"},
    {"tally.steps", "  steps                 {}, with those made again"},
    {"tally.steps_lost", "  steps                 {}, {} of them lost and made again"},
    {"tally.goodput", "  goodput               {}% of "},
    // Jobs that stand still.
    {"run.no_progress", "paceline: no progress for {} s: {}"},
    {"run.goes_on_by_itself", "paceline: the job goes on, after {} s"},
    {"hang.not_arrived", "{} not arrived at init_process_group(); {} waiting there"},
    {"hang.ranks_stopped", "{} stopped (SIGSTOP, or at a terminal); SIGCONT lets {} go on"},
    {"hang.idle", "{} idle outside of any operation: steps have stopped, and {}"},
    {"hang.without_records",
     "{} of its {} ranks {} no records here (another machine, or it left in order)"},
    {"hang.host_silent", "did not answer within {} s"},
    {"hang.nothing_ended",
     "  nothing is ended; paceline stacks {}{} shows every thread, --hang-action kill would end "
     "the job"},
    {"hang.blocker_unknown",
     "  nothing is ended: cannot tell which rank is blocking the others; paceline stacks {}{} "
     "shows every thread"},
    {"records.never_entered", "{} never entered {}; it last finished {}"},
    {"records.others_wait", "{} never entered {}; it last finished {}; {} been waiting for {}"},
    {"records.ended_outside",
     "paceline: rank {} (pid {} on {}) ended with exit code {} outside of any operation; it "},
    {"records.died", "rank {} (pid {} on {}) died "},
    {"records.kept", "flight records: {} (paceline explain {})"},
    {"stacks.heading", "{}, thread {}:"},
    {"stacks.process_gone", "process {} is gone"},
    {"explain.no_failure",
     "no job that failed or was stopped left records in {}; give the directory of its --log-dir"},
    {"explain.last_failure", "paceline explain: the last job that failed or was stopped, in {}"},
    {"explain.left_out", "  left out: {}"},
    {"explain.no_flights", "{} has no flight files (rank-000.flight and so on)"},
    {"explain.call_waits", "{} has been waiting for {} s for {} of {}: {}"},
    {"explain.handler_runs", " s for {} of {}: its handler has been running there for {} s"},
    {"explain.call_queued", " s for {} of {}: it has been in the queue there for {} s"},
    {"explain.callee_stopped", " s for {} of {}: the process of {} is stopped"},
    // Stragglers.
    {"straggler.comes_last",
     "paceline: rank {} keeps the others waiting: it came last to {} of {} operations, and {}% of "
     "the time is spent waiting for it"},
    {"straggler.waits_least",
     "{}paceline: rank {} keeps the others waiting: it spends {}% of the time in operations, every "
     "other rank at least {}%, most of it waiting for this one"},
    {"straggler.cause", "  probable cause: {}"},
    {"straggler.waits_for_data",
     "  probable cause: it waits for something else, such as data: {}% of the time it neither "
     "computed nor waited for other ranks"},
    {"straggler.other_load",
     "  probable cause: other load on its cpus: it was ready to run and got no cpu {}% of the "
     "time"},
    {"straggler.throttled",
     "  probable cause: throttled: the cgroup's cpu quota was used up {}% of the time"},
    // Hosts that are started, lost and come back.
    {"hosts.unreachable", "{} could not be reached: {} {} before paceline answered there"},
    {"hosts.no_ssh",
     "host {} cannot be reached: '{}' does not exist; install openssh-client or give "
     "--ssh-command"},
    {"hosts.no_paceline",
     "{}: paceline was not found there; give --remote-paceline PATH if it is somewhere else on the "
     "hosts"},
    {"hosts.other_version", "{} has another paceline: {}, here it is {}; {}"},
    {"hosts.foreign_bytes", "received bytes that are not a launcher's message"},
    {"hosts.no_answer", "no answer within {} s (--start-timeout) from: {}"},
    {"hosts.begins_without", "{}: no answer within {} s (--start-timeout)"},
    {"hosts.no_directory", "paceline run: on host {}: the working directory {}: {}"},
    {"hosts.going_on", "paceline: going on with {} of {} hosts"},
    {"hosts.waiting_for_it", "paceline: waiting for it, with {} of {} hosts"},
    {"hosts.connection_lost", "{} was lost: its connection ({}) {}; its ranks end by themselves"},
    {"hosts.back", "paceline: {} is back"},
    {"hosts.not_restarted",
     "{} could not be started again; it is not restarted any more (--host-retries)"},
    {"hosts.silent", "paceline: {} has sent nothing for {} s: it may have died"},
    {"hosts.output_lost",
     "paceline: warning: output of the ranks could not be written to {}; with --log-dir each host "
     "keeps that of its ranks"},
    // Nodes that meet.
    {"nodes.rank_taken", "--node-rank {} is taken by host {}: give every node its own, or none"},
    {"nodes.other_nnodes", "--nnodes is {}:{} here and {}:{} at the job's others"},
    {"nodes.other_id",
     "--rdzv-id is '{}' here and '{}' at the job's others: another job is at this endpoint, or the "
     "ids differ by mistake"},
    {"nodes.other_version",
     "this node has Paceline {}, the job's others {}: install the same version"},
    {"nodes.other_secret",
     "hung up before it proved that it belongs to the job: an agent with another secret "
     "(PACELINE_SECRET_FILE must be the same on every node), or no agent at all"},
    {"nodes.secret_differs",
     "{} has another job secret or belongs to another job, group or generation"},
    {"nodes.roles_do_not_add_up",
     "--roles {} has {}, but the nodes start {}: the counts must add up"},
    {"nodes.place_taken",
     "this node ({}) is where the job's nodes meet, but something listens at {} already: another "
     "node that has the same number, or another job. Give every node a --node-rank of its own, and "
     "every job another port (--master-port or --rdzv-endpoint)"},
    {"nodes.too_few_came",
     "{} came within {} s, {} needed; here: {}. Is the same command started on the others, and do "
     "they reach the endpoint?"},
    {"nodes.not_found", "the other nodes of the job were not found at {}: {}"},
    {"nodes.address_unknown", "the address '{}' does not resolve: {}"},
    {"nodes.address_tried_again",
     "the address '{}' does not resolve: {}; trying again for up to {} s"},
    {"nodes.place_tried_again", "; trying again for up to {} s (--rdzv-conf join_timeout)"},
    {"nodes.waits_to_replace",
     "all {} of the job have joined already (--nnodes); waiting for up to {} s in case one of them "
     "is lost"},
    {"nodes.not_needed", "the job has ended, and this node was not needed"},
    {"nodes.coordinator_lost", "lost the job's coordinator at {}"},
    {"nodes.coordinator_here_lost",
     "paceline: lost the job's coordinator, which is this node's agent: host {} heard nothing from "
     "it for {} s and continues without it; looking for another one"},
    {"nodes.looks_for_another", "; looking for another one"},
    {"nodes.lost_all",
     "this node lost {}, and found none of the others: {}. They have ended, or this host does not "
     "reach them; the job is not begun again here. Start it again to continue from its newest "
     "checkpoint"},
    // Output, logs and limits of the machine.
    {"output.lost",
     "paceline: warning: output of the ranks could not be written to {}; it is complete in {}"},
    {"output.log_incomplete", "is incomplete: {}; the job goes on"},
    {"output.no_terminal",
     "paceline: warning: no pseudo-terminal for the ranks' stdout ({}), which is a pipe now: "
     "programs other than Python print late, unless they flush"},
    {"output.folder_not_made", "--log-dir: the folder {} could not be made: {}"},
    {"output.folder_not_written", "--log-dir: the folder {} cannot be written: {}"},
    {"output.folder_in_use", "the log folder {} is in use by another job (job {}"},
    {"limits.files",
     "{} ranks need {} open files, the hard limit is {}; raise it (ulimit -Hn {}) or start fewer "
     "ranks"},
    {"limits.processes", "starting a process (see ulimit -u and the pids cgroup)"},
    {"limits.port_taken",
     "--master-port {} cannot be used (who holds it: ss -ltnp 'sport = :{}'; without the flag a "
     "free port is taken)"},
    {"secret.not_private",
     "PACELINE_SECRET_FILE={} must be a file of user {} that nobody else can read: chmod 600 {}"},
    {"secret.descriptor_closed",
     "the descriptor of PACELINE_SECRET_FD={} is closed: something between the launcher and this "
     "program closed it, as Python's subprocess does. Let it pass (subprocess: close_fds=False, or "
     "pass_fds=[int(os.environ['PACELINE_SECRET_FD'])]), or give the launcher a private file by "
     "PACELINE_SECRET_FILE, which the ranks then read"},
    // --timeline
    {"timeline.made", "paceline: timeline: {} ({}); open it in https://ui.perfetto.dev"},
    {"timeline.spans_of_hosts", "spans of {} ranks; clocks of hosts agree to {} us"},
    {"timeline.nothing_recorded",
     "paceline: no timeline: no rank recorded anything (does the program make a group?)"},
    {"timeline.left_out", "paceline: warning: left out of the timeline: {}"},
    {"timeline.host_left_out",
     "paceline: warning: left out of the timeline: host {}: it sent nothing"},
    {"timeline.not_opened",
     "paceline: no timeline: opening the trace {}: {}; what the ranks recorded is in {}: paceline "
     "timeline -o {} {}"},
    // Placement.
    {"placement.cpu_shared", "--bind map: ranks {} and {} share cpu {}"},
    {"placement.inherited", "{}={} is inherited"},
    {"placement.each_runs", "each runs about {}% of the time"},
    {"placement.too_many_threads",
     "rank {} keeps {} threads busy on {}, and was told to compute with {}"},
    {"placement.rank", "rank {}: cpus {} ({}), {}, {}"},
    {"topo.given", "; given to this process: {}, cpus {}"},
    {"topo.not_a_machine",
     "topology: '{}' is neither an lstopo file (FILE.xml) nor a description like"},
    {"topo.no_cpu_left", "topology: this process may use none of the chosen cpus"},
    {"cli.not_expected", "'{}' was not expected"},
    // What other commands of a job say.
    {"top.worker", "{} (rank {}): {}, {}"},
    {"dry_run.hosts", "{} hosts, world size {}"},
    {"jobs.no_job", "no job '{}'; there are {}"},
    {"jobs.not_clear", "'{}' may be {} jobs; give an id or a pid: {}"},
    {"jobs.alike", "'{}' may be {} jobs; give a pid: {}"},
    {"jobs.several_launchers",
     "{} launchers of this job are on this machine; give the pid of one: {}"},
    {"jobs.held_by_another", "another process than the one in its name listens there"},
    {"stop.still_runs",
     "paceline stop: {} still runs after {} s (its --shutdown-timeout may be longer)"},
    {"completion.unknown_shell", "give one shell: paceline completion bash, zsh or fish"},
    {"doctor.not_calibrated", "none: the planner goes by defaults ({} measures this machine)"},
    {"doctor.calibration_noisy", "noisy (repetitions differed by up to {}%: measure again)"},
    {"doctor.calibration_unreadable",
     "the calibration {} cannot be read: {}; measure again or remove it"},
    {"rendezvous.place", "rank {} of {}, local rank {} of {}, launched by {}, generation {}"},
    {"rendezvous.threads_divided",
     "{} started {} ranks on this host: {} thread{} of computing for this one (OMP_NUM_THREADS "
     "says otherwise)"},
    {"spawn.first_failure", "spawn: rank {} of {} failed first: {}"},
    {"spawn.late_ranks_killed", "spawn: of {} ranks, {} still ran after {} ms and were killed"},
    {"error.not_an_exception", "an exception that is not a std::exception, of type {}"},
    // paceline.toml
    {"flag_file.no_command", "{}, line {}: options belong below the name of their command: [run]"},
    {"flag_file.no_value", "{}, line {}: '{}' is not option = value"},
    {"flag_file.bare_word", "{}, line {}: '{}' is not a number, true, false or a string in quotes"},
    {"flag_file.not_closed", "{}, line {}: the string has no closing {}"},
    {"flag_file.unexpected", "{}, line {}: unexpected '{}'"},
    {"flag_file.bad_escape", "{}, line {}: only {} or {} may follow a backslash"},
    {"flag_file.value_empty", "{}, line {}: {}: the value is empty"},
    {"flag_file.no_section", "{}, line {}: '{}' is not the name of a command in brackets"},
    {"flag_file.unknown_section", "{}, line {}: [{}] is neither [run] nor [submit]"},
    {"flag_file.not_read",
     "paceline: warning: {} is not read: it belongs to another user or everyone may write it"},
    {"flag_file.foreign", "{}: it belongs to another user or everyone may write it"},
    {"flag_file.unknown_option", "{}, line {}: paceline run has no option {}; did you mean {}?"},
    {"flag_file.flag_with_value", "{}, line {}: {} is true or false"},
    {"flag_file.value_is_flag", "{}, line {}: {} takes a value"},
    {"flag_file.given_twice", "{}, line {}: {} is given twice"},
    {"flag_file.command_line_only", "{}, line {}: {} is for the command line alone"},
    // paceline submit
    {"submit.no_scheduler",
     "choose a scheduler: paceline submit slurm or paceline submit kubernetes"},
    {"submit.needs_dry_run", "give --dry-run, and the output to: kubectl apply -f -"},
    {"submit.option_of_run",
     "{} is for paceline run: a submitted job gets its nodes from the scheduler, --nnodes says how "
     "many"},
    {"submit.nodes_fixed", "{}: '{}': a scheduler gives a job a fixed number of nodes: --nnodes N"},
    {"submit.nodes_of_slurm",
     "{}: '{}': a scheduler gives a job a fixed number of nodes: --nnodes N. A job that goes on "
     "without a node that fails needs an allocation that SLURM leaves standing: sbatch or salloc "
     "--no-kill -N MAX, and in it paceline run --nnodes MIN:MAX"},
    {"submit.may_hold", "--{}: '{}' may hold letters, digits{} only"},
    {"submit.not_a_time",
     "--time: '{}' is not a SLURM time limit: 30 (minutes), 30:00, 4:00:00, 1-12 (days-hours) or "
     "1-12:30:00"},
    {"submit.not_memory",
     "--mem: '{}' is not a SLURM amount of memory: a whole number of megabytes, or with K, M, G or "
     "T behind it, as 16G"},
    {"submit.not_an_array",
     "--array: '{}' is not a SLURM list of task numbers: 0-15, 1,3,5-7, 0-15:4 or 0-15%4"},
    {"submit.signal_before_start",
     "--signal-before: {} s before the end of a job of --time {} is before its start; choose a "
     "smaller one, or 0 for no signal"},
    {"submit.no_image", "--image: which image to start is needed"},
    {"submit.must_begin_with_letter", "--job-name: '{}' must begin with a letter"},
    {"submit.not_a_label", "{}: '{}' is not at most {} small letters, digits and '-' inside"},
    {"submit.not_an_amount", "{}: '{}' is not an amount like 16Gi"},
    {"submit.not_utf8", "manifest: '{}' is not UTF-8: {}"},
    {"slurm.other_nnodes", "--nnodes: {}, but the SLURM job has {} nodes; leave it out"},
    {"slurm.not_a_node_list", "SLURM_JOB_NODELIST='{}' is not a list of nodes"},
    {"slurm.tasks_do_not_fit",
     "SLURM_TASKS_PER_NODE='{}' does not fit the job's {} nodes (SLURM_JOB_NODELIST); say how many "
     "ranks each node gets: --nproc-per-node N"},
    {"slurm.components",
     "this SLURM job has {} components (SLURM_HET_SIZE={}), on which paceline run does not start "
     "ranks; start the program itself: srun --het-group=0-{} PROGRAM; or give --standalone for "
     "ranks on this machine alone"},
    {"slurm.started_by_another",
     "{} has started {} of this launcher ({}={}), and each would start a job of its own; start the "
     "program itself with {}, or this launcher once, without {}; or give --nnodes and "
     "--rdzv-endpoint"},
    // paceline advise
    {"advise.batch_without_place",
     "--global-batch N and {batch} in the program's arguments belong together: each rank's batch, "
     "N / ranks, is put there"},
    {"advise.advice", "advice: {}"},
    {"advise.command", "command: paceline run {}"},
    {"advise.data_parallel", "advice: data parallel, {} ranks on this machine"},
    {"advise.stay_on_one_core", "advice: stay on one core"},
    {"advise.share_among_machines",
     "advice: share the whole model's state among at least {} machines like this one"},
    {"advise.gain", "because: {} times the throughput of {} ({} against {} samples/s)"},
    {"advise.ranks_wait", "because: ranks wait for each other {}% of the time"},
    {"advise.careful",
     "because: careful: {} times is more than {} can give: other programs probably disturbed a "
     "trial, so measure again on an idle machine"},
    {"advise.why_failed", "because: {}: failed with exit code {}"},
    {"advise.parameters_too_large",
     "because: parameters of {}: parameters, gradients and Adam's state take {} a rank"},
    {"advise.program_failed", "failed with exit code {}: {}"},
    {"advise.memory_not_seen", "not seen"},
    {"advise.no_step", "no step for {} s; see paceline advise --help"},
    {"advise.ended_early", "ended after {} steps, too few to measure"},
    {"advise.rank_without_steps", "a rank reported only {} steps, too few to measure"},
    {"advise.nothing_measured",
     "paceline advise: nothing could be measured, so there is no command to recommend"},
    {"mesh.program", "{}: {} parameters, {} layers; {}"},
    {"mesh.global_batch", "global batch: {} samples; costs: {}"},
    {"mesh.step_spent",
     "because: a step takes {} ms: {}% passes, {}% bubble, {}% exchange within layers, {}% exposed "
     "exchange of gradients, {}% optimizer"},
    {"mesh.failures_take",
     "because: failures and checkpoints take {}% of the time, with a checkpoint every {} s"},
    {"mesh.stragglers_take", "because: waiting for the slowest of {} ranks takes {}%"},
    {"mesh.compared", "predicted beside measured (step; memory of all ranks):"},
    {"mesh.error", "{}: error {}% in the median, {}% at worst"},
    {"mesh.fits", "  fits"},
    {"mesh.does_not_fit", "  does not fit"},
    {"mesh.memory_of_host", "a host has {}"},
    {"mesh.ended_without_profile",
     "no profile: {} ended without one. Programs that train by train::TrainingRun write one where "
     "the variable PACELINE_PROFILE says; others can write it themselves (docs/planner.md)"},
    {"mesh.no_profile_in_time", "no profile: {} has not written one within {} s (--patience)"},
    {"mesh.program_failed", "{} failed with exit code {} while it was measured: {}"},
    {"mesh.foreign_profile", "not a profile of a program: {}"},
    {"mesh.unknown_property", "--simulate: '{}' is not one of hosts="},
    {"mesh.check_runs_here",
     "--check runs PROGRAM on this machine: it needs one, and no --simulate"},
    {"mesh.check_needs_mesh", "--check needs --mesh"},
    {"mesh.not_a_mesh",
     "--check {}: is not one of the meshes for these ranks and this batch (--rows 1000)"},
    {"mesh.ranks_of_this_machine",
     "--ranks is of this machine; give ranks= of each host to --simulate"},
    {"mesh.options_need_mesh",
     "--simulate, --ranks, --check and --profile need --mesh or --memory"},
    {"mesh.batch_too_small", "{} ranks cannot divide a global batch of {} samples among them"},

    // ---- launcher rooms, planning, and the other commands
    // options and settings of the commands
    {"option.unknown", "unknown option {}"},
    {"option.unknown_near", "unknown option {}; did you mean {}?"},
    {"option.did_you_mean", "; did you mean {}?"},
    {"option.needs_a_value", "{} needs a value"},
    {"option.empty", "{}: the value '' is empty"},
    {"option.refused", "{}: '{}' is not {}"},
    {"option.not_one_of", "{}: '{}' is not one of {}"},
    {"option.no_number", "{}: '{}' is not a whole number from {} to {}"},
    {"option.file_refused", "{}: '{}': {}"},
    {"option.word_not_expected", "'{}' was not expected"},
    {"setting.given_twice", "{} is given twice"},
    {"setting.no_number", "{}={}: not a whole number from {} to {}"},
    {"setting.not_a_rate", "{}={}: not a rate as 25Gbit (kbit, Mbit, Gbit, Tbit)"},
    {"setting.not_a_time", "{}={}: not a time as 20us (us, ms, s, min, h, d)"},
    {"setting.not_a_size", "{}={}: not a size as 512GB (MB, GB, TB)"},
    {"setting.not_a_share", "{}={}: not a share as 5%"},
    {"cluster.unknown_setting",
     "'{}' is not one of hosts=, ranks=, link=, latency=; for example "
     "hosts=64,ranks=8,link=25Gbit"},
    {"cluster.without_hosts", "{}: how many hosts? for example hosts=64,ranks=8"},
    {"cluster.too_large", "{} hosts x {} ranks are more than {} ranks"},

    // paceline bench: what is refused
    {"bench.no_operation", "no operation given: paceline bench OPERATION [options]; one of {}"},
    {"bench.rpc_is_measured_alone",
     "operation: rpc is measured alone, with options of its own: paceline bench rpc [options]"},
    {"bench.operation_not_planned", "operation: {} is measured only, not planned"},
    {"bench.no_meaning", "{} has no meaning with {}"},
    {"bench.ranks_of_a_launcher",
     "this process is rank {} of {} ({}), and bench starts {} of its own: type it without the "
     "launcher: {}"},
    {"bench.other_number_of_ranks", "--nproc-per-node: '{}': {} started {}; leave it out"},
    {"bench.not_a_size", "'{}' is not a size from 1 to 1G (like 8, 64K, 1M)"},
    {"bench.not_a_range", "'{}' is not a size or FIRST:LAST[:FACTOR]"},
    {"bench.range_falls", "'{}' runs from large to small"},
    {"bench.not_a_factor", "'{}' is not a factor from 2 to 1024"},
    {"bench.size_rounded_up",
     "--sizes: {} B is not a whole number of elements for every rank in {}: such sizes are "
     "rounded up, here to {} B, and measured once"},
    {"bench.message_size", "--sizes: {}: a message has {} to {} here"},
    {"bench.python_refused", "--python: '{}' does not exist"},
    {"bench.same_file", "{} and {} name the same file, '{}': give each its own"},
    {"bench.placement_refused", "--placement: '{}': {} works {} only"},
    {"bench.placement_not_everywhere", "--placement {}: {}, and so measured"},
    {"bench.ucx_on_one_host",
     "--transport: 'ucx' is for ranks of several hosts, and those that bench starts share one"},
    {"bench.algorithm_without_messages",
     "--algorithm: the ranks of one host share memory, where there are no messages to arrange: "
     "add --transport tcp"},
    {"bench.algorithm_beside_shared_memory",
     "--algorithm: these ranks share memory, where there are no messages to arrange: start ranks "
     "on several hosts, or add --transport tcp"},
    {"bench.hierarchy_needs_hosts",
     "--algorithm: hierarchy is for several hosts with several ranks each that share memory"},
    {"bench.algorithm_serves_nothing", "--algorithm: '{}' does not serve {}: {}"},
    {"bench.algorithm_serves_not_all",
     "--algorithm {} does not serve {}: the planner chooses there"},

    // paceline bench: what is measured
    {"bench.columns_of_percentiles", "median µs{}p95 µs{}p99 µs"},
    {"bench.heading", "{}, {}, {}, freshly written, {}, {}"},
    {"bench.heading_of_calls", "{}, {}, {}, {}\n"},
    {"bench.heading_of_busy_calls", "{}, {}, {}, {}, all cores computing\n"},
    {"bench.columns_of_calls", "median [min, max]{}paceline's / its [min, max]"},
    {"bench.own_transport", "paceline: Paceline, {}\n"},
    {"bench.rank_alone", "paceline: Paceline, a rank alone: it only copies"},
    {"bench.variables", "with {}; without {}: these rows are the engine's alone"},
    {"bench.environment", "environment: {}"},
    {"bench.noisy",
     "noisy: the rounds differ by more than {} times{}; the machine is busy with something else, "
     "so repeat this on an idle one"},
    {"bench.limit_not_measured",
     "limit: float32 and 2 ranks only, of all_reduce, reduce_scatter, all_gather, broadcast and "
     "all_to_all in their usual form"},
    {"bench.peer_not_built", "{} is not part of this build (no {}); {}"},
    {"bench.peer_did_not_start", "{} did not start: {}"},
    {"bench.peer_left_out", "{} is left out from {} on: {}"},
    {"bench.peer_lacks", "{} has no {}"},
    {"bench.peer_has_one_caller", "{} has one caller"},
    {"bench.peer_is_restless", "{} computes during the turns of others, which slows them down"},
    {"bench.wrong_result", "the result of {} of {} is wrong: rank {}"},
    {"bench.no_answer_in_time", "of {} ranks answered in time"},
    {"bench.start_line_missed", "rank {}: rank {} did not reach the start line"},
    {"bench.interrupted", "interrupted: {} measured"},
    {"bench.other_message", "expected a {}, received a {}"},
    {"bench.no_message", "expected a {}, received something else"},
    {"bench.message_unreadable", "a {} that cannot be read: {}"},
    {"bench.message_too_long", "received a message of {} bytes"},

    // paceline bench: the planner's costs and predictions
    {"calibration.made", "costs of {}, by {} on {}\n"},
    {"calibration.link_not_measured",
     "  {}  {} µs latency, {} µs a message, {} GB/s  (not measured here)"},
    {"calibration.spread", "repetitions differ by up to {}%"},
    {"calibration.kept", "kept in {}"},
    {"calibration.kept_noisy",
     "kept in {}, noisy as they are: measure again when the machine is quiet"},
    {"calibration.not_kept",
     "not kept: {}. Measure again, or add --keep-noisy to replace them in {}"},
    {"calibration.unreadable", "the calibration {} cannot be read: {}; measure again or remove it"},
    {"calibration.noisy", "{}, noisy (repetitions differed by up to {}%: measure again)"},
    {"calibration.one_rank",
     "--nproc-per-node: at least 2 ranks are needed to measure what communication costs"},
    {"planner.in_shared_memory", "among {} in shared memory: {}"},
    {"planner.algorithm_asked_for", "* {} {}; asked for\n"},
    {"predict.group", "{} on {}, {}; costs: {}"},
    {"predict.in_shared_memory",
     "--predict: the ranks of this group communicate by {}; predictions are for messages: start "
     "ranks on several hosts, or add --transport tcp"},
    {"predict.columns", "measured µs{}simulated{}planned"},
    {"simulate.cluster", "{} x {}, {} Gbit/s, {} µs; costs: {}"},
    {"simulate.heading", "{}, {}, {} ranks"},
    {"simulate.tcp_inside_hosts", "; over tcp inside a host, too"},
    {"simulate.single_rank", "--simulate: a single rank has no other rank to communicate with"},
    {"simulate.one_host",
     "--simulate: the ranks of one host share memory, and only messages are simulated. Measure "
     "it: paceline bench {} --nproc-per-node {}; or add --transport tcp for ranks that share none"},
    {"simulate.messages_only",
     "--transport: '{}': only messages are simulated: choose tcp, or leave it out for hosts whose "
     "ranks share memory as well"},
    {"simulate.too_long",
     "not simulated: {} take about {} million steps by this algorithm, and {} million is the "
     "limit; choose another algorithm or fewer ranks"},
    {"simulate.too_long_beside",
     "not simulated beside the chosen one: it takes long; alone: --algorithm {}"},

    // placement
    {"placement.threads_above_cpus",
     "{} x {} on {} cpus{}: each runs {} of the time, and those that wait for each other lose more "
     "(OMP_WAIT_POLICY=PASSIVE keeps them from spinning); {}"},
    {"placement.threads_above_quota",
     "{} x {} need more than the {} cpus of time that {} grants{}: they run {} of the time at "
     "most, and a cgroup stops all of them at once until its next period; {}"},
    {"placement.cores_idle",
     "OMP_NUM_THREADS={} is inherited: {} of every rank's {} cores stay idle; unset it, or give "
     "--threads-per-rank {}"},
    {"placement.threads_unreadable",
     "OMP_NUM_THREADS='{}' is not a number of threads: each rank gets {} instead"},
    {"placement.threads_share_cores", "{} threads share {} cores in every rank"},
    {"placement.blas_threads_inherited",
     "{}={} is inherited: matrix products compute with {}, everything else with {}"},
    {"placement.pinning_inherited",
     "{}={} is inherited: OpenMP pins the main thread to one core, and every thread it starts "
     "later"},
    {"placement.narrow_mask",
     "this process was given {} only ({}): {} ranks share them while others of this machine are "
     "not used; {}"},
    {"placement.map_overlaps", "--bind map: ranks {} and {} share cpu {}"},
    {"placement.another_job",
     "another paceline job (pid {}) computes on cpus {} as well: {} threads want {} cores: each "
     "runs about {} of the time"},
    {"placement.other_jobs",
     "{} other paceline jobs (pids {}) compute on cpus {} as well: {} threads want {} cores"},
    {"placement.ranks_stay_together", "no rank straddles a {}"},
    {"placement.ranks_straddle", "{} more than one {}: {}"},
    {"placement.cores_left_over", "{} cores are idle: ranks with them would straddle"},
    {"placement.slower_cores", "{} slower cores are left to the system"},
    {"placement.quota", "{} grants {} cpus of time: that limits the threads, not the cores"},
    {"topo.given_cpus", "; given to this process: {}, cpus {}"},
    {"topo.svg_not_given", "not given to this process"},

    // paceline advise
    {"advise.noise",
     "careful: {} times is more than {} can give: other programs probably disturbed a trial, so "
     "measure again on an idle machine"},
    {"advise.memory_not_seen", "not seen"},
    {"advise.faster_than", "{} times the throughput of {} ({} against {} samples/s)"},
    {"advise.not_worth_it", "{} ranks would be {} times as fast as one: not worth it below {}"},
    {"advise.parameters_unknown",
     "the program does not report the size of its parameters, so sharding was not considered"},
    {"advise.sharded_optimizer", "data parallel, {} ranks that share the optimizer's state"},
    {"advise.machines_would_scale",
     "on more machines with 10 Gbit/s, exchanging gradients takes at least {} ms beside steps of "
     "{} ms: they would scale"},
    {"advise.network_would_limit",
     "the network would be the limit: larger batches, or gradients of {} steps in one exchange "
     "(no_sync)"},
    {"advise.trainings_differ",
     "careful: the global batch was {} to {} samples, so these are different trainings"},
    {"advise.replicas_fit",
     "parameters of {}: parameters, gradients and Adam's state take {} a rank, the rest of the "
     "program {}; {} for {} of this machine's {}: replicas fit, nothing has to be sharded"},
    {"advise.unmeasured_need", "take {} a rank; {} for {} of this machine's {}"},
    {"advise.optimizer_divided", "too much; {} when the optimizer's state is divided among them"},
    {"advise.model_divided", "too much; {} when parameters and gradients are divided, too"},
    {"advise.shards_move_slowly", "moving shards at 10 Gbit/s takes {} s beside steps of {} s"},
    {"advise.rest_does_not_fit", "what cannot be sharded does not fit either"},

    // the coordinator of several nodes
    {"coordinator.too_few_came",
     "{} came within {} s, {} needed; here: {}. Is the same command started on the others, and do "
     "they reach the endpoint?"},
    {"coordinator.waits_for_others",
     "{} of {} are here ({}); waiting for the others for up to {} s"},
    {"coordinator.restarts", "restart {} of at most {}, after {}"},
    {"coordinator.goes_on", "; going on with {}"},
    {"coordinator.host_lost", "host {} is lost: {}"},
    {"coordinator.ranks_did_not_end", "host {} is lost: its ranks did not end within {} s"},
    {"coordinator.goes_on_without", "host {} is lost: {}; going on with {}"},
    {"coordinator.host_joins", "host {} joins"},
    {"coordinator.host_leaves", "host {} leaves ({})"},
    {"coordinator.refused_connection", "the job's coordinator refused a connection: {}"},
    {"coordinator.cannot_accept",
     "the job's coordinator cannot take a connection: accept(): {}; raise "},
    {"coordinator.silent", "no sign of life for {} s"},
    {"node.other_version",
     "this node has Paceline {}, the job's others {}: install the same version"},
    {"node.other_job",
     "--rdzv-id is '{}' here and '{}' at the job's others: another job is at this endpoint, or the "
     "ids differ by mistake"},
    {"node.other_nnodes", "--nnodes is {} here and {} at the job's others"},
    {"node.other_shards", "--logical-shards is {} here and {} at the job's others (0: none)"},
    {"node.other_roles", "--roles and --until are {} here and {} at the job's others"},
    {"node.too_many_ranks", "{} ranks on one node"},
    {"node.not_replaced",
     "all {} of the job have joined already (--nnodes); of a fixed number without --max-restarts "
     "none is replaced"},
    {"node.is_a_spare",
     "all {} of the job have joined already (--nnodes); waiting for up to {} s in case one of them "
     "is lost"},
    {"node.spare_in_vain",
     "the job '{}' refused this node: all {} of the job have joined already (--nnodes), and none "
     "was lost meanwhile"},
    {"node.not_needed", "the job has ended, and this node was not needed"},
    {"node.rank_taken", "--node-rank {} is taken by host {}: give every node its own, or none"},
    {"node.rank_taken_yet",
     "--node-rank {} is taken by host {}: give every node its own, or none; waiting for up to {} "
     "s"},
    {"shards.some_nodes_wait",
     "; going on with {}, of which {} wait: {} logical shards are divided among {} ranks"},
    {"shards.node_waits",
     "{} logical shards cannot be divided among the ranks of all {} nodes; waiting until they can"},
    {"shards.newcomer_waits",
     "{} logical shards cannot be divided among its ranks as well; waiting until they can"},
    {"shards.never_fit",
     "{} logical shards cannot be divided among the ranks of {} or more of the nodes that are here "
     "({}): {} ranks can divide them"},
    {"restarts.used_up", "{} used up{} (--max-restarts {})"},
    {"restarts.used_up_in_window", "{} used up within {} s (--max-restarts {})"},
    {"restarts.crash_loop",
     "crash loop: the ranks {}, {} times in a row before any progress; restarting does not help"},
    {"restarts.error_of_use",
     "an error of use (exit code {}) before any progress; restarting does not help"},
    {"restarts.damage", "a rank's state was damaged (--on-damage stop)"},

    // hosts
    {"hosts.not_a_host",
     "{}: '{}' is not a host: [user@]name of letters, digits, '.', '-' and '_', perhaps with "
     ":SLOTS behind it"},
    {"hosts.not_in_brackets", "{}: '{}' is not an IPv6 address in brackets"},
    {"hosts.slots_refused", "{}: slots '{}' is not a whole number from 1 to {}"},
    {"hosts.word_unknown", "{}: '{}' is neither slots=N nor max_slots=N"},
    {"hosts.slots_above_most", "{}: slots={} is above max_slots={}"},
    {"hosts.listed_twice", "{}: host '{}' is listed twice; list it once, with all its slots"},
    {"hosts.none_listed", "{}: it lists no host"},
    {"hosts.file_unreadable", "--hostfile {}: {}"},

    // an agent and its ranks
    {"agent.generation", "paceline: generation {}: restart {} of at most {}, after {}"},
    {"agent.stopped_by_signal", "paceline: stopped by {}; all ranks have ended"},
    {"agent.not_forked_new_environment",
     "paceline: local rank {} is executed again, not forked: its environment has changed"},
    {"agent.not_forked_new_program",
     "paceline: local rank {} is executed again, not forked: the program's file has changed"},
    {"agent.no_socket",
     "paceline: warning: ps, top, logs, stacks and stop will not see this job: {}"},
    {"agent.log_not_made", "the log {} could not be made: "},
    {"agent.log_folder_unwritable", "--log-dir: the folder {} cannot be written: "},
    {"agent.log_folder_not_made", "no log folder could be made in {}: "},
    {"agent.timeline", "{} spans of {} ranks; clocks of hosts agree to {} us"},
    {"tally.steps_lost", "  steps                 {}, {} of them lost and made again\n"},
    {"tally.steps_with_repeats", "  steps                 {}, with those made again\n"},
    {"tally.time", "  time                  {} s\n"},
    {"tally.steps_kept", "    steps kept            {}%  {} s\n"},
    {"tally.lost_to_restarts",
     "    lost to restarts      {}%  {} s: {} s of steps made again, {} s without a step\n"},
    {"tally.job_itself", "    the job's own         {}%  {} s: its start, evaluating, saving\n"},
    {"tally.without_ranks", "    without ranks         {}%  {} s\n"},
    {"tally.goodput_of_time", "  goodput               {}% of the time, in steps that were kept\n"},
    {"tally.goodput", "  goodput               {}% of that without restarts; of the time {}%\n"},

    // why a rank failed, waits or is slow
    {"failure.first", "paceline: {} failed first: {} (host {}, pid {}, after {} s)\n"},
    {"failure.cause", "\n  cause: {}\n"},
    {"failure.hint", "\n  hint: {}\n"},
    {"failure.hint_killed",
     "\n  hint: likely out of memory (look at dmesg or the cgroup's memory limit), or killed by "
     "hand\n"},
    {"failure.hint_crashed",
     "\n  hint: a memory error in the program; a debugger shows where: ulimit -c unlimited\n"},
    {"failure.ended_before", "\n  before: ranks {} ended with exit code 0\n"},
    {"failure.last_lines", "\n  the last lines of {}:\n{}"},
    {"failure.log", "\n  log: {}\n"},
    {"cause.memory_of_rank", "; the rank used {}"},
    {"cause.memory_of_machine",
     "out of memory: the kernel killed it when the machine's memory of {} was full"},
    {"cause.killed_from_outside",
     "killed from outside (kill -9, a batch system), not for lack of memory: the kernel counted no "
     "such kill"},
    {"cause.library_missing",
     "the shared library {} is missing or unusable on this machine; ldd PROGRAM lists them, "
     "LD_LIBRARY_PATH adds folders"},
    {"cause.symbol_missing",
     "a shared library lacks a symbol that the program was linked with: {}"},
    {"cause.libraries_too_old",
     "this machine's libraries are older than those the program was built with: {} is missing"},
    {"cause.memory_refused",
     "an uncaught exception: {} (memory was refused: see ulimit -v and the size asked for)"},
    {"cause.memory_damaged",
     "damaged memory, as the C library found: {}; something was freed twice, used after it was "
     "freed or written beyond its end, perhaps long before: -fsanitize=address or valgrind shows "
     "where"},
    {"cause.shared_memory_full",
     "/dev/shm is full ({} free of {}): enlarge it (mount -o remount,size=..., docker run "
     "--shm-size), or choose PACELINE_TRANSPORT=tcp"},
    {"hang.never_entered", "{} never entered {}; it last finished {}; {} has been waiting for {}"},
    {"hang.no_records", "{} of its {} ranks has no records here"},
    {"hang.host_silent", "; the launcher on {} did not answer within {} s"},
    {"hang.rank_stopped", "{} is stopped (SIGSTOP, or at a terminal); SIGCONT lets it go on"},
    {"hang.calls_in_a_circle",
     "workers wait for each other's calls: {}, which calls {}, which calls {}; "},
    {"stacks.of_thread", "  ranks {}, thread {}:\n{}"},
    {"stacks.unreadable", "  ranks {}: its stack could not be read: {}"},
    {"stacks.no_helper", "  ranks {}: no process could be started to read its stack: {}"},
    {"straggler.waits_for_something",
     "it waits for something else, such as data: {}% of the time it neither computed nor waited "
     "for other ranks"},
    {"straggler.computes_longer",
     "it computes longer than the others: more work, or a slower core"},

    // planning
    {"machine.described", "{} x {}, {} Gbit/s, {} µs, {} cores a host"},
    {"machine.unknown_setting",
     "'{}' is not one of hosts=, ranks=, link=, latency=, cores=, memory=, mtbf=, checkpoint=, "
     "restart=, interval=, stragglers=; for example hosts=64,ranks=8,link=100Gbit,mtbf=5000h"},
    {"profile.unreadable", "this is no profile of a program: {}"},
    {"profile.unreadable_file",
     "{}: this is no profile of a program: {}; measure again or remove the file"},
    {"profile.other_file", "it is another kind of file"},
    {"profile.amount_refused", "{}: {} is {}; it is finite and not negative"},
    {"profile.share_refused", "{}: {} is {}; it is a share from 0 to 1"},
    {"profile.no_layers", "{}: there are no layers"},
    {"profile.unknown_schedule", "profile: unknown schedule '{}'"},
    {"profile.one_schedule", "profile: schedules has '{}' alone; give a name, too"},
    {"way.other_number_of_ranks", "{} is {} ranks, the machine has {}"},
    {"way.heads_do_not_divide", "tp={} does not divide {} (heads)"},
    {"way.no_pipelines", "pp={}: the program runs no pipelines"},
    {"way.few_blocks", "pp={}: the model has {} blocks"},
    {"way.batch_does_not_divide", "dp={} does not divide the global batch {}"},
    {"way.micro_batches_do_not_divide", "{} micro-batches do not divide a replica's {} samples"},
    {"way.few_micro_batches", "{} micro-batches are fewer than {} stages"},
    {"way.no_such_sharding", "--shard {}: the program does not run it"},
    {"plan.best_way", "  <- best\n"},
    {"plan.memory_too_large", "{}  does not fit\n"},
    {"plan.memory_fits", "{}  fits\n"},
    {"plan.memory_of_host", "a host has {}\n"},
    {"plan.error_of_prediction", "{}: error {}% in the median, {}% at worst\n"},
    {"plan.other_way", "{} ({}): {} times the step; {}% bubble, {}% exchanges"},
    {"plan.other_way_too_large", "{} ({}): does not fit into memory"},
    {"plan.batch_too_small",
     "{} ranks cannot divide a global batch of {} samples among them: {} ranks are the most that "
     "share a replica"},

    // ---- engine, files and training: errors of a rank
    // files: safetensors and JSON
    {"safetensors.name_refused", "safetensors: \"{}\" cannot be the name of a tensor"},
    {"safetensors.name_taken", "safetensors: two tensors are named \"{}\""},
    {"safetensors.size_of_given_tensor",
     "safetensors: tensor \"{}\" has {} bytes, its shape of {} dimensions and type {} need {}"},
    {"safetensors.given_text_not_utf8", "safetensors: a name or a metadata value is not UTF-8: {}"},
    {"safetensors.given_header_too_long",
     "safetensors: {} tensors and their metadata need a header of {} bytes, the limit is 16777216"},
    {"safetensors.file_too_short", "{}: {} bytes are too few for a safetensors file"},
    {"safetensors.header_over_limit", "{}: a header of {} bytes is over the limit of {}"},
    {"safetensors.header_past_end",
     "{}: the header of {} bytes reaches past the file's end at byte {}; the file may be cut or "
     "still be downloading"},
    {"safetensors.header_without_object", "{}: the header at byte 8 does not start with '{'"},
    {"safetensors.metadata_not_object", "tensor \"__metadata__\": must be an object"},
    {"safetensors.metadata_not_text", "tensor \"__metadata__\": \"{}\" must be a string"},
    {"safetensors.unknown_type", "{}: tensor \"{}\": element type \"{}\" is not supported"},
    {"safetensors.range_outside",
     "{}: tensor \"{}\": the range {} to {} is outside the {} bytes of data; the file may be cut "
     "or still be downloading"},
    {"safetensors.range_not_numbers",
     "{}: tensor \"{}\": data_offsets must be two unsigned integers"},
    {"safetensors.shape_refused",
     "{}: tensor \"{}\": a size in its shape is not a non-negative 64-bit integer"},
    {"safetensors.size_of_stored_tensor",
     "{}: tensor \"{}\": {} bytes of data do not match its type and shape"},
    {"safetensors.range_not_next", "{}: tensor \"{}\" starts at data byte {}, expected {} ({})"},
    {"safetensors.end_too_early", "{}: the tensors end at data byte {} of {}"},
    {"safetensors.fields_refused", "{}: tensor \"{}\": needs dtype, shape and data_offsets"},
    {"json.not_valid", "{}: not valid JSON: {}"},
    {"json.too_deep", "{}: JSON nested more than {} levels deep"},
    {"json.name_twice", "{}: \"{}\" is named twice"},
    // files: the manifest of a checkpoint
    {"manifest.file_name_refused", "{}: \"{}\" is not a plain file name"},
    {"manifest.box_missing", "a box is missing: {} of its {} elements are in none"},
    {"manifest.box_twice", "the elements {} are in two boxes"},
    {"manifest.box_outside_shape", "the box {} is not within its shape"},
    {"manifest.box_outside_files", "the box {} lies outside of the files"},
    {"manifest.byte_of_two_tensors", "byte {} is of tensor \"{}\" and of tensor \"{}\""},
    {"manifest.box_unreadable", "\"{}\" is not a box of {} dimensions"},
    {"manifest.shape_refused", "it cannot have the shape [{}]"},
    {"manifest.version_unknown", "{}: format version {}; this release reads version {}"},
    // engine: what paceline explain and a time-out tell from the records
    {"explain.never_entered", "{} never entered {}; it last finished {}"},
    {"explain.missing_rank_waited_for", "it last finished {}; rank {} has been waiting for {}"},
    {"explain.missing_rank_finished_nothing", "it had finished nothing before; "},
    {"explain.missing_rank_stopped", "it last finished {} and is stopped; "},
    {"explain.missing_rank_left", "it last finished {} and left in order; "},
    {"explain.missing_rank_threw", "it last finished {} and ended with an exception; "},
    {"explain.missing_rank_failed", "it last finished {} and failed: {}; "},
    {"explain.missing_rank_elsewhere", "it last finished {} and has been in {} for {}; "},
    {"explain.missing_rank_gone",
     "it had finished nothing before and its process is gone; {} waited {}"},
    {"explain.message_awaited", "rank {} has been waiting in {} for {}"},
    {"explain.groups_crossed",
     "ranks wait for each other in different groups: {}; every rank must use its groups in the "
     "same order"},
    {"explain.failed_in", "rank {} failed in {} after {}: {}"},
    {"explain.failed_first", "rank {} failed first, in {}: {}"},
    {"explain.failed_outside", "rank {} failed outside of any operation: {}"},
    {"explain.straggler", "; rank {} came last to {} of {} and kept the others waiting {} of {}"},
    {"explain.unknown_operation", "an unknown operation #{}"},
    {"flight.by_the_records", "; by the records of this host, {}"},
    {"flight.records", "; flight records: {} (paceline explain {})"},
    {"flight.damaged", "{} is not a flight file, or is damaged: {}"},
    {"flight.written_by_another", "it was written by rank {}"},
    {"flight.other_version", "{} has format version {}; this program reads version {}"},
    // engine: groups that form
    {"handshake.refused",
     "{} has another job secret or belongs to another job, group or generation"},
    {"handshake.other_version", "{} speaks protocol version {}, this build speaks {}"},
    {"forming.unreachable", "{}: connecting to {} of group {} failed: {}"},
    {"forming.gave_up", "{}: group {} did not form: {}"},
    {"forming.slow", "forming group {} has been waiting for {} s: {} has not arrived"},
    {"forming.tcp_streams",
     "{}: forming group {}: {} TCP streams (PACELINE_TCP_STREAMS); choose 1 to {}"},
    {"forming.options_differ",
     "the options of group {} that choose algorithms (algorithm, allows_any_order) differ from "
     "those of rank 0: {} here, {} there"},
    {"forming.sockets_instead",
     "{}: rank {} ({}) could not get its part of {} bytes of memory shared by {} ranks: {}; "
     "continuing over sockets, which is slower"},
    {"forming.died_or_firewall",
     "{}: connecting to {} of group {} failed: it has died, or a firewall is between the hosts: "
     "could not connect to {} in time: {}"},
    {"forming.members_differ",
     "{}: group {} does not match: this rank means the ranks {} of the world, {} means {}; all "
     "ranks must make the same groups in the same order"},
    {"forming.transports_differ",
     "{}: {} of group {} chose transport {}, but this rank {}; give all ranks the same "
     "PACELINE_TRANSPORT"},
    {"mesh.notice_unreadable", "{}: group {} was aborted by {}: (its notice cannot be read)"},
    {"rendezvous.waits", "rank {} of {} waits for ranks {}"},
    {"rendezvous.alone",
     "init_process_group: no launcher started this process, so it runs alone, as a group of one: "
     "for several ranks paceline run --nproc-per-node N {}; RANK=0 WORLD_SIZE=1 states that it is "
     "meant"},
    {"rendezvous.meets_elsewhere", "{}; the ranks of this host meet by {} instead"},
    {"endpoint.not_host_and_port", "{}: '{}' is not HOST:PORT with a port from 0 to 65535"},
    {"endpoint.no_host", "{}: '{}' is neither a name nor an address of a host"},
    {"endpoint.without_brackets", "{}: '{}': an IPv6 address stands in brackets: [ADDRESS]:PORT"},
    {"endpoint.of_every_host",
     "{}: '{}' is every address of any host; write the name or an address of one"},
    {"socket.unresolved", "the address '{}' does not resolve: {}"},
    {"socket.tries_again", "the address '{}' does not resolve: {}; trying again for up to {} s"},
    {"socket.foreign_address",
     "{} is not an address of this host; listening on all addresses, which the other ranks reach "
     "if {} leads here"},
    // engine: memory and descriptors that run out
    {"memory.part_not_got", "rank {} ({}) could not get its part of {}"},
    {"system.too_many_files", "Too many open files; raise the limit: ulimit -n, now {}"},
    {"memory.not_allocated_in_time", "{}: allocating {} shared bytes in group {} timed out after "},
    {"memory.block_missing", "{} has not allocated its block; "},
    // training: a run that begins
    {"ownership.directory_used",
     "checkpoint directory {}: it has checkpoints already, the newest of step {}; to continue that "
     "run, resume it (--resume); to begin another one, give it a directory of its own"},
    {"ownership.memory_used",
     "rank {}: the memory for checkpoints (PACELINE_MEMORY_CHECKPOINT) holds step {} of an earlier "
     "run; to continue that run, resume it (--resume); to begin another one, remove that file"},
    {"ownership.memory_of_another_run",
     "rank {}: the memory for checkpoints (PACELINE_MEMORY_CHECKPOINT) holds step {} of another "
     "run than {}; resume with that run's directory, or remove the file"},
    {"ownership.newest_of_another_run",
     "checkpoint directory {}: its newest checkpoint, step-{}, is of {}, the directory is of {}; "
     "remove that checkpoint to continue the directory's run, or continue the checkpoint's with "
     "--resume-other-run"},
    {"ownership.not_of_this_job",
     "checkpoint directory {}: the launcher has started this job again, but the checkpoints there "
     "(the newest of step {}) are not the job's own; {}"},
    // training: replicas and gradients
    {"replica.one_differs", "rank {}'s replica differs from the others after step {}: {}"},
    {"replica.two_differ", "the replicas of ranks {} differ after step {}: {}"},
    {"replica.tensors_that_differ",
     ": {}. Their memory was damaged, or a rank took another step than the others (other threads, "
     "processor, code or random numbers); nothing was saved since. Go on from the last checkpoint"},
    {"gradient.not_finite", "rank {}'s gradient of parameter {} is not finite in step {}"},
    {"hooks.differ", "the ranks chose different communication hooks: {}"},
    {"hook.failed", "communication hook {} failed in round {} of bucket {}: {}"},
    {"module.called_instead",
     "DistributedDataParallel: call model->forward(x), or model(x), of the wrapper, not of the "
     "module that was given to it"},
    {"module.order_differs",
     "this backward pass was of DistributedDataParallel module {} here and of module {} on {} "
     "(numbered as they were made): call and differentiate several modules in the same order on "
     "every rank"},
    {"module.pass_alone", "; to run the model on one rank alone, call model.module().forward(x)"},
    {"module.pass_broken_off",
     "an exception had ended the last backward pass on this rank, and the ranks could not go on "
     "together; it must have come on every rank, or end this one: {}"},
    {"module.in_checkpointed_part",
     "DistributedDataParallel's forward() was called in a part of checkpoint(): "},
    {"module.fewer_batches",
     "; where ranks have different numbers of batches, train inside paceline::join(), or take "
     "batches from a data::DataLoader, which gives every rank as many"},
    {"divided.order_differs",
     "where hosts divide the parameters, all ranks use them in the same order: run the same "
     "operations on every rank"},
    {"divided.read_by_pointer",
     "{} was read through a pointer while parts of it are on other hosts; read it through an "
     "operation of LibTorch, or hold Optimizer::whole_parameters()"},
    {"memory.changed", "{} changed in memory after step {}"},
    {"build_once.failed", "build_once could not build the module: {}"},
    {"batch_norm.pass",
     "({} pass of SyncBatchNorm, {} features: every rank must run the layer equally often, also "
     "with an empty batch)"},
    {"batch_norm.single_value",
     "SyncBatchNorm in training: the ranks together have 1 value for each feature, which has no "
     "variance; give them more samples"},
    {"batch_norm.input_refused",
     "SyncBatchNorm: an input of {} dimensions with {} features; it takes 2 to 5 dimensions with "
     "{}"},
    {"batch_norm.derived_twice", "SyncBatchNorm has no second derivative"},
    {"copies.inputs_differ",
     "DataParallel: inputs of {} and {} samples (dim 0); all need the same number"},
    {"copies.input_scalar", "DataParallel: an input without dimensions cannot be cut along dim 0"},
    {"copies.no_input", "DataParallel: no input is a tensor that could be cut along dim 0"},
    {"copies.too_few", "DataParallel: {} replicas; at least 1 is needed"},
    {"copies.not_cloneable",
     "cannot be cloned: derive it from torch::nn::Cloneable, or override clone()"},
    {"copies.other_type", "returns another type, "},
    {"copies.changed_between",
     "DataParallel: parameter {} was changed between the forward and the backward pass"},
    {"copies.failed", "replica {} of {}: {}: {}"},
    // engine: calls of a group
    {"mismatch.collectives",
     "collectives do not match in group {}: this rank called {}, {} called {}; every rank must "
     "make the same calls in the same order"},
    {"mismatch.same_counts", ", with the same list of counts"},
    {"mismatch.new_group",
     "new_group #{} in group {} does not match: this rank means ranks {} of the world, {} means "
     "{}; all ranks must make the same groups in the same order"},
    {"mismatch.other_generation", "{} sent a message of another group or generation to group {}"},
    {"mismatch.message", "sent {} x {} with that tag"},
    {"mismatch.counts", "{} sends {} {} elements, which expects {}"},
    {"call.not_of_run",
     "{} is not an operation of run() and start(): call the group's function of that name"},
    {"call.divisor_without_mean", "a divisor of {} without a mean: only ReduceOp::kMean has one"},
    {"call.divisor_out_of_range", "a mean divided by {}; give a number from 1 to 2^31 - 1"},
    {"call.takes_one_buffer", "{} does not take several buffers; call it for each"},
    {"call.buffers_overlap", "{}: input and output overlap; {}"},
    {"call.not_complete", "{}: {} in group {} is not complete after {} ms, and continues"},
    {"call.unmapped_buffer",
     "{}: sending to rank {} ({}) with a buffer that is not mapped: {}; this rank was in {} of "
     "group {}"},
    {"visit.body_threw", "{}: the body of visit #{} in group {} threw: {}"},
    {"error.of_another_type", "an exception that is not a std::exception, of type {}"},
    {"group.not_a_member",
     "this rank is not a member of group {}, whose members are {}; leave the call to them, "
     "is_member() tells who they are"},
    {"group.unreceived_message",
     "group {} ends on {} with an unreceived message: {} x {} that rank {} ({}) sent with tag {}"},
    {"group.destroyed_under_way",
     "{}: group {} is destroyed with {} under way: {}; their results are discarded: wait() for "
     "each before destroying the group"},
    {"group.timeout_refused",
     "{}: PACELINE_TIMEOUT={}: it is a number of seconds, from {} to {}, that each operation of a "
     "group may take"},
    {"mesh.axis_crosses_hosts",
     "hint: {} crosses hosts; a size that divides the {} ranks of a host, and ranks numbered host "
     "by host, keep it in shared memory"},
    {"plan.staged", "{}; by way of the staging area, up to {} KiB"},
    {"plan.in_place",
     "direct; read and written in place when all buffers lie in symmetric memory, otherwise {}by "
     "way of a staging area of {} KiB"},
    {"backend.not_supported", "is not in backend {}; backend paceline can: --backend paceline"},
    {"backend.not_defined", "{} is not defined for {}"},
    {"backend.none_for_cuda",
     "group {} has no backend for CUDA memory; form it with --backend cpu:paceline,cuda:nccl, or "
     "copy to the host"},
    {"library.unusable",
     "the library cannot be used any more in this process (pid {}), because a call of another "
     "group broke off inside it or never returned; start the process again, or choose another "
     "backend"},
    {"library.id_of_another_size",
     "the id of {} that rank 0 gave has {} bytes, not {}; build all ranks with the same {}"},
    {"library.rank_missing", "a rank of group {} did not arrive within {} s to connect with {}"},
    {"library.not_on_device", "a buffer is said to be in CUDA memory, but is not"},
    {"one_copy.written_outside",
     "{}: {} was written to outside of the optimizer's step; the ranks of this host share one copy "
     "of it, which the step alone may change"},
    // engine: rpc, the simulator, shards and files
    {"rpc.name_taken",
     "join: a worker named '{}' is present (role {}); every worker needs a name of its own"},
    {"rpc.nobody", "no worker is named '{}'"},
    {"rpc.did_you_mean", "; did you mean '{}'?"},
    {"rpc.forked",
     "{}: a call to {} in a process forked from the worker's (process {}); join() there"},
    {"simulator.waits_forever",
     "simulating: rank {} waits forever at step {} of {}, with {} messages under way"},
    {"shards.not_divisible",
     "rank {}: {} logical shards cannot be divided among {} ranks with equal bits: every rank must "
     "have 1, 2, 4, 8, ... of them. Start {} ranks, or choose another number of shards"},
    {"topology.too_large", "topology: {} is larger than {} MiB, which is not a file of lstopo"},
    {"topology.not_a_file", "topology: {} is not a file"},
    {"topology.neither",
     "topology: '{}' is neither an lstopo file (FILE.xml) nor a description like \"package:2 "
     "numa:1 l3:2 core:4 pu:2\""},
    {"file.is_lfs_pointer",
     "a pointer of Git LFS, not the file itself: fetch it with 'git lfs pull'"},
    {"file.is_web_page",
     "a web page, not the file itself: download it from the link that gives the raw file (on "
     "Hugging Face, /resolve/ in the place of /blob/)"},
    {"file.not_regular", "it is not a regular file"},
    // files: checkpoints and their boxes
    {"checkpoint.types_differ", "checkpoint: tensor \"{}\" is {} on rank {} and {} on rank {}"},
    {"checkpoint.dimensions_of_box",
     "checkpoint: the box {} of tensor \"{}\" on rank {} needs {} dimensions"},
    {"checkpoint.sum_differs", "{}: CRC-32C of bytes {} to {}: expected {}, found {}"},
    {"checkpoint.digest_of_sums_differs",
     "{}: {}; XXH3-128 digest of its sums: expected {}, found {}"},
    {"checkpoint.file_of_another",
     "file {} of step {} of run \"{}\", expected file {} of step {} of \"{}\""},
    {"checkpoint.file_size_differs", "{}: expected {} bytes, found {}"},
    {"checkpoint.file_missing", "{}: the file is missing"},
    {"checkpoint.step_exists", "checkpoint directory {}: it has a checkpoint of step {} already"},
    {"checkpoint.no_such_step", "no checkpoint of step {}; there are: {}"},
    {"checkpoint.of_another_run", "{}: of run {}, expected {}"},
    {"checkpoint.disk_too_slow", "the disk has not taken the checkpoint of step {} within {} s"},
    {"checkpoint.no_thread", "starting the thread that writes the checkpoint of step {}: {}"},
    {"checkpoint.file_cut_short", "(the file needs {} bytes, {} were written)"},
    {"checkpoint.memory_not_opened", "{}: cannot open: {}"},
    {"checkpoint.of_another_user",
     "{} belongs to user {}, neither to this user ({}) nor to the directory's owner; remove it, or "
     "choose another directory"},
    {"checkpoint.other_writer",
     "another job, or another rank of this one (process {} on host {}), writes to it; give each "
     "job its own directory, in which one rank saves, or wait for that one to end"},
    {"checkpoint.newer_writer", "generation {} of this job (process {} on host {}) writes to it; "},
    {"checkpoint.replaced", "this is generation {}, which it has replaced"},
    {"checkpoint.taken_over",
     "generation {} of this job (process {} on host {}) has taken over; generation {} writes "
     "nothing there any more"},
    {"checkpoint.not_of_a_run", "the checkpoint is not one of a training run"},
    {"checkpoint.of_another_model",
     "the checkpoint is of another model than this program built; continue with the options that "
     "the run began with:"},
    {"checkpoint.shapes_differ", "{} here, {} in the checkpoint"},
    {"checkpoint.tensors_new", "{} tensors not in the checkpoint, for instance {}"},
    {"checkpoint.tensors_unused", "tensors in the checkpoint only, for instance {}"},
    // training: states and batches that differ
    {"saved_state.differs", "{}: {} here, {} in the saved state"},
    {"saved_state.not_a_number", "\"{}\" of the saved state is not a number: {}"},
    {"saved_state.lacks", "{}: the saved state has no \"{}\""},
    {"dataset.images_refused",
     "dataset {}: images must be uint8 [N, channels, height, width] in host memory"},
    {"dataset.labels_refused", "dataset {}: labels must be int64 [N] in host memory"},
    {"dataset.labels_too_few", "dataset {}: {} images and {} labels"},
    {"dataset.files_left_out",
     "{} files are neither JPEG nor PNG by their names (.webp, .bmp, .tif, ...) and are left out"},
    {"shards.of_the_run_differ",
     "the run that is to go on at step {} has {} logical shards, this job {}: start it with "
     "--logical-shards {} (0: without), or begin a new run"},
    {"evaluate.no_sample", "evaluate: there is no sample on any rank"},
    {"resnet.depth_unknown", "resnet: unknown depth {}; choose 18, 34, 50 or 101"},
    // training: pipelines and remote optimizers
    {"pipeline.place_of_failure",
     "; this rank was in {} of a pipeline whose stages 0 to {} are on ranks {}"},
    {"pipeline.loss_failed", "{}: the loss of outputs {} failed: {}"},
    {"pipeline.loss_not_finite",
     "the loss of micro-batch {} in replica {} of {} is not finite in step {} ({}); {} steps so "
     "far"},
    {"pipeline.loan_refused",
     "{}: {} lends a tensor of a SymmetricTensors that this rank does not use; let every rank have "
     "one as long as the others do"},
    {"pipeline.loan_kept",
     "; {} had given all its results and was waiting for {} to finish reading them in place"},
    {"optimizer.not_stepped", "worker {} did not take the step"},
    // engine: groups that lose a rank
    {"loss.host_silent", "is gone: its host does not answer ({})"},
    {"loss.another_group_failed",
     " (another group had failed there: {}); see the output of rank {}"},
};

}  // namespace

std::vector<std::string> message_parts(std::string_view name, std::vector<std::string> arguments) {
  const auto* const found = std::find_if(std::begin(kMessages), std::end(kMessages),
                                         [&](const Message& one) { return one.name == name; });
  if (found == std::end(kMessages)) {
    throw std::invalid_argument(fmt::format("tests/harness/messages.cpp has no '{}'", name));
  }
  std::vector<std::string> parts(1);
  std::string_view left = found->text;
  auto argument = arguments.begin();
  for (auto hole = left.find("{}"); hole != std::string_view::npos; hole = left.find("{}")) {
    parts.back() += left.substr(0, hole);
    left.remove_prefix(hole + 2);
    if (argument == arguments.end()) {
      parts.emplace_back();
    } else {
      parts.back() += *argument++;
    }
  }
  if (argument != arguments.end()) {
    throw std::invalid_argument(fmt::format("'{}' has fewer {{}} than arguments", found->text));
  }
  parts.back() += left;
  return parts;
}

bool contains_parts(std::string_view text, const std::vector<std::string>& parts) {
  const auto rest_follows = [&](std::size_t end) {
    for (std::size_t i = 1; i < parts.size(); ++i) {
      const auto next = text.find(parts[i], end);
      if (next == std::string_view::npos || text.substr(end, next - end).find('\n') != text.npos)
        return false;
      end = next + parts[i].size();
    }
    return true;
  };
  for (auto at = text.find(parts[0]); at != std::string_view::npos;
       at = text.find(parts[0], at + 1)) {
    if (rest_follows(at + parts[0].size())) return true;
  }
  return false;
}

}  // namespace paceline::harness
