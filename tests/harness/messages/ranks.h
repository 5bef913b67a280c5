#pragma once

// The errors of a rank (engine, files, training) that tests check with tests/harness/says.h. To
// reword a message, change the sources and this table, but no test.

#include "tests/harness/says.h"

namespace paceline::harness {

inline constexpr Message kRankMessages[] = {
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
    // engine: what paceline explain and a time-out report from the records
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
    // engine: forming a group
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
     "for several ranks use paceline run --nproc-per-node N {}; to run alone on purpose, set "
     "RANK=0 WORLD_SIZE=1"},
    {"rendezvous.meets_elsewhere", "{}; the ranks of this host meet through {} instead"},
    {"endpoint.not_host_and_port", "{}: '{}' is not HOST:PORT with a port from 0 to 65535"},
    {"socket.foreign_address",
     "{} is not an address of this host; listening on all addresses; the other ranks can connect "
     "only if {} leads here"},
    // engine: too little memory, too few descriptors
    {"memory.part_not_got", "rank {} ({}) could not get its part of {}"},
    {"system.too_many_files", "Too many open files; raise ulimit -n, which is now {}"},
    {"memory.not_allocated_in_time", "{}: allocating {} shared bytes in group {} timed out after "},
    {"memory.block_missing", "{} has not allocated its block; "},
    // training: the beginning of a run
    {"ownership.directory_used",
     "checkpoint directory {}: it has checkpoints already, the newest of step {}; to continue that "
     "run, resume it (--resume, CheckpointOptions::resume); to begin another one, give it a "
     "directory of its own"},
    {"ownership.memory_used",
     "rank {}: the memory for checkpoints (PACELINE_MEMORY_CHECKPOINT) holds step {} of an earlier "
     "run; to continue that run, resume it (--resume, CheckpointOptions::resume); to begin another "
     "one, remove that file"},
    {"ownership.memory_of_another_run",
     "rank {}: the memory for checkpoints (PACELINE_MEMORY_CHECKPOINT) holds step {} of a run "
     "other than that of {}; resume with the directory of the run in the memory, or remove the "
     "file"},
    {"ownership.newest_of_another_run",
     "checkpoint directory {}: its newest checkpoint, step-{}, belongs to {}, but the directory "
     "belongs to {}; remove that checkpoint to continue the directory's run, or continue the "
     "checkpoint's with --resume-other-run"},
    {"ownership.not_of_this_job",
     "checkpoint directory {}: the launcher has started this job again, but the checkpoints there "
     "(the newest of step {}) are not the job's own; {}"},
    // training: replicas and gradients
    {"replica.one_differs", "rank {}'s replica differs from the others after step {}: {}"},
    {"replica.two_differ", "the replicas of ranks {} differ after step {}: {}"},
    {"replica.tensors_that_differ",
     ": {}. Their memory was damaged, or a rank took a different step (it left out a backward "
     "pass, changed its parameters alone, or has other threads, processor, code or random "
     "numbers); nothing was saved since. Continue from the last checkpoint"},
    {"gradient.not_finite", "rank {}'s gradient of parameter {} is not finite in step {}"},
    {"hooks.differ", "the ranks chose different communication hooks: {}"},
    {"hook.failed", "communication hook {} failed in round {} of bucket {}: {}"},
    {"module.called_instead",
     "DistributedDataParallel: call model->forward(x), or model(x), of the wrapper, not of the "
     "module that was given to it"},
    {"module.order_differs",
     "this backward pass belongs to DistributedDataParallel module {} on this rank, but to module "
     "{} on {} (modules are numbered in the order in which they were made): run the forward and "
     "backward passes of several modules in the same order on every rank"},
    {"module.pass_alone", "; to run the model on one rank alone, call model.module().forward(x)"},
    {"module.pass_broken_off",
     "an exception ended the last backward pass on this rank, and the ranks could not continue "
     "together; it must occur on every rank, or end this process: {}"},
    {"module.in_checkpointed_part",
     "DistributedDataParallel's forward() was called in a part of activation_checkpoint(): "},
    {"module.fewer_batches",
     "; where ranks have different numbers of batches, train inside paceline::join(), or take "
     "batches from a data::DataLoader, which gives every rank the same number"},
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
    {"mismatch.counts", "the block from {} to {} has {} elements, but the receiver expects {}"},
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
    {"group.not_a_member",
     "this rank is not a member of group {}, whose members are {}; only they may make this "
     "call (is_member())"},
    {"group.unreceived_message",
     "group {} ends on {} with an unreceived message: {} x {} that rank {} ({}) sent with tag {}"},
    {"group.destroyed_under_way",
     "{}: group {} is destroyed with {} under way: {}; their results are discarded: wait() for "
     "each before destroying the group"},
    {"group.timeout_refused",
     "{}: PACELINE_TIMEOUT={}: it must be a number of seconds, from {} to {}, that each operation "
     "of a "
     "group may take"},
    {"mesh.axis_crosses_hosts",
     "hint: {} crosses hosts; a size that divides the {} ranks of a host, and ranks numbered host "
     "by host, keep it in shared memory"},
    {"plan.staged", "{}; by way of the staging area, up to {} KiB"},
    {"plan.in_place",
     "direct; read and written in place when all buffers lie in symmetric memory, otherwise {}by "
     "way of a staging area of {} KiB"},
    {"backend.not_supported",
     "is not supported by backend {}; choose --backend paceline, which supports it"},
    {"backend.not_defined", "{} is not defined for {}"},
    {"backend.none_for_cuda",
     "group {} has no backend for CUDA memory; form it with --backend cpu:paceline,cuda:nccl, or "
     "copy to the host"},
    {"library.unusable",
     "the library cannot be used any more in this process (pid {}), because a call of another "
     "group failed inside it or never returned; start the process again, or choose another "
     "backend"},
    {"library.id_of_another_size",
     "the {} id from rank 0 has {} bytes, not {}; build all ranks with the same version of {}"},
    {"part.forming", "rank {} of the world, forming group {} of ranks {}: "},
    {"part.no_ranks", "group {} has no ranks"},
    {"part.no_rank_of_world", "group {}: {} is not a rank of a world of {}"},
    {"library.rank_missing", "a rank of group {} did not arrive within {} s to connect with {}"},
    {"library.not_on_device", "a buffer is declared to be in CUDA memory, but is not"},
    {"one_copy.written_outside",
     "{}: {} was written to outside of the optimizer's step; the ranks of this host share one copy "
     "of it, which only the step may change: load or initialise weights before fully_shard(), or "
     "hold optimizer.writable_parameters() on all ranks while you write"},
    // engine: rpc, the simulator, shards and files
    {"rpc.name_taken",
     "join: a worker named '{}' is present (role {}); every worker needs a name of its own"},
    {"rpc.nobody", "no worker is named '{}'"},
    {"rpc.did_you_mean", "; did you mean '{}'?"},
    {"rpc.forked",
     "{}: a call to {} in a child that this worker's process ({}) forked; the child must call "
     "join() itself"},
    {"simulator.waits_forever",
     "simulating: rank {} waits forever at step {} of {}, with {} messages under way"},
    {"shards.not_divisible",
     "rank {}: {} logical shards cannot be divided among {} ranks with bit-identical results: each "
     "rank must "
     "have 1, 2, 4, 8, ... of them. Start {} ranks, or choose another number of shards"},
    {"topology.too_large", "topology: {} is larger than {} MiB, so it is not an lstopo file"},
    {"explain.never_entered_any", "{} never entered {}; it had finished nothing before; "},
    {"topology.not_a_file", "topology: {} is not a file"},
    {"topology.neither",
     "topology: '{}' is neither an lstopo file (FILE.xml) nor a description like \"package:2 "
     "numa:1 l3:2 core:4 pu:2\""},
    {"file.is_lfs_pointer",
     "a pointer of Git LFS, not the file itself: fetch it with 'git lfs pull'"},
    {"file.is_web_page",
     "a web page, not the file itself: download it from the link that gives the raw file (on "
     "Hugging Face, /resolve/ instead of /blob/)"},
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
    {"checkpoint.no_such_step", "no checkpoint of step {}; existing steps: {}"},
    {"checkpoint.of_another_run", "{}: of run {}, expected {}"},
    {"checkpoint.disk_too_slow", "writing the checkpoint of step {} has taken more than {} s"},
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
    {"checkpoint.replaced", "this process belongs to generation {}, which that one has replaced"},
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
    // training: saved states and batches that do not match
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
     "the run to continue at step {} has {} logical shards, this job has {}: start it with "
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
     "{}: {} lends a tensor in the memory of a SymmetricTensors that this rank does not have; make "
     "it on every rank, and destroy it at the same point of the program"},
    {"pipeline.loan_kept",
     "; {} had given all its results and was waiting for {} to finish reading them in place"},
    {"optimizer.not_stepped", "worker {} did not take the step"},
    // engine: losing a rank
    {"loss.host_silent", "is gone: its host does not answer ({})"},
    {"loss.another_group_failed",
     " (another group had failed there: {}); see the output of rank {}"},
};

}  // namespace paceline::harness
