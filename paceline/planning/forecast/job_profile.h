#pragma once

// What a training program costs, measured by the program itself in a dry run: the facts from which
// step_forecast.h and memory_plan.h predict every way to divide it.
//
// With PACELINE_PROFILE=FILE in the environment, train::TrainingRun measures a few steps and writes
// the profile there in the place of training; a program of any language can do the same
// (docs/planner.md has the fields).
//
// Times are linear in the samples that are computed at once: a fixed part and a part for each.
//
// Thread safety: values.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace paceline::planning {

// The schedule of a pipeline that searches for it.
inline constexpr std::string_view kSearched = "search";

// Seconds of a pass.
struct PassCost {
  double fixed_s = 0;
  double sample_s = 0;

  double of(double samples) const { return fixed_s + sample_s * samples; }
  bool operator==(const PassCost&) const = default;
};

// Through two measurements, neither part below zero. Requires: few < many.
PassCost line_through(double few, double seconds_of_few, double many, double seconds_of_many);

// The shares of a layer, 0 to 1, that tensor parallelism divides among ranks.
struct DivisibleShares {
  double time = 0;  // of PassCost::sample_s
  double parameters = 0;
  double activations = 0;
  bool operator==(const DivisibleShares&) const = default;
};

struct LayerProfile {
  std::string name;
  // Blocks are what a pipeline divides, by what they cost (planning/schedules/search.h).
  // What comes before the first block counts with it, what comes after the last one with that.
  bool is_block = false;
  std::int64_t parameters = 0;
  // Those of the parameters that the first layer has too. A stage without the first layer has a
  // copy.
  std::int64_t tied_parameters = 0;
  PassCost forward, backward;
  // The backward pass's halves, for inputs and for weights (zero-bubble schedules); not given: half
  // of it each.
  std::optional<PassCost> input_half, weight_half;
  // Seconds of adding its gradients to those of earlier micro-batches, in a pipeline.
  double add_s = 0;
  double activation_bytes = 0;  // kept from the forward to the backward pass, for each sample
  // The same from the first half of the backward pass to the second; not given: as much.
  std::optional<double> deferred_bytes;
  double output_bytes = 0;  // for each sample: what goes to the next stage
  DivisibleShares divisible;
  // All-reduces of the output's size in a forward pass of a divided layer, and as many in a
  // backward pass.
  int exchanges = 0;

  double deferred() const { return deferred_bytes.value_or(activation_bytes); }
  bool operator==(const LayerProfile&) const = default;
};

struct JobProfile {
  std::string program;  // its name, for people
  std::string unit = "samples";
  double units_per_sample = 1;
  std::int64_t samples_per_step = 1;  // of all ranks together, as the program was started
  int threads = 1;                    // of a rank
  int ranks_at_once = 1;              // that computed on the machine while it was measured

  std::vector<LayerProfile> layers;  // in the order of the forward pass, at least one
  double parameter_bytes = 4;        // of an element
  double gradient_bytes = 4;
  double optimizer_bytes = 8;              // of state, for each parameter
  double optimizer_s_a_parameter = 0;      // of a step
  double data_s = 0;                       // of waiting for a step's batch
  double other_s = 0;                      // of a step, beside passes, optimizer and data
  double bucket_bytes = 25.0 * (1 << 20);  // of gradients that travel together
  double unit_bytes = 4.0 * (1 << 20);     // the same where gradients are divided
  double working_bytes = 0;  // beyond activations, for each sample, at the peak of a step
  double process_bytes = 0;  // of a rank without model and data: its own
  double library_bytes = 0;  // of files that all ranks of a host share

  std::vector<int> shard_stages = {0};  // of fully_shard(): those that the program can run
  // Schedules of pipelines: names (planning/schedules/named_plans.h), and kSearched where the
  // program searches for stages and schedule itself (planning/schedules/search.h); empty: none.
  std::vector<std::string> schedules;
  std::int64_t most_parts = 1;  // tensor parallelism divides this number (heads); 1: none

  std::int64_t parameters() const;
  int num_blocks() const;
  bool operator==(const JobProfile&) const = default;
};

// Error(kInvalid) that names the field which is wrong.
void require_valid(const JobProfile& profile);

// JSON, and back. Error(kCorrupt) for any other text, and where require_valid() refuses it.
std::string to_text(const JobProfile& profile);
JobProfile profile_from_text(const std::string& text);

// Atomically. Error(kSystem) with the path.
void save_profile(const JobProfile& profile, const std::filesystem::path& path);
// Error(kSystem) where there is no such file, Error(kCorrupt), both with the path.
JobProfile load_profile(const std::filesystem::path& path);

}  // namespace paceline::planning
