#pragma once

// The costs of a training program, which the program itself measures in a dry run. From these costs
// step_forecast.h and memory_plan.h predict time and memory for each way to divide the program.
//
// With PACELINE_PROFILE=FILE in the environment, train::TrainingRun measures a few steps and writes
// the profile to that file instead of training. A program in any language can do the same
// (docs/performance.md lists the fields).
//
// Times are linear in the number of samples that are computed at once: a fixed part, and a part for
// each sample.
//
// Thread safety: values.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace paceline::planning {

// Listed among a program's schedules if the program itself searches for its pipeline's schedule.
inline constexpr std::string_view kSearched = "search";

// The time of a pass in seconds.
struct PassCost {
  double fixed_s = 0;
  double sample_s = 0;

  double of(double samples) const { return fixed_s + sample_s * samples; }
  bool operator==(const PassCost&) const = default;
};

// The line through two measurements; fixed_s and sample_s are not below zero. Requires: few < many.
PassCost line_through(double few, double seconds_of_few, double many, double seconds_of_many);

// The shares of a layer, 0 to 1, that tensor parallelism divides among ranks.
struct DivisibleShares {
  double time = 0;  // share of PassCost::sample_s
  double parameters = 0;
  double activations = 0;
  bool operator==(const DivisibleShares&) const = default;
};

struct LayerProfile {
  std::string name;
  // A pipeline divides the blocks among its stages by their costs (planning/schedules/search.h).
  // Layers before the first block count with the first block, and layers after the last block count
  // with the last block.
  bool is_block = false;
  std::int64_t parameters = 0;
  // The number of parameters that this layer shares with the first layer. A rank without the first
  // layer has a copy of them.
  std::int64_t tied_parameters = 0;
  PassCost forward, backward;
  // The halves of the backward pass, for inputs and for weights (zero-bubble schedules). By default
  // each half takes half the time of `backward`.
  std::optional<PassCost> input_half, weight_half;
  // The seconds that it takes to add the layer's gradients of one micro-batch to those of earlier
  // micro-batches.
  double add_s = 0;
  double activation_bytes = 0;  // per sample, kept from the forward to the backward pass
  // Per sample, kept between the two halves of the backward pass; by default activation_bytes.
  std::optional<double> deferred_bytes;
  double output_bytes = 0;  // per sample, sent to the next stage
  DivisibleShares divisible;
  // The number of all-reduces of the output's size in a forward pass of a divided layer; the
  // backward pass has as many.
  int exchanges = 0;

  double deferred() const { return deferred_bytes.value_or(activation_bytes); }
  bool operator==(const LayerProfile&) const = default;
};

struct JobProfile {
  std::string program;  // the name of the program, for people
  std::string unit = "samples";
  double units_per_sample = 1;
  std::int64_t samples_per_step = 1;  // of all ranks together in the measured run
  int threads = 1;                    // threads of each rank
  int ranks_at_once = 1;              // ranks that computed on the machine during the measurement

  std::vector<LayerProfile> layers;  // in the order of the forward pass, at least one
  double parameter_bytes = 4;        // bytes of one parameter
  double gradient_bytes = 4;
  double optimizer_bytes = 8;            // bytes of state per parameter
  double optimizer_s_per_parameter = 0;  // seconds of a step per parameter
  double data_s = 0;                     // waiting for the batch of a step
  double other_s = 0;  // the rest of a step: not in passes, the optimizer or data_s
  double bucket_bytes = 25.0 * (1 << 20);  // gradients that are reduced together
  double unit_bytes = 4.0 * (1 << 20);     // as bucket_bytes, if gradients are divided
  double working_bytes = 0;  // per sample, in addition to activations, at the peak of a step
  double process_bytes = 0;  // private memory of a rank without model and data
  double library_bytes = 0;  // mapped files, such as libraries, that all ranks of a host share

  std::vector<int> shard_stages = {0};  // stages of fully_shard() that the program supports
  // The schedules of pipelines that the program supports: names
  // (planning/schedules/named_schedules.h), and kSearched if the program searches for stages and
  // schedule itself (planning/schedules/search.h). Empty: the program has no pipelines.
  std::vector<std::string> schedules;
  std::int64_t most_parts = 1;  // the number of attention heads, which tp must divide; 1: no tp

  std::int64_t parameters() const;
  int num_blocks() const;
  bool operator==(const JobProfile&) const = default;
};

// Throws Error(kInvalid), which names the invalid field.
void require_valid(const JobProfile& profile);

// Convert a profile to JSON and back. profile_from_text() throws Error(kCorrupt) for a text that is
// not a profile, and for a profile that require_valid() refuses.
std::string to_text(const JobProfile& profile);
JobProfile profile_from_text(const std::string& text);

// Saves atomically. Throws Error(kSystem), which names the path.
void save_profile(const JobProfile& profile, const std::filesystem::path& path);
// Throws Error(kSystem) if the file cannot be read, Error(kCorrupt) as above; both name the path.
JobProfile load_profile(const std::filesystem::path& path);

}  // namespace paceline::planning
