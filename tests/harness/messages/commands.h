#pragma once

// The messages of the launcher, the planner and the other commands that tests check with
// tests/harness/says.h. To reword a message, change the sources and this table, but no test.

#include "tests/harness/says.h"

namespace paceline::harness {

inline constexpr Message kCommandMessages[] = {
    // ---- the launcher, planning, and the other commands
    // options and settings of the commands
    {"option.did_you_mean", "; did you mean {}?"},
    {"option.not_one_of", "{}: '{}' is not one of {}"},
    {"option.file_refused", "{}: '{}': {}"},
    {"setting.given_twice", "{} is given twice"},
    {"setting.no_number", "{}={}: not a whole number from {} to {}"},
    {"setting.not_a_rate", "{}={}: not a rate such as 25Gbit (kbit, Mbit, Gbit, Tbit)"},
    {"setting.not_a_time", "{}={}: not a time such as 20us (us, ms, s, min, h, d)"},
    {"setting.not_a_size", "{}={}: not a size such as 512GB (MB, GB, TB)"},
    {"setting.not_a_share", "{}={}: not a share such as 5%"},
    {"cluster.unknown_setting",
     "'{}' is not one of hosts=, ranks=, link=, latency=; for example "
     "hosts=64,ranks=8,link=25Gbit"},
    {"cluster.without_hosts", "{}: hosts= is missing; for example hosts=64,ranks=8"},
    {"cluster.too_large", "{} hosts x {} ranks are more than {} ranks"},

    // paceline bench: what is refused
    {"bench.no_operation", "no operation given: paceline bench OPERATION [options]; one of {}"},
    {"bench.rpc_is_measured_alone",
     "operation: rpc cannot be combined with other operations and has its own options: paceline "
     "bench rpc [options]"},
    {"bench.operation_not_planned", "operation: {} can only be measured, not planned"},
    {"bench.no_meaning", "{} has no effect with {}"},
    {"bench.ranks_of_a_launcher",
     "this process is rank {} of {} ({}), and bench starts {} of its own: run it without the "
     "launcher: {}"},
    {"bench.other_number_of_ranks",
     "--nproc-per-node: '{}': {} has started {} already; leave the option out"},
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
    {"bench.placement_not_everywhere", "--placement {}: {}; measured in that form"},
    {"bench.ucx_on_one_host",
     "--transport: 'ucx' is for ranks on several hosts, and bench starts all ranks on one host"},
    {"bench.algorithm_without_messages",
     "--algorithm: the ranks of one host share memory, so there are no messages to arrange: add "
     "--transport tcp"},
    {"bench.algorithm_beside_shared_memory",
     "--algorithm: these ranks share memory, so there are no messages to arrange: start ranks on "
     "several hosts, or add --transport tcp"},
    {"bench.hierarchy_needs_hosts",
     "--algorithm: hierarchy needs several hosts, each with several ranks that share memory"},
    {"bench.algorithm_serves_nothing", "--algorithm: '{}' does not support {}: {}"},
    {"bench.algorithm_serves_not_all",
     "--algorithm {} does not support {}: for these the planner chooses"},

    // paceline bench: what is measured
    {"bench.columns_of_percentiles", "median µs{}p95 µs{}p99 µs"},
    {"bench.heading", "{}, {}, {}, freshly written, {}, {}"},
    {"bench.heading_of_calls", "{}, {}, {}, {}\n"},
    {"bench.heading_of_busy_calls", "{}, {}, {}, {}, all cores computing\n"},
    {"bench.columns_of_calls", "median [min, max]{}paceline's / its [min, max]"},
    {"bench.own_transport", "paceline: Paceline, {}\n"},
    {"bench.rank_alone", "paceline: Paceline, a rank alone: it only copies"},
    {"bench.variables", "with {}; without {}: these rows measure only the engine"},
    {"bench.environment", "environment: {}"},
    {"bench.noisy",
     "noisy: the rounds differ by more than {} times{}; the machine is busy with something else, "
     "so repeat this on an idle one"},
    {"bench.limit_not_measured",
     "limit: it is measured only for float32 and 2 ranks, with all_reduce, reduce_scatter, "
     "all_gather, broadcast and all_to_all in their usual form"},
    {"bench.peer_not_built", "{} is not part of this build (no {}); {}"},
    {"bench.peer_did_not_start", "{} did not start: {}"},
    {"bench.peer_left_out", "{} is left out from {} on: {}"},
    {"bench.peer_lacks", "{} has no {}"},
    {"bench.peer_has_one_caller", "{} has one caller"},
    {"bench.peer_is_restless", "{} computes during the turns of others and slows them down"},
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
     "kept in {}, although they are noisy: measure again on an idle machine"},
    {"calibration.not_kept",
     "not kept: {}. Measure again, or add --keep-noisy to replace the costs in {}"},
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
    {"simulate.tcp_inside_hosts", "; also over tcp inside a host"},
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
     "not simulated, because it takes long; to simulate it alone: --algorithm {}"},

    // placement
    {"placement.threads_above_cpus",
     "{} x {} on {} cpus{}: each runs {} of the time, and threads that wait for each other lose "
     "more time (OMP_WAIT_POLICY=PASSIVE keeps them from spinning); {}"},
    {"placement.threads_above_quota",
     "{} x {} need more than the {} cpus of time that {} grants{}: they run {} of the time at "
     "most, and a cgroup stops all of them at once until its next period; {}"},
    {"placement.cores_idle",
     "OMP_NUM_THREADS={} is inherited: {} of every rank's {} cores stay idle; unset it; if it is "
     "intended, give --threads-per-rank {}"},
    {"placement.threads_unreadable",
     "OMP_NUM_THREADS='{}' is not a number of threads: each rank gets {} instead"},
    {"placement.threads_share_cores", "{} threads share {} cores in every rank"},
    {"placement.blas_threads_inherited",
     "{}={} is inherited: matrix products compute with {}, everything else with {}"},
    {"placement.pinning_inherited",
     "{}={} is inherited: OpenMP pins the main thread to one core; every thread that it "
     "starts later"},
    {"placement.narrow_mask",
     "this process was given {} only ({}): {} ranks share these cpus, and this machine's other "
     "cpus are not used; {}"},
    {"placement.another_job",
     "another paceline job (pid {}) computes on cpus {} as well: {} threads want {} cores: each "
     "runs about {} of the time"},
    {"placement.other_jobs",
     "{} other paceline jobs (pids {}) compute on cpus {} as well: {} threads want {} cores"},
    {"placement.ranks_stay_together", "no rank straddles a {}"},
    {"placement.ranks_straddle", "{} more than one {}: {}"},
    {"placement.cores_left_over",
     "{} cores are idle: ranks that used them would straddle parts of the machine"},
    {"placement.slower_cores", "{} slower cores are left to the system"},
    {"placement.quota", "{} grants {} cpus of time: that limits the threads, not the cores"},
    {"topo.svg_not_given", "not given to this process"},

    // paceline advise
    {"advise.noise",
     "careful: {} times is more than {} can give: other programs probably disturbed a trial, so "
     "measure again on an idle machine"},
    {"advise.faster_than", "{} times the throughput of {} ({} against {} samples/s)"},
    {"advise.not_worth_it", "{} ranks would be {} times as fast as one: not worth it below {}"},
    {"advise.parameters_unknown",
     "the program does not report the size of its parameters, so sharding was not considered"},
    {"advise.sharded_optimizer", "data parallel, {} ranks that share the optimizer's state"},
    {"advise.machines_would_scale",
     "on more machines with 10 Gbit/s, exchanging gradients takes at least {} ms, and a step takes "
     "{} ms: the job would scale"},
    {"advise.network_would_limit",
     "the network would be the limit: larger batches, or gradients of {} steps in one exchange "
     "(no_sync)"},
    {"advise.trainings_differ",
     "careful: the global batch was {} to {} samples, so the trials trained differently"},
    {"advise.replicas_fit",
     "parameters of {}: parameters, gradients and Adam's state take {} per rank, the rest of the "
     "program {}; {} for {} of this machine's {}: replicas fit, nothing has to be sharded"},
    {"advise.unmeasured_need", "take {} per rank; {} for {} of this machine's {}"},
    {"advise.optimizer_divided",
     "too much; {} if the optimizer's state is divided among the ranks"},
    {"advise.model_divided", "too much; {} if parameters and gradients are also divided"},
    {"advise.shards_move_slowly", "moving shards at 10 Gbit/s takes {} s, and a step {} s"},
    {"advise.rest_does_not_fit", "what cannot be sharded does not fit either"},

    // the coordinator of several nodes
    {"coordinator.waits_for_others",
     "{} of {} are here ({}); waiting for the others for up to {} s"},
    {"coordinator.restarts", "restart {} of at most {}, after {}"},
    {"coordinator.ranks_did_not_end", "host {} is lost: its ranks did not end within {} s"},
    {"coordinator.goes_on_without", "host {} is lost: {}; going on with {}"},
    {"coordinator.host_joins", "host {} joins"},
    {"coordinator.host_leaves", "host {} leaves ({})"},
    {"coordinator.refused_connection", "the job's coordinator refused a connection: {}"},
    {"coordinator.cannot_accept",
     "the job's coordinator cannot take a connection: accept(): {}; raise "},
    {"coordinator.silent", "no sign of life for {} s"},
    {"node.other_nnodes", "--nnodes is {} here and {} on the job's other nodes"},
    {"node.other_shards", "--logical-shards is {} here and {} on the job's other nodes (0: none)"},
    {"node.other_roles", "--roles and --until are {} here and {} on the job's other nodes"},
    {"node.too_many_ranks", "{} ranks on one node; 1 to 4096 are allowed"},
    {"node.not_replaced",
     "all {} of the job have joined already (--nnodes); without --max-restarts, a lost node is not "
     "replaced"},
    {"node.spare_in_vain",
     "the job '{}' refused this node: all {} of the job have joined already (--nnodes), and none "
     "of them was lost meanwhile"},
    {"node.rank_taken_yet",
     "--node-rank {} is taken by host {}: give every node a different rank, or no node a rank; "
     "waiting for up to {} s in case that host is lost"},
    {"shards.some_nodes_wait",
     "; going on with {}, {} of them waiting: {} logical shards can be divided among {} ranks"},
    {"shards.node_waits",
     "{} logical shards cannot be divided among the ranks of all {} nodes; waiting until they can "
     "be"},
    {"shards.newcomer_waits",
     "{} logical shards cannot be divided among the ranks of the job and of this node; waiting "
     "until they can be"},
    {"shards.never_fit",
     "{} logical shards cannot be divided among the ranks of {} or more of the nodes that are here "
     "({}): {} ranks can divide them"},
    {"restarts.used_up", "{} used up{} (--max-restarts {})"},
    {"restarts.used_up_in_window", "{} used up within {} s (--max-restarts {})"},
    {"restarts.crash_loop",
     "crash loop: the ranks {}, {} times in a row before any progress; restarting does not help"},
    {"restarts.error_of_use",
     "a usage error (exit code {}) before any progress; restarting does not help"},
    {"restarts.damage", "a rank's state was damaged (--on-damage stop)"},

    // hosts
    {"hosts.not_in_brackets", "{}: '{}' is not an IPv6 address in brackets"},
    {"hosts.slots_refused", "{}: slots '{}' is not a whole number from 1 to {}"},
    {"hosts.word_unknown", "{}: '{}' is neither slots=N nor max_slots=N"},
    {"hosts.slots_above_most", "{}: slots={} is above max_slots={}"},
    {"hosts.none_listed", "{}: it lists no host"},

    // an agent and its ranks
    {"agent.not_forked_new_environment",
     "paceline: local rank {} is started by executing the program, not from a seed: its "
     "environment has changed"},
    {"agent.not_forked_new_program",
     "paceline: local rank {} is started by executing the program, not from a seed: the program's "
     "file has changed"},
    {"agent.no_socket",
     "paceline: warning: ps, top, logs, stacks and stop cannot find this job: {}"},
    {"agent.log_not_made", "the log {} could not be made: "},
    {"agent.log_folder_unwritable", "--log-dir: the folder {} cannot be written: "},
    {"agent.log_folder_not_made", "no log folder could be made in {}: "},
    {"agent.timeline", "{} spans of {} ranks; the hosts' clocks agree to within {} us"},
    {"tally.steps_with_repeats", "  steps                 {}, including steps made again\n"},
    {"tally.time", "  time                  {} s\n"},
    {"tally.steps_kept", "    steps kept            {}%  {} s\n"},
    {"tally.lost_to_restarts",
     "    lost to restarts      {}%  {} s: {} s of steps made again, {} s without a step\n"},
    {"tally.job_itself", "    the job's own         {}%  {} s: its start, evaluating, saving\n"},
    {"tally.without_ranks", "    without ranks         {}%  {} s\n"},
    {"tally.goodput_of_time", "  goodput               {}% of the time, in steps that were kept\n"},

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
    {"cause.crash", "a crash in {}: a memory error, such as a null pointer or a wrong index"},
    {"cause.memory_of_rank", "; the rank used {}"},
    {"cause.memory_of_machine",
     "out of memory: the kernel killed it when the machine's memory of {} was full"},
    {"cause.killed_from_outside",
     "killed from outside (kill -9, a batch system), not for lack of memory: the kernel counted no "
     "out-of-memory kill"},
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
    {"profile.unreadable_file",
     "{}: not a profile of a program: {}; measure again or remove the file"},
    {"profile.other_file", "the file has another format or version"},
    {"profile.amount_refused", "{}: {} is {}; it must be finite and not negative"},
    {"profile.share_refused", "{}: {} is {}; it must be a share from 0 to 1"},
    {"profile.no_layers", "{}: there are no layers"},
    {"profile.unknown_schedule", "profile: unknown schedule '{}'"},
    {"profile.one_schedule",
     "profile: schedules lists only '{}'; add a named schedule, such as 1f1b"},
    {"way.other_number_of_ranks", "{} has {} ranks, but the machine has {}"},
    {"way.heads_do_not_divide", "tp={} does not divide {} (heads)"},
    {"way.no_pipelines", "pp={}: the program has no pipelines"},
    {"way.few_blocks", "pp={}: the model has {} blocks"},
    {"way.batch_does_not_divide", "dp={} does not divide the global batch {}"},
    {"way.micro_batches_do_not_divide", "{} micro-batches do not divide a replica's {} samples"},
    {"way.few_micro_batches", "{} micro-batches are fewer than {} stages"},
    {"way.no_such_sharding", "--shard {}: the program does not support it"},
    {"plan.best_way", "  <- best\n"},
    {"plan.memory_too_large", "{}  does not fit\n"},
    {"plan.memory_fits", "{}  fits\n"},
    {"plan.memory_of_host", "a host has {}\n"},
    {"plan.error_of_prediction", "{}: error {}% in the median, {}% at worst\n"},
    {"plan.other_way", "{} ({}): {} times as long per sample; {}% bubble, {}% communication"},
    {"plan.other_way_too_large", "{} ({}): does not fit into memory"},
    {"plan.batch_too_small",
     "{} ranks cannot divide a global batch of {} samples equally: with at most {} heads and {} "
     "blocks to divide among ranks, no possible number of replicas divides the batch; choose a "
     "multiple of {} samples, or another number of ranks"},
};

}  // namespace paceline::harness
