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
    {"run.first_failure", "rank {} failed first: {}"},

    // ---- launcher rooms, planning, and the other commands

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
    // engine: memory and descriptors that run out
    {"memory.part_not_got", "rank {} ({}) could not get its part of {}"},
    {"system.too_many_files", "Too many open files; raise the limit: ulimit -n, now {}"},
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
    argument == arguments.end() ? parts.push_back("") : parts.back().append(*argument++);
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
