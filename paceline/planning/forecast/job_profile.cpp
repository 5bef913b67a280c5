#include "paceline/planning/forecast/job_profile.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/system/safe_files.h"
#include "paceline/planning/schedules/named_schedules.h"

namespace paceline::planning {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PassCost, fixed_s, sample_s)

namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "paceline profile";
constexpr int kVersion = 2;

// The fields that must be finite and not negative, with their names in the file.
constexpr std::pair<const char*, double JobProfile::*> kAmounts[] = {
    {"units_per_sample", &JobProfile::units_per_sample},
    {"parameter_bytes", &JobProfile::parameter_bytes},
    {"gradient_bytes", &JobProfile::gradient_bytes},
    {"optimizer_bytes", &JobProfile::optimizer_bytes},
    {"optimizer_s_per_parameter", &JobProfile::optimizer_s_per_parameter},
    {"data_s", &JobProfile::data_s},
    {"other_s", &JobProfile::other_s},
    {"bucket_bytes", &JobProfile::bucket_bytes},
    {"unit_bytes", &JobProfile::unit_bytes},
    {"working_bytes", &JobProfile::working_bytes},
    {"process_bytes", &JobProfile::process_bytes},
    {"library_bytes", &JobProfile::library_bytes},
};

// Visits the fields that a file has: visit(name, field) for each, visit(name, field, true) for a
// required one. Layers are visited separately.
template <class Layer, class Visit>
void visit_layer(Layer& layer, const Visit& visit) {
  visit("name", layer.name, true);
  visit("is_block", layer.is_block);
  visit("parameters", layer.parameters, true);
  visit("tied_parameters", layer.tied_parameters);
  visit("forward", layer.forward, true);
  visit("backward", layer.backward, true);
  visit("input_half", layer.input_half);
  visit("weight_half", layer.weight_half);
  visit("add_s", layer.add_s);
  visit("activation_bytes", layer.activation_bytes, true);
  visit("deferred_bytes", layer.deferred_bytes);
  visit("output_bytes", layer.output_bytes);
  visit("divisible_time", layer.divisible.time);
  visit("divisible_parameters", layer.divisible.parameters);
  visit("divisible_activations", layer.divisible.activations);
  visit("exchanges", layer.exchanges);
}

template <class Profile, class Visit>
void visit_profile(Profile& profile, const Visit& visit) {
  visit("program", profile.program);
  visit("unit", profile.unit);
  visit("samples_per_step", profile.samples_per_step, true);
  visit("threads", profile.threads);
  visit("ranks_at_once", profile.ranks_at_once);
  visit("shard_stages", profile.shard_stages);
  visit("schedules", profile.schedules);
  visit("most_parts", profile.most_parts);
  for (const auto& [name, amount] : kAmounts) visit(name, profile.*amount);
}

struct FieldWriter {
  Json& json;

  template <class Value>
  void operator()(const char* name, const Value& value, bool = false) const {
    json[name] = value;
  }
  template <class Value>
  void operator()(const char* name, const std::optional<Value>& value) const {
    if (value) json[name] = *value;
  }
};

// Reads fields; a field that the file lacks keeps its value.
struct FieldReader {
  const Json& json;

  template <class Value>
  void operator()(const char* name, Value& value, bool is_required = false) const {
    if (is_required || json.contains(name)) value = json.at(name).template get<Value>();
  }
  template <class Value>
  void operator()(const char* name, std::optional<Value>& value) const {
    if (json.contains(name)) value = json.at(name).template get<Value>();
  }
};

JobProfile from_json(const Json& json) {
  check(json.at("format") == kFormat && json.at("version") == kVersion,
        "the file has another format or version");
  JobProfile profile;
  visit_profile(profile, FieldReader{json});
  for (const Json& layer : json.at("layers"))
    visit_layer(profile.layers.emplace_back(), FieldReader{layer});
  require_valid(profile);
  return profile;
}

void require_amount(const std::string& of, const char* field, double value) {
  check(std::isfinite(value) && value >= 0, "{}: {} is {}; it must be finite and not negative", of,
        field, value);
}

void require_share(const std::string& of, const char* field, double value) {
  check(value >= 0 && value <= 1, "{}: {} is {}; it must be a share from 0 to 1", of, field, value);
}

void require_valid(const LayerProfile& layer) {
  const std::string of = "layer '" + layer.name + "'";
  require_amount(of, "parameters", static_cast<double>(layer.parameters));
  check(layer.tied_parameters >= 0 && layer.tied_parameters <= layer.parameters,
        "{}: tied_parameters is {} of {} parameters", of, layer.tied_parameters, layer.parameters);
  for (const PassCost& cost : {layer.forward, layer.backward, layer.input_half.value_or(PassCost()),
                               layer.weight_half.value_or(PassCost())}) {
    require_amount(of, "fixed_s", cost.fixed_s);
    require_amount(of, "sample_s", cost.sample_s);
  }
  require_amount(of, "add_s", layer.add_s);
  require_amount(of, "activation_bytes", layer.activation_bytes);
  require_amount(of, "deferred_bytes", layer.deferred_bytes.value_or(0));
  require_amount(of, "output_bytes", layer.output_bytes);
  require_share(of, "divisible_time", layer.divisible.time);
  require_share(of, "divisible_parameters", layer.divisible.parameters);
  require_share(of, "divisible_activations", layer.divisible.activations);
  require_amount(of, "exchanges", layer.exchanges);
}

}  // namespace

PassCost line_through(double few, double seconds_of_few, double many, double seconds_of_many) {
  const double slope = (seconds_of_many - seconds_of_few) / (many - few);
  const double sample = std::clamp(slope, 0.0, seconds_of_many / many);
  return {.fixed_s = seconds_of_many - sample * many, .sample_s = sample};
}

std::int64_t JobProfile::parameters() const {
  std::int64_t sum = 0;
  for (const LayerProfile& layer : layers) sum += layer.parameters - layer.tied_parameters;
  return sum;
}

int JobProfile::num_blocks() const {
  return static_cast<int>(std::count_if(layers.begin(), layers.end(),
                                        [](const LayerProfile& layer) { return layer.is_block; }));
}

void require_valid(const JobProfile& profile) {
  const std::string of = "profile";
  check(!profile.layers.empty(), "{}: there are no layers", of);
  for (const LayerProfile& layer : profile.layers) require_valid(layer);
  check(profile.samples_per_step >= 1, "{}: samples_per_step is {}", of, profile.samples_per_step);
  check(profile.threads >= 1, "{}: threads is {}", of, profile.threads);
  check(profile.ranks_at_once >= 1, "{}: ranks_at_once is {}", of, profile.ranks_at_once);
  check(profile.most_parts >= 1, "{}: most_parts is {}", of, profile.most_parts);
  check(!profile.shard_stages.empty(), "{}: shard_stages is empty; use 0 for no sharding", of);
  for (const int stage : profile.shard_stages)
    check(stage >= 0 && stage <= 3, "{}: shard_stages has {}; stages are 0 to 3", of, stage);
  const auto known = pipeline_schedule_names();
  for (const std::string& name : profile.schedules) {
    check(name == kSearched || std::find(known.begin(), known.end(), name) != known.end(),
          "{}: unknown schedule '{}'", of, name);
  }
  check(profile.schedules.size() != 1 || profile.schedules.front() != kSearched,
        "{}: schedules lists only '{}'; add a named schedule, such as 1f1b", of, kSearched);
  for (const auto& [name, amount] : kAmounts) require_amount(of, name, profile.*amount);
}

std::string to_text(const JobProfile& profile) {
  Json json = {{"format", kFormat}, {"version", kVersion}, {"layers", Json::array()}};
  visit_profile(profile, FieldWriter{json});
  for (const LayerProfile& layer : profile.layers)
    visit_layer(layer, FieldWriter{json["layers"].emplace_back()});
  return json_text(json, 2) + "\n";
}

JobProfile profile_from_text(const std::string& text) {
  try {
    return from_json(parse_json(text));
  } catch (const std::exception& error) {
    fail(ErrorCode::kCorrupt, "not a profile of a program: {}", error.what());
  }
}

void save_profile(const JobProfile& profile, const std::filesystem::path& path) {
  try {
    replace_file(path.string(), to_text(profile));
  } catch (const Error& error) {
    fail(error.code(), "the profile cannot be saved: {}", error.what());
  }
}

JobProfile load_profile(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw system_error("reading the profile " + path.string());
  std::ostringstream text;
  text << file.rdbuf();
  try {
    return profile_from_text(text.str());
  } catch (const Error& error) {
    fail(error.code(), "{}: {}; measure again or remove the file", path.string(), error.what());
  }
}

}  // namespace paceline::planning
